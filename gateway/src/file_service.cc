#include "file_service.h"

#include "convert.h"
#include "file_streams.h"

namespace esker::gateway {

Status FileStatus(const Result<InitFileResult>& result) {
  if (!result.ok()) return result.status();
  if (result->error_number == 0) return OkStatus();
  return Status::FromErrno(result->error_number, result->error_path);
}

namespace {

Status TakeOnlyEntry(const InitFileResult& result, v1::FileInfo* response) {
  if (result.entries.size() != 1) return InternalError("the sandbox's init gave no file entry");
  *response = ToProto(result.entries.front());
  return OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* FileService::Call(grpc::CallbackServerContext* context,
                                            const std::string& sandbox,
                                            const InitFileRequest& request,
                                            std::function<Status(const InitFileResult&)> answer) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!s_.Admit(context, reactor, sandbox)) return reactor;
  s_.node.File(sandbox, request, UniqueFd(),
               [=, answer = std::move(answer)](Result<InitFileResult> result) {
                 Status status = FileStatus(result);
                 if (status.ok()) status = answer(*result);
                 reactor->Finish(ToGrpc(*context, status, "FILE"));
               });
  return reactor;
}

grpc::ServerUnaryReactor* FileService::Stat(grpc::CallbackServerContext* context,
                                            const v1::StatFileRequest* request,
                                            v1::FileInfo* response) {
  InitFileRequest call{.op = InitFileOp::kStat, .user = request->user(), .path = request->path()};
  return Call(context, request->sandbox_id(), call,
              [=](const InitFileResult& result) { return TakeOnlyEntry(result, response); });
}

grpc::ServerUnaryReactor* FileService::List(grpc::CallbackServerContext* context,
                                            const v1::ListFilesRequest* request,
                                            v1::ListFilesResponse* response) {
  InitFileRequest call{.op = InitFileOp::kList, .user = request->user(), .path = request->path()};
  if (request->depth() != 0) call.depth = request->depth();
  if (request->limit() != 0) call.limit = request->limit();
  return Call(context, request->sandbox_id(), call, [=](const InitFileResult& result) {
    for (const InitFileInfo& entry : result.entries) *response->add_entries() = ToProto(entry);
    response->set_truncated(result.truncated);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* FileService::MakeDir(grpc::CallbackServerContext* context,
                                               const v1::MakeDirRequest* request,
                                               v1::FileInfo* response) {
  InitFileRequest call{.op = InitFileOp::kMakeDir,
                       .user = request->user(),
                       .path = request->path(),
                       .mode = request->mode() != 0 ? request->mode() : 0755};
  return Call(context, request->sandbox_id(), call,
              [=](const InitFileResult& result) { return TakeOnlyEntry(result, response); });
}

grpc::ServerUnaryReactor* FileService::Remove(grpc::CallbackServerContext* context,
                                              const v1::RemoveFileRequest* request,
                                              v1::RemoveFileResponse*) {
  InitFileRequest call{.op = InitFileOp::kRemove,
                       .user = request->user(),
                       .path = request->path(),
                       .recursive = request->recursive()};
  return Call(context, request->sandbox_id(), call,
              [](const InitFileResult&) { return OkStatus(); });
}

grpc::ServerUnaryReactor* FileService::Rename(grpc::CallbackServerContext* context,
                                              const v1::RenameFileRequest* request,
                                              v1::FileInfo* response) {
  InitFileRequest call{.op = InitFileOp::kRename,
                       .user = request->user(),
                       .path = request->from(),
                       .to_path = request->to()};
  return Call(context, request->sandbox_id(), call,
              [=](const InitFileResult& result) { return TakeOnlyEntry(result, response); });
}

grpc::ServerWriteReactor<v1::ReadFileResponse>* FileService::Read(
    grpc::CallbackServerContext* context, const v1::ReadFileRequest* request) {
  return StartFileDownload(s_, context, *request);
}

grpc::ServerReadReactor<v1::WriteFileRequest>* FileService::Write(
    grpc::CallbackServerContext* context, v1::FileInfo* response) {
  return StartFileUpload(s_, context, response);
}

}  // namespace esker::gateway
