// Streaming file contents: a pipe to init's file worker on one side, a gRPC stream on the other.
// Nothing blocks; at most one buffer per stream is held, so a file of any size takes constant
// memory.
#pragma once

#include "call.h"
#include "esker/v1/file.grpc.pb.h"

namespace esker::gateway {

// The errno of a file call as a Status that names the path.
Status FileStatus(const Result<InitFileResult>& result);

grpc::ServerWriteReactor<v1::ReadFileResponse>* StartFileDownload(
    Services& services, grpc::CallbackServerContext* context, const v1::ReadFileRequest& request);

// The worker takes frames (u32 LE length, bytes); an empty frame commits, end of file without one
// leaves what was there before.
grpc::ServerReadReactor<v1::WriteFileRequest>* StartFileUpload(Services& services,
                                                               grpc::CallbackServerContext* context,
                                                               v1::FileInfo* response);

}  // namespace esker::gateway
