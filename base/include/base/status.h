// Status and Result: how every fallible function of Esker reports its outcome.
//
// A Status is a gRPC code, an errno if there was one, a message for the person who reads it and the
// place it was made. OK costs one null pointer; nothing is allocated on success. Wrap() adds
// context at each boundary. Thread-compatible: a Status may be read from many threads once made.
#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

namespace esker {

// Numbers are those of gRPC (google.rpc.Code), so the API edge translates by value.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "NOT_FOUND" and so on; the names gRPC uses.
std::string_view CodeName(Code code);

// The code that fits an errno best (ENOENT -> NOT_FOUND, ENOSPC -> RESOURCE_EXHAUSTED, ...).
Code CodeFromErrno(int error);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message,
         std::source_location where = std::source_location::current());

  // "<what>: <strerror(error)>", code by CodeFromErrno. `error` is a positive errno.
  static Status FromErrno(int error, std::string_view what,
                          std::source_location where = std::source_location::current());

  bool ok() const { return rep_ == nullptr; }
  Code code() const;
  int error_number() const;  // 0 if no errno was involved
  const std::string& message() const;
  // "NOT_FOUND: open store/format: No such file or directory (store.cc:42)".
  std::string ToString() const;

  // The same failure with "context: " put before the message; OK stays OK.
  Status Wrap(std::string_view context) const&;
  Status Wrap(std::string_view context) &&;
  // The same failure under another code.
  Status WithCode(Code code) &&;

 private:
  struct Rep {
    Code code;
    int error;
    std::string message;
    std::source_location where;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status OkStatus() { return Status(); }

#define ESKER_DECLARE_STATUS(Name) \
  Status Name(std::string message, std::source_location where = std::source_location::current())
ESKER_DECLARE_STATUS(CancelledError);
ESKER_DECLARE_STATUS(UnknownError);
ESKER_DECLARE_STATUS(InvalidArgumentError);
ESKER_DECLARE_STATUS(DeadlineExceededError);
ESKER_DECLARE_STATUS(NotFoundError);
ESKER_DECLARE_STATUS(AlreadyExistsError);
ESKER_DECLARE_STATUS(PermissionDeniedError);
ESKER_DECLARE_STATUS(ResourceExhaustedError);
ESKER_DECLARE_STATUS(FailedPreconditionError);
ESKER_DECLARE_STATUS(AbortedError);
ESKER_DECLARE_STATUS(OutOfRangeError);
ESKER_DECLARE_STATUS(UnimplementedError);
ESKER_DECLARE_STATUS(InternalError);
ESKER_DECLARE_STATUS(UnavailableError);
ESKER_DECLARE_STATUS(DataLossError);
ESKER_DECLARE_STATUS(UnauthenticatedError);
#undef ESKER_DECLARE_STATUS

// Status::FromErrno(errno, what): call at once after the failing call.
Status ErrnoError(std::string_view what,
                  std::source_location where = std::source_location::current());

// A value or the Status that says why there is none. Never holds an OK status without a value.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) status_ = InternalError("a Result was made from an OK status");
  }
  template <typename U>
    requires(std::is_convertible_v<U &&, T> && !std::is_same_v<std::remove_cvref_t<U>, T> &&
             !std::is_same_v<std::remove_cvref_t<U>, Status> &&
             !std::is_same_v<std::remove_cvref_t<U>, Result<T>>)
  Result(U&& value) : value_(std::forward<U>(value)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

#define ESKER_CONCAT_INNER_(a, b) a##b
#define ESKER_CONCAT_(a, b) ESKER_CONCAT_INNER_(a, b)

#define ESKER_RETURN_IF_ERROR(expr)                \
  do {                                             \
    ::esker::Status esker_status_ = (expr);        \
    if (!esker_status_.ok()) return esker_status_; \
  } while (false)

#define ESKER_ASSIGN_OR_RETURN(lhs, expr) \
  ESKER_ASSIGN_OR_RETURN_(ESKER_CONCAT_(esker_result_, __LINE__), lhs, expr)
#define ESKER_ASSIGN_OR_RETURN_(tmp, lhs, expr)  \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()

}  // namespace esker
