#include "convert.h"

#include <nlohmann/json.hpp>

namespace esker::gateway {

google::protobuf::Timestamp ToTimestamp(int64_t nanos) {
  google::protobuf::Timestamp stamp;
  stamp.set_seconds(nanos / 1'000'000'000);
  stamp.set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return stamp;
}

v1::Sandbox ToProto(const SandboxInfo& info) {
  v1::Sandbox out;
  out.set_id(info.id);
  out.set_image(info.image.ToHex());
  out.set_image_name(info.image_name);
  out.set_tier(v1::TIER_CONTAINER);
  out.set_state(static_cast<v1::SandboxState>(info.state));
  out.mutable_resources()->set_cpu(info.resources.cpu);
  out.mutable_resources()->set_memory_mb(static_cast<uint32_t>(info.resources.memory_bytes >> 20));
  out.mutable_resources()->set_disk_mb(static_cast<uint32_t>(info.resources.disk_bytes >> 20));
  out.mutable_resources()->set_pids(static_cast<uint32_t>(info.resources.pids));
  for (auto& [key, value] : info.metadata) (*out.mutable_metadata())[key] = value;
  out.set_project(info.project);
  out.set_job(info.job);
  *out.mutable_created() = ToTimestamp(info.created_ns);
  if (info.expires_ns != 0) *out.mutable_expires() = ToTimestamp(info.expires_ns);
  out.set_idle_ttl_ms(info.idle_ttl_ms);
  out.set_end_reason(info.end_reason);
  out.set_end_message(info.end_message);
  if (info.ended_ns != 0) *out.mutable_ended() = ToTimestamp(info.ended_ns);
  return out;
}

v1::Command ToProto(const CommandInfo& info) {
  v1::Command out;
  out.set_sandbox_id(info.sandbox_id);
  out.set_id(info.id);
  out.set_shell(info.spec.shell);
  for (const std::string& arg : info.spec.argv) out.add_argv(arg);
  out.set_tag(info.spec.tag);
  out.set_background(info.spec.background);
  out.set_running(info.status.state == InitCommandState::kRunning && info.end_reason.empty());
  out.set_pid(info.status.pid);
  *out.mutable_started() = ToTimestamp(info.status.started_ns);
  out.set_user(info.spec.user);
  out.set_cwd(info.spec.cwd);
  out.set_pty(info.spec.pty);
  if (!out.running()) {
    *out.mutable_ended() = ToTimestamp(info.status.ended_ns);
    v1::Exit* exit = out.mutable_exit();
    exit->set_exit_code(info.status.exit_code);
    exit->set_signal(info.status.signal);
    exit->set_timed_out(info.status.timed_out);
    exit->set_oom_killed(info.oom_killed);
    exit->set_error(info.status.start_error);
    exit->set_stdout_bytes(info.stdout_bytes);
    exit->set_stderr_bytes(info.stderr_bytes);
    exit->set_reason(info.end_reason);
  }
  return out;
}

v1::FileInfo ToProto(const InitFileInfo& info) {
  v1::FileInfo out;
  out.set_name(info.name);
  out.set_path(info.path);
  switch (info.type) {
    case 'f':
      out.set_type(v1::FILE_TYPE_FILE);
      break;
    case 'd':
      out.set_type(v1::FILE_TYPE_DIR);
      break;
    case 'l':
      out.set_type(v1::FILE_TYPE_SYMLINK);
      break;
    default:
      out.set_type(v1::FILE_TYPE_OTHER);
  }
  out.set_mode(info.mode & 07777);
  out.set_uid(info.uid);
  out.set_gid(info.gid);
  out.set_user(info.user);
  out.set_group(info.group);
  out.set_size(info.size);
  out.set_mtime_ns(info.mtime_ns);
  out.set_symlink_target(info.link_target);
  return out;
}

namespace {

void AddNames(const ImageRecord& record, const ImageView& view, v1::Image* out) {
  for (const std::string& full : record.tags) {
    v1::ImageName* name = out->add_names();
    name->set_name(std::string(NameWithoutProject(full)));
    name->set_project(std::string(ProjectOfName(full)));
    if (auto job = record.jobs.find(full); job != record.jobs.end()) name->set_job(job->second);
    const bool shared = name->project().empty();
    name->set_visibility(shared ? v1::VISIBILITY_SHARED : v1::VISIBILITY_PROJECT);
    out->add_tags(view.all ? full : name->name());
    if (shared || out->visibility() == v1::VISIBILITY_UNSPECIFIED) {
      out->set_visibility(name->visibility());
    }
    if (!shared && out->project().empty()) {
      out->set_project(name->project());
      out->set_job(name->job());
    }
  }
}

// A snapshot is its project's, whatever names it has.
void AddOwner(const ImageRecord& record, v1::Image* out) {
  if (record.manifest.kind != "snapshot") return;
  auto origin = [&](const char* key) {
    auto it = record.manifest.origin.find(key);
    return it == record.manifest.origin.end() ? std::string() : it->second;
  };
  out->set_project(origin("project"));
  out->set_job(origin("job"));
  if (out->visibility() == v1::VISIBILITY_UNSPECIFIED && !out->project().empty()) {
    out->set_visibility(v1::VISIBILITY_PROJECT);
  }
}

}  // namespace

v1::Image ToProto(const ImageRecord& record, const ImageView& view) {
  v1::Image out;
  out.set_id(record.id.ToHex());
  out.set_kind(record.manifest.kind);
  AddNames(record, view, &out);
  AddOwner(record, &out);
  for (const ImageLayer& layer : record.manifest.layers) {
    v1::Layer* l = out.add_layers();
    l->set_metadata(layer.metadata.ToHex());
    if (layer.has_data()) l->set_data(layer.data.ToHex());
    l->set_metadata_bytes(layer.metadata_bytes);
    l->set_data_bytes(layer.data_bytes);
    l->set_source_digest(layer.source_digest);
    l->set_diff_id(layer.diff_id);
  }
  const ImageConfig& config = record.manifest.config;
  nlohmann::json json = {{"env", config.env},
                         {"user", config.user},
                         {"working_dir", config.working_dir},
                         {"entrypoint", config.entrypoint},
                         {"cmd", config.cmd},
                         {"labels", config.labels},
                         {"stop_signal", config.stop_signal},
                         {"volumes", config.volumes},
                         {"architecture", config.architecture},
                         {"os", config.os}};
  if (!config.more.empty()) {
    json["more"] = nlohmann::json::parse(config.more, nullptr, /*allow_exceptions=*/false);
    if (json["more"].is_object()) json["more"].erase("history");  // long, and of no use here
  }
  out.set_config_json(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  out.set_parent(record.manifest.parent);
  for (auto& [key, value] : record.manifest.origin) (*out.mutable_origin())[key] = value;
  *out.mutable_published() = ToTimestamp(record.published_ns);
  out.set_plain_bytes(record.plain_bytes);
  return out;
}

v1::SandboxMetrics ToProto(const SandboxUsage& usage) {
  v1::SandboxMetrics out;
  out.set_memory_bytes(usage.cgroup.memory_bytes);
  out.set_memory_peak_bytes(usage.cgroup.memory_peak_bytes);
  out.set_memory_limit_bytes(usage.cgroup.memory_limit_bytes);
  out.set_oom_kills(usage.cgroup.oom_kills);
  out.set_pids(usage.cgroup.pids);
  out.set_pids_limit_hits(usage.cgroup.pids_limit_hits);
  out.set_cpu_nanos(usage.cgroup.cpu_nanos);
  out.set_cpu_throttled_nanos(usage.cgroup.cpu_throttled_nanos);
  out.set_disk_bytes(usage.disk_bytes);
  out.set_disk_limit_bytes(usage.disk_limit_bytes);
  return out;
}

SandboxSpec FromProto(const v1::CreateSandboxRequest& request) {
  SandboxSpec spec;
  spec.image = request.image();
  spec.resources.cpu = request.resources().cpu();
  spec.resources.memory_bytes = uint64_t{request.resources().memory_mb()} << 20;
  spec.resources.disk_bytes = uint64_t{request.resources().disk_mb()} << 20;
  spec.resources.pids = request.resources().pids();
  spec.ttl_ms = request.ttl_ms();
  spec.idle_ttl_ms = request.idle_ttl_ms();
  spec.create_timeout_ms = request.create_timeout_ms();
  spec.metadata.insert(request.metadata().begin(), request.metadata().end());
  spec.envs.insert(request.envs().begin(), request.envs().end());
  if (!request.project().empty()) spec.project = request.project();
  spec.job = request.job();
  spec.hostname = request.hostname();
  spec.idempotency_key = request.idempotency_key();
  spec.request_id = request.request_id();
  return spec;
}

CommandSpec FromProto(const v1::StartCommandRequest& request) {
  CommandSpec spec;
  spec.request_id = request.request_id();
  spec.argv.assign(request.argv().begin(), request.argv().end());
  spec.shell = request.shell();
  spec.envs.insert(request.envs().begin(), request.envs().end());
  spec.cwd = request.cwd();
  spec.user = request.user();
  spec.tag = request.tag();
  spec.want_stdin = request.stdin();
  spec.background = request.background();
  spec.pty = request.has_pty();
  if (request.pty().rows() != 0) spec.rows = static_cast<uint16_t>(request.pty().rows());
  if (request.pty().cols() != 0) spec.cols = static_cast<uint16_t>(request.pty().cols());
  spec.timeout_ms = request.timeout_ms();
  spec.output_limit = request.output_limit();
  return spec;
}

}  // namespace esker::gateway
