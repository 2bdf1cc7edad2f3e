// Between the API's messages and the components' structs.
#pragma once

#include "esker/v1/command.pb.h"
#include "esker/v1/file.pb.h"
#include "esker/v1/image.pb.h"
#include "esker/v1/sandbox.pb.h"
#include "executor/node.h"
#include "snapshotter/index.h"

namespace esker::gateway {

google::protobuf::Timestamp ToTimestamp(int64_t nanos);
v1::Sandbox ToProto(const SandboxInfo& info);
v1::Command ToProto(const CommandInfo& info);
v1::FileInfo ToProto(const InitFileInfo& info);
// `view`: the caller's; the record has no more names than it shows.
v1::Image ToProto(const ImageRecord& record, const ImageView& view);
v1::SandboxMetrics ToProto(const SandboxUsage& usage);
SandboxSpec FromProto(const v1::CreateSandboxRequest& request);
CommandSpec FromProto(const v1::StartCommandRequest& request);

}  // namespace esker::gateway
