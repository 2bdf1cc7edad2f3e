#pragma once

#include "call.h"
#include "esker/v1/file.grpc.pb.h"

namespace esker::gateway {

class FileService final : public v1::FileService::CallbackService {
 public:
  explicit FileService(Services& services) : s_(services) {}

  grpc::ServerWriteReactor<v1::ReadFileResponse>* Read(grpc::CallbackServerContext* context,
                                                       const v1::ReadFileRequest* request) override;
  grpc::ServerReadReactor<v1::WriteFileRequest>* Write(grpc::CallbackServerContext* context,
                                                       v1::FileInfo* response) override;

#define ESKER_UNARY(Method, Request, Response)                           \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context, \
                                   const v1::Request* request, v1::Response* response) override
  ESKER_UNARY(Stat, StatFileRequest, FileInfo);
  ESKER_UNARY(List, ListFilesRequest, ListFilesResponse);
  ESKER_UNARY(MakeDir, MakeDirRequest, FileInfo);
  ESKER_UNARY(Remove, RemoveFileRequest, RemoveFileResponse);
  ESKER_UNARY(Rename, RenameFileRequest, FileInfo);
#undef ESKER_UNARY

 private:
  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context, const std::string& sandbox,
                                 const InitFileRequest& request,
                                 std::function<Status(const InitFileResult&)> answer);
  Services& s_;
};

}  // namespace esker::gateway
