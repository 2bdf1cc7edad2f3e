#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace esker {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kUnknown:
      return "UNKNOWN";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kAlreadyExists:
      return "ALREADY_EXISTS";
    case Code::kPermissionDenied:
      return "PERMISSION_DENIED";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kAborted:
      return "ABORTED";
    case Code::kOutOfRange:
      return "OUT_OF_RANGE";
    case Code::kUnimplemented:
      return "UNIMPLEMENTED";
    case Code::kInternal:
      return "INTERNAL";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kDataLoss:
      return "DATA_LOSS";
    case Code::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN";
}

Code CodeFromErrno(int error) {
  switch (error) {
    case 0:
      return Code::kOk;
    case ENOENT:
    case ESRCH:
    case ENXIO:
    case ENODEV:
      return Code::kNotFound;
    case EEXIST:
      return Code::kAlreadyExists;
    case EACCES:
    case EPERM:
      return Code::kPermissionDenied;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
    case E2BIG:
      return Code::kInvalidArgument;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EFBIG:
      return Code::kResourceExhausted;
    case EROFS:
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case EBUSY:
    case EXDEV:
    case ETXTBSY:
      return Code::kFailedPrecondition;
    case ETIMEDOUT:
      return Code::kDeadlineExceeded;
    case ECANCELED:
      return Code::kCancelled;
    case ENOSYS:
    case EOPNOTSUPP:
      return Code::kUnimplemented;
    case EAGAIN:
    case EINTR:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
      return Code::kUnavailable;
    case EUCLEAN:
    case EBADMSG:
      return Code::kDataLoss;
    case EADDRINUSE:
      return Code::kFailedPrecondition;
    default:
      return Code::kInternal;
  }
}

Status::Status(Code code, std::string message, std::source_location where) {
  if (code == Code::kOk) return;
  rep_ = std::make_shared<const Rep>(Rep{code, 0, std::move(message), where});
}

Status Status::FromErrno(int error, std::string_view what, std::source_location where) {
  Code code = CodeFromErrno(error);
  if (code == Code::kOk) return Status(Code::kInternal, std::string(what) + ": errno 0", where);
  Status status;
  char buffer[128];
  const char* text = strerror_r(error, buffer, sizeof(buffer));
  status.rep_ =
      std::make_shared<const Rep>(Rep{code, error, std::string(what) + ": " + text, where});
  return status;
}

Code Status::code() const { return rep_ ? rep_->code : Code::kOk; }
int Status::error_number() const { return rep_ ? rep_->error : 0; }

const std::string& Status::message() const {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  std::string_view file = rep_->where.file_name();
  if (auto slash = file.rfind('/'); slash != file.npos) file.remove_prefix(slash + 1);
  return std::string(CodeName(rep_->code)) + ": " + rep_->message + " (" + std::string(file) + ":" +
         std::to_string(rep_->where.line()) + ")";
}

Status Status::Wrap(std::string_view context) const& {
  Status copy = *this;
  return std::move(copy).Wrap(context);
}

Status Status::Wrap(std::string_view context) && {
  if (ok()) return *this;
  Rep rep = *rep_;
  rep.message = std::string(context) + ": " + rep.message;
  rep_ = std::make_shared<const Rep>(std::move(rep));
  return std::move(*this);
}

Status Status::WithCode(Code code) && {
  if (ok()) return *this;
  Rep rep = *rep_;
  rep.code = code;
  rep_ = std::make_shared<const Rep>(std::move(rep));
  return std::move(*this);
}

#define ESKER_DEFINE_STATUS(Name, code)                          \
  Status Name(std::string message, std::source_location where) { \
    return Status(code, std::move(message), where);              \
  }
ESKER_DEFINE_STATUS(CancelledError, Code::kCancelled)
ESKER_DEFINE_STATUS(UnknownError, Code::kUnknown)
ESKER_DEFINE_STATUS(InvalidArgumentError, Code::kInvalidArgument)
ESKER_DEFINE_STATUS(DeadlineExceededError, Code::kDeadlineExceeded)
ESKER_DEFINE_STATUS(NotFoundError, Code::kNotFound)
ESKER_DEFINE_STATUS(AlreadyExistsError, Code::kAlreadyExists)
ESKER_DEFINE_STATUS(PermissionDeniedError, Code::kPermissionDenied)
ESKER_DEFINE_STATUS(ResourceExhaustedError, Code::kResourceExhausted)
ESKER_DEFINE_STATUS(FailedPreconditionError, Code::kFailedPrecondition)
ESKER_DEFINE_STATUS(AbortedError, Code::kAborted)
ESKER_DEFINE_STATUS(OutOfRangeError, Code::kOutOfRange)
ESKER_DEFINE_STATUS(UnimplementedError, Code::kUnimplemented)
ESKER_DEFINE_STATUS(InternalError, Code::kInternal)
ESKER_DEFINE_STATUS(UnavailableError, Code::kUnavailable)
ESKER_DEFINE_STATUS(DataLossError, Code::kDataLoss)
ESKER_DEFINE_STATUS(UnauthenticatedError, Code::kUnauthenticated)

Status ErrnoError(std::string_view what, std::source_location where) {
  return Status::FromErrno(errno, what, where);
}

}  // namespace esker
