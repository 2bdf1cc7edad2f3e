#include "record.h"

#include <bit>
#include <cstdio>

#include "base/wire.h"

namespace esker {
namespace {

constexpr uint32_t kSandboxMagic = 0x31534b45;   // "EKS1"
constexpr uint32_t kCommandMagic = 0x31434b45;   // "EKC1"
constexpr uint32_t kRequestMagic = 0x31524b45;   // "EKR1"
constexpr uint32_t kEventMagic = 0x31454b45;     // "EKE1"
constexpr uint32_t kSnapshotMagic = 0x31504b45;  // "EKP1"
constexpr uint8_t kVersion = 1;

std::string Seal(uint32_t magic, WireWriter body) {
  WireWriter out;
  out.Put(magic);
  out.Put(kVersion);
  out.PutRaw(body.data());
  std::string bytes = out.Take();
  uint32_t crc = Crc32c(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  return bytes;
}

// The body between header and checksum.
Result<std::string_view> Unseal(uint32_t magic, std::string_view bytes, std::string_view what) {
  constexpr size_t kHeader = sizeof(magic) + sizeof(kVersion);
  if (bytes.size() < kHeader + sizeof(uint32_t)) {
    return DataLossError(std::string(what) + " is cut off");
  }
  uint32_t crc;
  std::memcpy(&crc, bytes.data() + bytes.size() - sizeof(crc), sizeof(crc));
  bytes.remove_suffix(sizeof(crc));
  if (crc != Crc32c(bytes.data(), bytes.size())) {
    return DataLossError(std::string(what) + " has a wrong checksum");
  }
  WireReader header(bytes);
  if (header.Get<uint32_t>() != magic) return DataLossError(std::string(what) + " is another kind");
  if (uint8_t version = header.Get<uint8_t>(); version != kVersion) {
    return FailedPreconditionError(std::string(what) + " has version " + std::to_string(version) +
                                   "; this program knows version " + std::to_string(kVersion));
  }
  return bytes.substr(kHeader);
}

void PutDouble(WireWriter& out, double value) { out.Put(std::bit_cast<uint64_t>(value)); }
double GetDouble(WireReader& in) { return std::bit_cast<double>(in.Get<uint64_t>()); }
void PutBool(WireWriter& out, bool value) { out.Put<uint8_t>(value ? 1 : 0); }
bool GetBool(WireReader& in) { return in.Get<uint8_t>() != 0; }

void PutMap(WireWriter& out, const std::map<std::string, std::string>& map) {
  out.Put<uint32_t>(static_cast<uint32_t>(map.size()));
  for (const auto& [key, value] : map) {
    out.PutBytes(key);
    out.PutBytes(value);
  }
}
std::map<std::string, std::string> GetMap(WireReader& in) {
  std::map<std::string, std::string> map;
  for (uint32_t n = in.GetCount(8); n > 0 && in.ok(); --n) {
    std::string key = in.GetString();
    map[std::move(key)] = in.GetString();
  }
  return map;
}

void PutList(WireWriter& out, const std::vector<std::string>& list) {
  out.Put<uint32_t>(static_cast<uint32_t>(list.size()));
  for (const std::string& item : list) out.PutBytes(item);
}
std::vector<std::string> GetList(WireReader& in) {
  std::vector<std::string> list;
  for (uint32_t n = in.GetCount(4); n > 0 && in.ok(); --n) list.push_back(in.GetString());
  return list;
}

void PutResources(WireWriter& out, const SandboxResources& r) {
  PutDouble(out, r.cpu);
  out.Put(r.memory_bytes);
  out.Put(r.disk_bytes);
  out.Put(r.pids);
}
SandboxResources GetResources(WireReader& in) {
  SandboxResources r;
  r.cpu = GetDouble(in);
  r.memory_bytes = in.Get<uint64_t>();
  r.disk_bytes = in.Get<uint64_t>();
  r.pids = in.Get<uint64_t>();
  return r;
}

void PutConfig(WireWriter& out, const ImageConfig& config) {
  PutList(out, config.env);
  out.PutBytes(config.user);
  out.PutBytes(config.working_dir);
  PutList(out, config.entrypoint);
  PutList(out, config.cmd);
  PutMap(out, config.labels);
  out.PutBytes(config.stop_signal);
  PutList(out, config.volumes);
  out.PutBytes(config.architecture);
  out.PutBytes(config.os);
}
ImageConfig GetConfig(WireReader& in) {
  ImageConfig config;
  config.env = GetList(in);
  config.user = in.GetString();
  config.working_dir = in.GetString();
  config.entrypoint = GetList(in);
  config.cmd = GetList(in);
  config.labels = GetMap(in);
  config.stop_signal = in.GetString();
  config.volumes = GetList(in);
  config.architecture = in.GetString();
  config.os = in.GetString();
  return config;
}

void PutCommandSpec(WireWriter& out, const CommandSpec& spec) {
  PutList(out, spec.argv);
  out.PutBytes(spec.shell);
  PutMap(out, spec.envs);
  out.PutBytes(spec.cwd);
  out.PutBytes(spec.user);
  out.PutBytes(spec.tag);
  PutBool(out, spec.want_stdin);
  PutBool(out, spec.pty);
  PutBool(out, spec.background);
  out.Put(spec.rows);
  out.Put(spec.cols);
  out.Put(spec.timeout_ms);
  out.Put(spec.output_limit);
}
CommandSpec GetCommandSpec(WireReader& in) {
  CommandSpec spec;
  spec.argv = GetList(in);
  spec.shell = in.GetString();
  spec.envs = GetMap(in);
  spec.cwd = in.GetString();
  spec.user = in.GetString();
  spec.tag = in.GetString();
  spec.want_stdin = GetBool(in);
  spec.pty = GetBool(in);
  spec.background = GetBool(in);
  spec.rows = in.Get<uint16_t>();
  spec.cols = in.Get<uint16_t>();
  spec.timeout_ms = in.Get<int64_t>();
  spec.output_limit = in.Get<uint64_t>();
  return spec;
}

SandboxState StateOf(SandboxPhase phase) {
  switch (phase) {
    case SandboxPhase::kCreating:
      return SandboxState::kCreating;
    case SandboxPhase::kPaused:
      return SandboxState::kPaused;
    case SandboxPhase::kEnded:
      return SandboxState::kEnded;
    case SandboxPhase::kRunning:
    case SandboxPhase::kEnding:
      break;
  }
  return SandboxState::kRunning;
}

std::string Join(std::string_view prefix, std::string_view a, std::string_view b) {
  std::string key(prefix);
  key.append(a).append("/").append(b);
  return key;
}

}  // namespace

std::string SandboxRecord::Serialise() const {
  WireWriter out;
  out.PutBytes(info.id);
  out.Put<uint8_t>(static_cast<uint8_t>(phase));
  out.PutDigest(info.image.digest);
  out.PutBytes(info.image_name);
  PutResources(out, info.resources);
  PutMap(out, info.metadata);
  PutMap(out, info.envs);
  out.PutBytes(info.project);
  out.PutBytes(info.job);
  out.PutBytes(info.hostname);
  out.Put(info.created_ns);
  out.Put(info.ended_ns);
  out.Put(info.expires_ns);
  out.Put(info.idle_ttl_ms);
  out.PutBytes(info.end_reason);
  out.PutBytes(info.end_message);
  PutConfig(out, info.config);
  out.Put(range);
  out.Put<int32_t>(init.pid);
  out.Put(init.pidfd_inode);
  out.PutBytes(boot_id);
  for (const std::string& key : request_keys) out.PutBytes(key);
  return Seal(kSandboxMagic, std::move(out));
}

Result<SandboxRecord> SandboxRecord::Parse(std::string_view bytes) {
  ESKER_ASSIGN_OR_RETURN(std::string_view body, Unseal(kSandboxMagic, bytes, "sandbox record"));
  WireReader in(body);
  SandboxRecord record;
  record.info.id = in.GetString();
  uint8_t phase = in.Get<uint8_t>();
  record.info.image.digest = in.GetDigest();
  record.info.image_name = in.GetString();
  record.info.resources = GetResources(in);
  record.info.metadata = GetMap(in);
  record.info.envs = GetMap(in);
  record.info.project = in.GetString();
  record.info.job = in.GetString();
  record.info.hostname = in.GetString();
  record.info.created_ns = in.Get<int64_t>();
  record.info.ended_ns = in.Get<int64_t>();
  record.info.expires_ns = in.Get<int64_t>();
  record.info.idle_ttl_ms = in.Get<int64_t>();
  record.info.end_reason = in.GetString();
  record.info.end_message = in.GetString();
  record.info.config = GetConfig(in);
  record.range = in.Get<uint32_t>();
  record.init.pid = in.Get<int32_t>();
  record.init.pidfd_inode = in.Get<uint64_t>();
  record.boot_id = in.GetString();
  for (std::string& key : record.request_keys) key = in.GetString();
  ESKER_RETURN_IF_ERROR(in.Finish("sandbox record"));
  if (phase < 1 || phase > 5) {
    return DataLossError("sandbox record: no phase " + std::to_string(phase));
  }
  record.phase = static_cast<SandboxPhase>(phase);
  record.info.state = StateOf(record.phase);
  return record;
}

std::string CommandRecord::Serialise() const {
  WireWriter out;
  out.PutBytes(info.sandbox_id);
  out.PutBytes(info.id);
  out.PutBytes(info.spec.request_id);
  PutCommandSpec(out, info.spec);
  const InitCommandStatus& status = info.status;
  out.Put<uint8_t>(static_cast<uint8_t>(status.state));
  out.Put(status.pid);
  out.Put(status.exit_code);
  out.Put(status.signal);
  PutBool(out, status.timed_out);
  out.PutBytes(status.start_error);
  out.Put(status.started_ns);
  out.Put(status.ended_ns);
  PutBool(out, info.oom_killed);
  out.Put(info.stdout_bytes);
  out.Put(info.stderr_bytes);
  out.PutBytes(info.end_reason);
  PutBool(out, started);
  out.Put(stdin_accepted);
  PutBool(out, stdin_closed);
  return Seal(kCommandMagic, std::move(out));
}

Result<CommandRecord> CommandRecord::Parse(std::string_view bytes) {
  ESKER_ASSIGN_OR_RETURN(std::string_view body, Unseal(kCommandMagic, bytes, "command record"));
  WireReader in(body);
  CommandRecord record;
  CommandInfo& info = record.info;
  info.sandbox_id = in.GetString();
  info.id = in.GetString();
  std::string request_id = in.GetString();
  info.spec = GetCommandSpec(in);
  info.spec.request_id = std::move(request_id);
  info.status.command_id = info.id;
  uint8_t state = in.Get<uint8_t>();
  info.status.pid = in.Get<int32_t>();
  info.status.exit_code = in.Get<int32_t>();
  info.status.signal = in.Get<int32_t>();
  info.status.timed_out = GetBool(in);
  info.status.start_error = in.GetString();
  info.status.started_ns = in.Get<int64_t>();
  info.status.ended_ns = in.Get<int64_t>();
  info.oom_killed = GetBool(in);
  info.stdout_bytes = in.Get<uint64_t>();
  info.stderr_bytes = in.Get<uint64_t>();
  info.end_reason = in.GetString();
  record.started = GetBool(in);
  record.stdin_accepted = in.Get<uint64_t>();
  record.stdin_closed = GetBool(in);
  ESKER_RETURN_IF_ERROR(in.Finish("command record"));
  if (state > 1) return DataLossError("command record: no state " + std::to_string(state));
  info.status.state = static_cast<InitCommandState>(state);
  return record;
}

std::string RequestRecord::Serialise() const {
  WireWriter out;
  out.Put(time_ns);
  out.PutDigest(asked);
  PutBool(out, answered);
  out.PutBytes(answer);
  return Seal(kRequestMagic, std::move(out));
}

Result<RequestRecord> RequestRecord::Parse(std::string_view bytes) {
  ESKER_ASSIGN_OR_RETURN(std::string_view body, Unseal(kRequestMagic, bytes, "request record"));
  WireReader in(body);
  RequestRecord record;
  record.time_ns = in.Get<int64_t>();
  record.asked = in.GetDigest();
  record.answered = GetBool(in);
  record.answer = in.GetString();
  ESKER_RETURN_IF_ERROR(in.Finish("request record"));
  return record;
}

std::string SerialiseEvent(const SandboxEvent& event) {
  WireWriter out;
  out.Put(event.time_ns);
  out.PutBytes(event.what);
  out.PutBytes(event.detail);
  return Seal(kEventMagic, std::move(out));
}

Result<SandboxEvent> ParseEvent(std::string_view bytes) {
  ESKER_ASSIGN_OR_RETURN(std::string_view body, Unseal(kEventMagic, bytes, "sandbox event"));
  WireReader in(body);
  SandboxEvent event;
  event.time_ns = in.Get<int64_t>();
  event.what = in.GetString();
  event.detail = in.GetString();
  ESKER_RETURN_IF_ERROR(in.Finish("sandbox event"));
  return event;
}

std::string SerialiseSnapshotInfo(const SnapshotInfo& info) {
  WireWriter out;
  out.PutDigest(info.image.digest);
  out.Put(info.bytes_stored);
  out.Put(info.bytes_deduplicated);
  out.Put(info.frozen_us);
  return Seal(kSnapshotMagic, std::move(out));
}

Result<SnapshotInfo> ParseSnapshotInfo(std::string_view bytes) {
  ESKER_ASSIGN_OR_RETURN(std::string_view body, Unseal(kSnapshotMagic, bytes, "snapshot answer"));
  WireReader in(body);
  SnapshotInfo info;
  info.image.digest = in.GetDigest();
  info.bytes_stored = in.Get<uint64_t>();
  info.bytes_deduplicated = in.Get<uint64_t>();
  info.frozen_us = in.Get<int64_t>();
  ESKER_RETURN_IF_ERROR(in.Finish("snapshot answer"));
  return info;
}

Digest HashOf(const SandboxSpec& spec) {
  WireWriter out;
  out.PutBytes(spec.image);
  PutResources(out, spec.resources);
  out.Put(spec.ttl_ms);
  out.Put(spec.idle_ttl_ms);
  PutMap(out, spec.metadata);
  PutMap(out, spec.envs);
  out.PutBytes(spec.project);
  out.PutBytes(spec.job);
  out.PutBytes(spec.hostname);
  return Sha256::Of(out.data());
}

Digest HashOf(const CommandSpec& spec) {
  WireWriter out;
  PutCommandSpec(out, spec);
  return Sha256::Of(out.data());
}

std::string SandboxKey(std::string_view sandbox) {
  return std::string(kSandboxPrefix).append(sandbox);
}
std::string CommandKey(std::string_view sandbox, std::string_view command) {
  return Join(kCommandPrefix, sandbox, command);
}
std::string EventKey(std::string_view sandbox, uint64_t sequence) {
  char number[17];
  std::snprintf(number, sizeof(number), "%016lx", sequence);
  return Join(kEventPrefix, sandbox, number);
}
std::string RequestKey(std::string_view kind, std::string_view scope, std::string_view request) {
  return Join(kRequestPrefix, kind, std::string(scope).append("/").append(request));
}

}  // namespace esker
