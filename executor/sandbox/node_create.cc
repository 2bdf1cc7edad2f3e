// Create: from an image's name to a sandbox that runs commands, or nothing.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>

#include "base/failpoint.h"
#include "base/id.h"
#include "base/io.h"
#include "base/log.h"
#include "base/scope_guard.h"
#include "base/socket.h"
#include "node_impl.h"

namespace esker {
namespace {

constexpr int64_t kDefaultCreateTimeoutMs = 60'000;
constexpr int64_t kMaxTtlMs = 366LL * 24 * 3600 * 1000;
constexpr uint64_t kLeastMemory = 8u << 20;
constexpr size_t kMaxMapBytes = 64u << 10;

Status CheckMap(std::string_view what, const std::map<std::string, std::string>& map) {
  size_t bytes = 0;
  for (const auto& [key, value] : map) {
    if (key.empty()) return InvalidArgumentError(std::string(what) + ": an empty name");
    bytes += key.size() + value.size();
  }
  if (bytes > kMaxMapBytes) {
    return InvalidArgumentError(std::string(what) + " has " + std::to_string(bytes) +
                                " bytes, more than " + std::to_string(kMaxMapBytes));
  }
  return OkStatus();
}

Status CheckEnvs(const std::map<std::string, std::string>& envs) {
  for (const auto& [name, value] : envs) {
    if (name.find('=') != name.npos || name.find('\0') != name.npos ||
        value.find('\0') != value.npos) {
      return InvalidArgumentError("environment variable '" + name +
                                  "': no '=' in names, no NUL anywhere");
    }
  }
  return CheckMap("environment", envs);
}

Status CheckHostname(const std::string& name) {
  bool good = name.size() <= 63 && name[0] != '-' && name[0] != '.';
  for (char c : name)
    good = good && (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.');
  if (good) return OkStatus();
  return InvalidArgumentError(
      "host name '" + name + "': at most 63 letters, digits, '-' and '.', first one no '-' or '.'");
}

Status CheckSpec(const SandboxSpec& spec) {
  if (spec.image.empty()) return InvalidArgumentError("no image named");
  ESKER_RETURN_IF_ERROR(CheckIdentifier("project", spec.project));
  if (!spec.job.empty()) ESKER_RETURN_IF_ERROR(CheckIdentifier("job", spec.job));
  if (!spec.hostname.empty()) ESKER_RETURN_IF_ERROR(CheckHostname(spec.hostname));
  ESKER_RETURN_IF_ERROR(CheckMap("metadata", spec.metadata));
  ESKER_RETURN_IF_ERROR(CheckEnvs(spec.envs));
  if (spec.ttl_ms < -1 || spec.ttl_ms > kMaxTtlMs || spec.idle_ttl_ms < -1 ||
      spec.idle_ttl_ms > kMaxTtlMs) {
    return InvalidArgumentError("a time to live is -1 (none), 0 (default) or up to 366 days");
  }
  if (spec.create_timeout_ms < 0)
    return InvalidArgumentError("create_timeout must not be negative");
  const SandboxResources& r = spec.resources;
  if (!std::isfinite(r.cpu) || r.cpu < 0 || (r.cpu > 0 && r.cpu < 0.01)) {
    return InvalidArgumentError("cpu: 0 (no limit) or at least 0.01 cores");
  }
  if (r.memory_bytes != 0 && r.memory_bytes < kLeastMemory) {
    return InvalidArgumentError("memory: at least " + std::to_string(kLeastMemory >> 20) + " MiB");
  }
  if (spec.request_id.size() > 256 || spec.idempotency_key.size() > 256) {
    return InvalidArgumentError("a request id or idempotency key has at most 256 bytes");
  }
  return OkStatus();
}

int64_t LeftMs(int64_t deadline_ns) {
  return std::max<int64_t>(0, (deadline_ns - Clock::System().MonotonicNanos()) / 1'000'000);
}

Status CheckDeadline(const Sandbox& sandbox, int64_t deadline_ns, std::string_view before) {
  if (sandbox.cancelled) return CancelledError("it was deleted while it was being created");
  if (LeftMs(deadline_ns) > 0) return OkStatus();
  return DeadlineExceededError("the create timeout passed before: " + std::string(before));
}

}  // namespace

Result<SandboxInfo> NodeImpl::Create(const SandboxSpec& spec) {
  ESKER_RETURN_IF_ERROR(CheckSpec(spec));
  int64_t timeout_ms =
      spec.create_timeout_ms == 0 ? kDefaultCreateTimeoutMs : spec.create_timeout_ms;
  int64_t deadline_ns = Clock::System().MonotonicNanos() + timeout_ms * 1'000'000;
  std::vector<std::string> keys;
  if (!spec.request_id.empty()) {
    keys.push_back(RequestKey("create", spec.project, spec.request_id));
  }
  if (!spec.idempotency_key.empty()) {
    keys.push_back(RequestKey("key", spec.project, spec.idempotency_key));
  }
  Digest asked = HashOf(spec);
  ESKER_ASSIGN_OR_RETURN(Requests::Claim claim, requests_.Begin(keys, asked, timeout_ms));
  if (claim.answer) return Get(*claim.answer);
  ScopeGuard give_up([&] { requests_.GiveUp(keys); });
  const int64_t began = Clock::System().MonotonicNanos();
  ScopeGuard failed([&] { ++counters_.create_failures; });
  ESKER_ASSIGN_OR_RETURN(SandboxInfo info, CreateNew(spec, asked, keys, deadline_ns));
  failed.Dismiss();
  ++counters_.creates;
  counters_.create_latency.Add(Clock::System().MonotonicNanos() - began);
  give_up.Dismiss();
  requests_.Answer(keys, info.id, WallNow());
  return info;
}

// A limit beyond what the pool has could not be kept: the pool would be full first, for all.
Result<uint64_t> NodeImpl::ChooseDiskLimit(uint64_t asked) const {
  if (!uppers_->enforces_limit()) {
    if (asked == 0) return uint64_t{0};
    return UnimplementedError("this node cannot hold a sandbox to a disk limit (" +
                              uppers_->kind() + "); leave disk_mb out to go without one");
  }
  ESKER_ASSIGN_OR_RETURN(UpperSpace space, uppers_->Space());
  if (asked == 0) return std::min(options_.default_disk_bytes, space.total / 4);
  if (asked <= space.total) return asked;
  return InvalidArgumentError("disk_mb " + std::to_string(asked >> 20) + " is more than the " +
                              std::to_string(space.total >> 20) +
                              " MiB that this node has for all sandboxes together");
}

Result<SandboxRecord> NodeImpl::PrepareRecord(const SandboxSpec& spec,
                                              const ImageRecord& image) const {
  SandboxRecord record;
  SandboxInfo& info = record.info;
  info.id = "sb-" + node_id_ + "-" + RandomId();
  info.image = image.id;
  info.image_name = spec.image;
  info.resources = spec.resources;
  if (info.resources.memory_bytes == 0) info.resources.memory_bytes = options_.default_memory_bytes;
  if (info.resources.pids == 0) info.resources.pids = options_.default_pids;
  ESKER_ASSIGN_OR_RETURN(info.resources.disk_bytes, ChooseDiskLimit(spec.resources.disk_bytes));
  info.metadata = spec.metadata;
  info.envs = spec.envs;
  info.project = spec.project;
  info.job = spec.job;
  info.hostname = spec.hostname.empty() ? info.id : spec.hostname;
  info.created_ns = WallNow();
  int64_t ttl_ms = spec.ttl_ms == 0 ? options_.default_ttl_ms : spec.ttl_ms;
  info.expires_ns = ttl_ms > 0 ? info.created_ns + ttl_ms * 1'000'000 : 0;
  info.idle_ttl_ms = std::max<int64_t>(0, spec.idle_ttl_ms);
  info.config = image.manifest.config;
  record.boot_id = BootId();
  return record;
}

Status NodeImpl::Admit(SandboxRecord record, SandboxPtr* out) {
  std::lock_guard lock(mutex_);
  if (draining_) return UnavailableError("the node is being drained; create it elsewhere");
  if (live_ >= options_.max_sandboxes) {
    return ResourceExhaustedError("the node has " + std::to_string(live_) + " of at most " +
                                  std::to_string(options_.max_sandboxes) +
                                  " sandboxes; try again when some have ended");
  }
  ++live_;
  *out = std::make_shared<Sandbox>(*pool_, std::move(record));
  sandboxes_[(*out)->id] = *out;
  return OkStatus();
}

Result<SandboxInfo> NodeImpl::CreateNew(const SandboxSpec& spec, const Digest& asked,
                                        const std::vector<std::string>& keys, int64_t deadline_ns) {
  const ImageView view{spec.project, spec.any_image};
  ESKER_ASSIGN_OR_RETURN(ImageRecord image, index_.ResolveImage(spec.image, view));
  ESKER_ASSIGN_OR_RETURN(SandboxRecord record, PrepareRecord(spec, image));
  for (size_t i = 0; i < keys.size(); ++i) record.request_keys[i] = keys[i];
  if (!building_.try_acquire_for(std::chrono::milliseconds(LeftMs(deadline_ns)))) {
    return ResourceExhaustedError("the node is busy creating other sandboxes; try again shortly");
  }
  ScopeGuard built([this] { building_.release(); });

  SandboxPtr sandbox;
  ESKER_RETURN_IF_ERROR(Admit(std::move(record), &sandbox));
  ESKER_ASSIGN_OR_RETURN(Strand::Turn turn, EnterStrand(*sandbox));
  Result<uint32_t> range = ranges_.Take();
  DbBatch requests;
  for (const std::string& key : keys) {
    RequestRecord request{WallNow(), asked, true, sandbox->id};
    requests.Put(key, request.Serialise());
  }
  Status status = range.ok() ? OkStatus() : range.status();
  if (status.ok()) {
    sandbox->has_range = true;
    status = Record(
        *sandbox, [&](SandboxRecord& r) { r.range = *range; }, "CREATING",
        "image=" + image.id.ToHex(), std::move(requests),
        // Nobody was told of it yet, and nothing of it outlives the machine; RUNNING syncs this
        // too.
        NodeDb::Durability::kSurvivesProcess);
  }
  if (status.ok()) status = Build(*sandbox, image, spec, deadline_ns);
  if (status.ok()) status = ConnectInit(sandbox, deadline_ns);
  if (status.ok()) status = HitFailPoint("node.create.built");
  if (status.ok() && sandbox->cancelled) status = CheckDeadline(*sandbox, deadline_ns, "the end");
  if (status.ok()) {
    auto run = [](SandboxRecord& r) {
      r.phase = SandboxPhase::kRunning;
      r.info.state = SandboxState::kRunning;
    };
    status = Record(*sandbox, run, "RUNNING", "");
  }
  if (status.ok()) status = HitFailPoint("node.create.running");
  if (status.ok()) {
    sandbox->Touch();
    return sandbox->Info();
  }
  Result<bool> undone = End(sandbox, "CREATE_FAILED", status.ToString());
  if (!undone.ok()) {
    LogError("undo_create", {{"sandbox", sandbox->id}, {"cause", undone.status().ToString()}});
  }
  return std::move(status).Wrap("create sandbox " + sandbox->id);
}

Status NodeImpl::Build(Sandbox& sandbox, const ImageRecord& image, const SandboxSpec& spec,
                       int64_t deadline_ns) {
  (void)spec;
  ESKER_FAILPOINT("node.create.recorded");
  ESKER_ASSIGN_OR_RETURN(sandbox.lease, index_.LeaseImage(image.id, "sandbox " + sandbox.id));
  ESKER_ASSIGN_OR_RETURN(ContainerHandle container, StartContainer(sandbox, image, deadline_ns));
  // Its own record is written once more when it runs; until then a restart finds it by the keeper.
  std::lock_guard lock(sandbox.mutex);
  sandbox.record.init = container.init;
  return OkStatus();
}

// Topmost first, as the keeper wants them.
Result<std::vector<KeeperLayer>> NodeImpl::PrepareLayers(const std::string& id,
                                                         const ImageRecord& image) {
  const std::vector<ImageLayer>& layers = image.manifest.layers;
  auto begin_profile = [&] {
    std::vector<BlobId> served;
    bool all_served = true;
    for (const ImageLayer& layer : layers) {
      if (!layer.has_data()) continue;
      if (layers_->IsComplete(layer)) {
        all_served = false;
      } else {
        served.push_back(layer.data);
      }
    }
    profiler_->Created(id, image.id, std::move(served), all_served);
  };
  ESKER_ASSIGN_OR_RETURN(std::vector<LocalLayer> local, layers_->EnsureAll(layers, begin_profile));
  std::vector<KeeperLayer> out;
  for (auto layer = local.rbegin(); layer != local.rend(); ++layer) {
    out.push_back({.metadata_path = layer->metadata_path,
                   .data_blob = layer->data_blob,
                   .complete_path = layer->data_complete ? layer->data_path : ""});
  }
  return out;
}

Result<ContainerHandle> NodeImpl::StartContainer(Sandbox& sandbox, const ImageRecord& image,
                                                 int64_t deadline_ns) {
  SandboxRecord record = sandbox.Copy();
  ContainerSpec spec;
  spec.sandbox_id = sandbox.id;
  spec.range = record.range;
  spec.hostname = record.info.hostname.substr(0, 63);
  if (image.manifest.layers.empty()) {
    return InvalidArgumentError("image " + record.info.image_name + " has no layers");
  }
  std::shared_lock layers_lock(layers_in_use_);
  ESKER_RETURN_IF_ERROR(CheckDeadline(sandbox, deadline_ns, "its layers were fetched"));
  ESKER_ASSIGN_OR_RETURN(spec.layers, PrepareLayers(sandbox.id, image));
  ESKER_RETURN_IF_ERROR(CheckDeadline(sandbox, deadline_ns, "its volume was made"));
  ESKER_ASSIGN_OR_RETURN(UniqueFd volume,
                         uppers_->Create(sandbox.id, record.info.resources.disk_bytes));
  const SandboxResources& resources = record.info.resources;
  uint32_t owner = keeper_options_.first_host_id + record.range * keeper_options_.range_size;
  CgroupLimits limits{
      .memory_bytes = resources.memory_bytes, .pids = resources.pids, .cpus = resources.cpu};
  ESKER_RETURN_IF_ERROR(cgroups_->Create(sandbox.id, limits, owner, owner));
  ESKER_ASSIGN_OR_RETURN(CgroupEntryFds entry, cgroups_->OpenEntry(sandbox.id));
  ESKER_ASSIGN_OR_RETURN(UniqueFd listener, ListenSeqpacket(SocketPath(sandbox.id)));
  std::vector<int> tasks;
  for (const UniqueFd& fd : entry.tasks) tasks.push_back(fd.get());
  ESKER_RETURN_IF_ERROR(CheckDeadline(sandbox, deadline_ns, "its container was made"));
  sandbox.with_keeper = true;
  Result<ContainerHandle> container =
      keeper()->Create(spec, volume.get(), listener.get(), tasks, entry.unified.get());
  if (!container.ok()) sandbox.with_keeper = false;
  return container;
}

Status NodeImpl::ConnectInit(const SandboxPtr& sandbox, int64_t deadline_ns) {
  auto connected = std::make_shared<std::promise<Status>>();
  std::future<Status> result = connected->get_future();
  loop_->Post([this, sandbox, connected, deadline_ns] {
    InitClient::Connect(*loop_, SocketPath(sandbox->id), std::max<int64_t>(1, LeftMs(deadline_ns)),
                        EventsFor(sandbox),
                        [this, sandbox, connected](Result<std::unique_ptr<InitClient>> client,
                                                   InitClient::Inventory inventory) {
                          if (!client.ok()) return connected->set_value(std::move(client).status());
                          // Too late: it was given up meanwhile.
                          if (!sandbox->gone.ok()) return connected->set_value(sandbox->gone);
                          sandbox->init = std::move(*client);
                          TakeInventory(sandbox, inventory);
                          connected->set_value(OkStatus());
                        });
  });
  // Connect keeps the deadline itself; the rest is for a loop that is behind.
  if (result.wait_for(std::chrono::milliseconds(LeftMs(deadline_ns) + 10'000)) !=
      std::future_status::ready) {
    return DeadlineExceededError("init of sandbox " + sandbox->id + " did not answer");
  }
  return result.get().Wrap("connect to init");
}

}  // namespace esker
