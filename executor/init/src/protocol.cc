#include "protocol.h"

#include <cstring>

namespace esker::init_protocol {
namespace {

void PutList(WireWriter& writer, const std::vector<std::string>& list) {
  writer.Put<uint32_t>(static_cast<uint32_t>(list.size()));
  for (const std::string& each : list) writer.PutBytes(each);
}

std::vector<std::string> GetList(WireReader& reader) {
  std::vector<std::string> out;
  uint32_t count = reader.GetCount(sizeof(uint32_t));
  out.reserve(count);
  for (uint32_t i = 0; i < count; ++i) out.push_back(reader.GetString());
  return out;
}

}  // namespace

WireWriter Begin(Type type, uint32_t request) {
  WireWriter writer;
  writer.Put<uint8_t>(static_cast<uint8_t>(type));
  writer.Put<uint32_t>(request);
  return writer;
}

Header ReadHeader(WireReader& reader) {
  Header header;
  header.type = static_cast<Type>(reader.Get<uint8_t>());
  header.request = reader.Get<uint32_t>();
  return header;
}

void Put(WireWriter& writer, const InitCommandSpec& spec) {
  writer.PutBytes(spec.command_id);
  PutList(writer, spec.argv);
  writer.PutBytes(spec.shell);
  PutList(writer, spec.env);
  writer.PutBytes(spec.cwd);
  writer.PutBytes(spec.user);
  writer.Put<uint8_t>(static_cast<uint8_t>(spec.want_stdin ? 1 : 0));
  writer.Put<uint8_t>(static_cast<uint8_t>(spec.pty ? 1 : 0));
  writer.Put<uint16_t>(spec.rows);
  writer.Put<uint16_t>(spec.cols);
  writer.Put<int64_t>(spec.timeout_ms);
}

InitCommandSpec GetSpec(WireReader& reader) {
  InitCommandSpec spec;
  spec.command_id = reader.GetString();
  spec.argv = GetList(reader);
  spec.shell = reader.GetString();
  spec.env = GetList(reader);
  spec.cwd = reader.GetString();
  spec.user = reader.GetString();
  spec.want_stdin = reader.Get<uint8_t>() != 0;
  spec.pty = reader.Get<uint8_t>() != 0;
  spec.rows = reader.Get<uint16_t>();
  spec.cols = reader.Get<uint16_t>();
  spec.timeout_ms = reader.Get<int64_t>();
  return spec;
}

void Put(WireWriter& writer, const InitCommandStatus& status) {
  writer.PutBytes(status.command_id);
  writer.Put<uint8_t>(static_cast<uint8_t>(status.state));
  writer.Put<int32_t>(status.pid);
  writer.Put<int32_t>(status.exit_code);
  writer.Put<int32_t>(status.signal);
  writer.Put<uint8_t>(static_cast<uint8_t>(status.timed_out ? 1 : 0));
  writer.PutBytes(status.start_error);
  writer.Put<int64_t>(status.started_ns);
  writer.Put<int64_t>(status.ended_ns);
}

InitCommandStatus GetStatus(WireReader& reader) {
  InitCommandStatus status;
  status.command_id = reader.GetString();
  status.state =
      reader.Get<uint8_t>() == 0 ? InitCommandState::kRunning : InitCommandState::kExited;
  status.pid = reader.Get<int32_t>();
  status.exit_code = reader.Get<int32_t>();
  status.signal = reader.Get<int32_t>();
  status.timed_out = reader.Get<uint8_t>() != 0;
  status.start_error = reader.GetString();
  status.started_ns = reader.Get<int64_t>();
  status.ended_ns = reader.Get<int64_t>();
  return status;
}

void Put(WireWriter& writer, const InitFileRequest& request) {
  writer.Put<uint8_t>(static_cast<uint8_t>(request.op));
  writer.PutBytes(request.user);
  writer.PutBytes(request.path);
  writer.PutBytes(request.to_path);
  writer.Put<uint32_t>(request.mode);
  writer.Put<uint8_t>(static_cast<uint8_t>(request.parents ? 1 : 0));
  writer.Put<uint8_t>(static_cast<uint8_t>(request.recursive ? 1 : 0));
  writer.Put<uint64_t>(request.offset);
  writer.Put<uint64_t>(request.length);
  writer.Put<uint32_t>(request.depth);
  writer.Put<uint32_t>(request.limit);
}

InitFileRequest GetFileRequest(WireReader& reader) {
  InitFileRequest request;
  request.op = static_cast<InitFileOp>(reader.Get<uint8_t>());
  request.user = reader.GetString();
  request.path = reader.GetString();
  request.to_path = reader.GetString();
  request.mode = reader.Get<uint32_t>();
  request.parents = reader.Get<uint8_t>() != 0;
  request.recursive = reader.Get<uint8_t>() != 0;
  request.offset = reader.Get<uint64_t>();
  request.length = reader.Get<uint64_t>();
  request.depth = reader.Get<uint32_t>();
  request.limit = reader.Get<uint32_t>();
  return request;
}

void Put(WireWriter& writer, const InitFileInfo& info) {
  writer.PutBytes(info.name);
  writer.PutBytes(info.path);
  writer.Put<uint8_t>(info.type);
  writer.Put<uint32_t>(info.mode);
  writer.Put<uint32_t>(info.uid);
  writer.Put<uint32_t>(info.gid);
  writer.PutBytes(info.user);
  writer.PutBytes(info.group);
  writer.Put<uint64_t>(info.size);
  writer.Put<int64_t>(info.mtime_ns);
  writer.PutBytes(info.link_target);
}

InitFileInfo GetFileInfo(WireReader& reader) {
  InitFileInfo info;
  info.name = reader.GetString();
  info.path = reader.GetString();
  info.type = reader.Get<uint8_t>();
  info.mode = reader.Get<uint32_t>();
  info.uid = reader.Get<uint32_t>();
  info.gid = reader.Get<uint32_t>();
  info.user = reader.GetString();
  info.group = reader.GetString();
  info.size = reader.Get<uint64_t>();
  info.mtime_ns = reader.Get<int64_t>();
  info.link_target = reader.GetString();
  return info;
}

void PutTail(WireWriter& writer, const InitFileResult& result) {
  writer.Put<int32_t>(result.error_number);
  writer.PutBytes(result.error_path);
  writer.Put<uint8_t>(static_cast<uint8_t>(result.truncated ? 1 : 0));
  writer.Put<uint64_t>(result.bytes);
}

InitFileResult GetTail(WireReader& reader) {
  InitFileResult result;
  result.error_number = reader.Get<int32_t>();
  result.error_path = reader.GetString();
  result.truncated = reader.Get<uint8_t>() != 0;
  result.bytes = reader.Get<uint64_t>();
  return result;
}

void PutError(WireWriter& writer, const Status& status) {
  writer.Put<int32_t>(static_cast<int32_t>(status.code()));
  writer.Put<int32_t>(status.error_number());
  writer.PutBytes(status.message());
}

Status GetError(WireReader& reader) {
  auto code = static_cast<Code>(reader.Get<int32_t>());
  int error = reader.Get<int32_t>();
  std::string message = reader.GetString();
  if (code == Code::kOk) return OkStatus();
  if (error <= 0) return Status(code, std::move(message));
  // FromErrno puts the errno's text behind the message again.
  char buffer[128];
  std::string text = std::string(": ") + ::strerror_r(error, buffer, sizeof(buffer));
  if (message.ends_with(text)) message.resize(message.size() - text.size());
  return Status::FromErrno(error, message).WithCode(code);
}

}  // namespace esker::init_protocol
