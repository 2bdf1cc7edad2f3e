#include "copy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "base/id.h"
#include "base/io.h"
#include "base/scope_guard.h"
#include "esker/v1/file.grpc.pb.h"
#include "output.h"

namespace esker::cli {
namespace {

struct Remote {
  std::string sandbox, path;
};

// "sb-...:path"; a local path with a colon is written ./a:b.
std::optional<Remote> ParseRemote(const std::string& text) {
  size_t colon = text.find(':');
  if (colon == std::string::npos || text.find('/') < colon) return std::nullopt;
  return Remote{text.substr(0, colon), text.substr(colon + 1)};
}

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool IsDirectory(const std::string& path) {
  struct stat st;
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

Status Upload(const GlobalOptions& options, const std::string& from, Remote to,
              const std::string& user) {
  UniqueFd opened;
  int fd = 0;
  uint32_t mode = 0;
  if (from != "-") {
    ESKER_ASSIGN_OR_RETURN(opened, OpenFile(from, O_RDONLY));
    fd = opened.get();
    struct stat st;
    if (::fstat(fd, &st) == 0) mode = st.st_mode & 0777;
    if (to.path.empty() || to.path.back() == '/') to.path += BaseName(from);
  }
  auto stub = v1::FileService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  v1::FileInfo info;
  auto writer = stub->Write(&context, &info);
  v1::WriteFileRequest request;
  request.mutable_open()->set_sandbox_id(to.sandbox);
  request.mutable_open()->set_path(to.path);
  request.mutable_open()->set_user(user);
  request.mutable_open()->set_mode(mode);
  request.mutable_open()->set_request_id(RandomId("req"));
  bool going = writer->Write(request);
  std::string buffer(1 << 20, '\0');
  uint64_t sent = 0;
  ProgressLine progress(/*quiet=*/options.json);
  while (going) {
    Result<size_t> n = ReadFull(fd, buffer.data(), buffer.size());
    if (!n.ok()) {
      context.TryCancel();  // half a file must not look like a whole one
      (void)writer->Finish();
      return std::move(n).status().Wrap(from);
    }
    if (*n == 0) break;
    request.set_data(buffer.data(), *n);
    going = writer->Write(request);
    sent += *n;
    progress.Show(HumanBytes(sent) + " sent");
  }
  writer->WritesDone();
  progress.Finish();
  ESKER_RETURN_IF_ERROR(FromGrpc(writer->Finish(), context));
  if (options.json) PrintJson(info);
  return OkStatus();
}

Result<v1::FileInfo> ReadInto(const GlobalOptions& options, const Remote& from,
                              const std::string& user, int fd) {
  auto stub = v1::FileService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  v1::ReadFileRequest request;
  request.set_sandbox_id(from.sandbox);
  request.set_path(from.path);
  request.set_user(user);
  auto reader = stub->Read(&context, request);
  v1::ReadFileResponse response;
  uint64_t got = 0;
  v1::FileInfo info;
  ProgressLine progress(/*quiet=*/options.json);
  while (reader->Read(&response)) {
    if (response.has_info()) info = response.info();
    ESKER_RETURN_IF_ERROR(WriteFull(fd, response.data().data(), response.data().size()));
    got += response.data().size();
    progress.Show(HumanBytes(got) + " received");
  }
  progress.Finish();
  ESKER_RETURN_IF_ERROR(FromGrpc(reader->Finish(), context));
  return info;
}

Status Download(const GlobalOptions& options, const Remote& from, std::string to,
                const std::string& user) {
  // Then the file is what is printed, --json or not.
  if (to == "-") return ReadInto(options, from, user, 1).status();
  if (IsDirectory(to)) to += "/" + BaseName(from.path);
  std::string temporary = to + ".esker-" + RandomId();
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL, 0666));
  ScopeGuard remove([&] { ::unlink(temporary.c_str()); });
  ESKER_ASSIGN_OR_RETURN(v1::FileInfo info, ReadInto(options, from, user, fd.get()));
  if (::rename(temporary.c_str(), to.c_str()) != 0) return ErrnoError("rename to " + to);
  remove.Dismiss();
  if (options.json) PrintJson(info);
  return OkStatus();
}

}  // namespace

Status CopyFile(const GlobalOptions& options, const std::string& from, const std::string& to,
                const std::string& user) {
  std::optional<Remote> remote_from = ParseRemote(from), remote_to = ParseRemote(to);
  if (remote_from.has_value() == remote_to.has_value()) {
    return InvalidArgumentError("cp: exactly one of the two must be SANDBOX:PATH");
  }
  if (remote_to) return Upload(options, from, *remote_to, user);
  return Download(options, *remote_from, to, user);
}

}  // namespace esker::cli
