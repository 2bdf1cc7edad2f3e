// Snapshot and fork: the files of a sandbox as one more image, and sandboxes made from it.
#include <fcntl.h>

#include <chrono>
#include <ctime>
#include <future>
#include <mutex>

#include "base/failpoint.h"
#include "base/id.h"
#include "base/io.h"
#include "base/log.h"
#include "base/scope_guard.h"
#include "node_impl.h"
#include "snapshotter/push.h"

namespace esker {
namespace {

constexpr int64_t kSameRequestTimeoutMs = 600'000;
constexpr size_t kForksAtOnce = 8;

std::string Rfc3339(int64_t wall_ns) {
  std::time_t seconds = wall_ns / 1'000'000'000;
  std::tm tm = {};
  ::gmtime_r(&seconds, &tm);
  char text[40];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
  return text;
}

Status CheckRequestId(const std::string& id) {
  if (id.size() <= 256) return OkStatus();
  return InvalidArgumentError("a request id has at most 256 bytes");
}

}  // namespace

Result<SnapshotInfo> NodeImpl::Snapshot(const std::string& id, const std::string& request_id,
                                        const std::string& tag) {
  ESKER_RETURN_IF_ERROR(CheckRequestId(request_id));
  std::string full_tag;
  if (!tag.empty()) {
    ESKER_ASSIGN_OR_RETURN(full_tag, NormaliseTag(tag));
  }
  std::vector<std::string> keys;
  if (!request_id.empty()) keys.push_back(RequestKey("snapshot", id, request_id));
  Digest asked = Sha256::Of("snapshot\n" + full_tag);
  ESKER_ASSIGN_OR_RETURN(Requests::Claim claim,
                         requests_.Begin(keys, asked, kSameRequestTimeoutMs));
  if (claim.answer) return ParseSnapshotInfo(*claim.answer);
  bool begun = claim.begun_before;
  ScopeGuard give_up([&] { requests_.GiveUp(keys, begun); });

  ESKER_ASSIGN_OR_RETURN(SandboxPtr sandbox, Find(id));
  const SandboxInfo owner = sandbox->Info();
  if (!full_tag.empty()) {
    ESKER_ASSIGN_OR_RETURN(full_tag, NameInProject(owner.project, full_tag));
  }
  ESKER_ASSIGN_OR_RETURN(Strand::Turn turn, EnterStrand(*sandbox));
  sandbox->Touch();
  for (const std::string& key : keys) {
    DbBatch intent;
    intent.Put(key, RequestRecord{WallNow(), asked, false, ""}.Serialise());
    ESKER_RETURN_IF_ERROR(db_->Write(intent, NodeDb::Durability::kSynced));
  }
  begun = true;
  ESKER_FAILPOINT("node.snapshot.intent");
  ESKER_ASSIGN_OR_RETURN(SnapshotInfo info,
                         SnapshotNew(sandbox, std::move(turn), request_id, claim.begun_before));
  if (!full_tag.empty()) ESKER_RETURN_IF_ERROR(index_.SetTag(full_tag, info.image, owner.job));
  std::string answer = SerialiseSnapshotInfo(info);
  DbBatch batch;
  for (const std::string& key : keys) {
    batch.Put(key, RequestRecord{WallNow(), asked, true, answer}.Serialise());
  }
  AddEvent(*sandbox, batch, "SNAPSHOT", "image=" + info.image.ToHex());
  ESKER_RETURN_IF_ERROR(db_->Write(batch, NodeDb::Durability::kSynced));
  ESKER_FAILPOINT("node.snapshot.recorded");
  sandbox->Touch();
  give_up.Dismiss();
  requests_.Answer(keys, answer, WallNow());
  return info;
}

Result<SnapshotInfo> NodeImpl::SnapshotNew(const SandboxPtr& sandbox, Strand::Turn turn,
                                           const std::string& request_id, bool begun_before) {
  SandboxRecord record = sandbox->Copy();
  if (record.phase == SandboxPhase::kEnded || record.phase == SandboxPhase::kEnding) {
    return EndedError(record.info);
  }
  if (begun_before) {
    // The process that took it died before it could say so: the image may be published already.
    if (std::optional<ImageId> image = FindCommitted(sandbox->id, request_id)) {
      SnapshotInfo info;
      info.image = *image;
      return info;
    }
  }
  // Its own lease: the sandbox may end while the clone is being committed.
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease,
                         index_.LeaseImage(record.info.image, "snapshot of " + sandbox->id));
  SnapshotInfo info;
  std::string clone_id = RandomId("clone");
  Result<UniqueFd> clone = CloneFiles(sandbox, clone_id, &info.frozen_us);
  ScopeGuard remove_clone([&] {
    clone = UniqueFd();
    Status removed = uppers_->Delete(clone_id);
    if (!removed.ok()) LogWarning("delete_clone", {{"cause", removed.ToString()}});
  });
  if (!clone.ok()) return clone.status();
  // The rest needs only the clone: deleting, pausing and expiring do not wait for it.
  std::optional<Strand::Turn> held(std::move(turn));
  held.reset();
  ESKER_FAILPOINT("node.snapshot.cloned");
  ESKER_RETURN_IF_ERROR(Commit(record, clone->get(), request_id, &info));
  return info;
}

std::optional<ImageId> NodeImpl::FindCommitted(const std::string& sandbox,
                                               const std::string& request_id) {
  Result<std::vector<ImageRecord>> images = index_.ListImages();
  if (!images.ok()) return std::nullopt;  // then it is taken anew, which is right as well
  for (const ImageRecord& image : *images) {
    const std::map<std::string, std::string>& origin = image.manifest.origin;
    auto of = origin.find("sandbox");
    auto request = origin.find("request");
    if (of != origin.end() && of->second == sandbox && request != origin.end() &&
        request->second == request_id) {
      return image.id;
    }
  }
  return std::nullopt;
}

Result<UniqueFd> NodeImpl::CloneFiles(const SandboxPtr& sandbox, const std::string& clone_id,
                                      int64_t* frozen_us) {
  bool frozen = false;
  int64_t began = Clock::System().MonotonicNanos();
  ESKER_RETURN_IF_ERROR(FreezeForSnapshot(*sandbox, &frozen).Wrap("freeze sandbox " + sandbox->id));
  Result<UniqueFd> clone = uppers_->Snapshot(sandbox->id, clone_id);
  if (frozen) {
    Status thawed = cgroups_->Thaw(sandbox->id);
    *frozen_us = (Clock::System().MonotonicNanos() - began) / 1000;
    ESKER_RETURN_IF_ERROR(thawed.Wrap("thaw sandbox " + sandbox->id));
  }
  if (!clone.ok()) return clone.status().Wrap("clone the files of sandbox " + sandbox->id);
  return clone;
}

Status NodeImpl::Commit(const SandboxRecord& record, int clone, const std::string& request_id,
                        SnapshotInfo* info) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd upper,
                         OpenFileAt(clone, "upper", O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  CommitRequest request;
  request.parent = record.info.image;
  request.upper_fd = upper.get();
  request.origin = {{"sandbox", record.info.id},
                    {"project", record.info.project},
                    {"created", Rfc3339(WallNow())}};
  if (!record.info.job.empty()) request.origin["job"] = record.info.job;
  if (!request_id.empty()) request.origin["request"] = request_id;
  ESKER_ASSIGN_OR_RETURN(CommitResult result, CommitUpper(store_, index_, request, {}));
  ESKER_FAILPOINT("node.snapshot.committed");
  info->image = result.image;
  info->bytes_stored = result.totals.bytes_stored;
  info->bytes_deduplicated = result.totals.bytes_deduplicated;
  return OkStatus();
}

Result<std::vector<ForkChild>> NodeImpl::Fork(const std::string& id, const std::string& request_id,
                                              uint32_t count, int64_t ttl_ms,
                                              const std::map<std::string, std::string>& metadata,
                                              ImageId* image) {
  if (count < 1 || count > 1000) return InvalidArgumentError("fork: 1 to 1000 children at once");
  ESKER_RETURN_IF_ERROR(CheckRequestId(request_id));
  ESKER_ASSIGN_OR_RETURN(SandboxPtr parent, Find(id));
  // Its parts are requests of their own, so a repeated fork finds what was done already.
  std::string part = request_id.empty() ? "" : "fork:" + request_id;
  ESKER_ASSIGN_OR_RETURN(SnapshotInfo snapshot, Snapshot(id, part, ""));
  ESKER_FAILPOINT("node.fork.snapshotted");
  *image = snapshot.image;
  SandboxInfo info = parent->Info();
  SandboxSpec spec;
  spec.image = snapshot.image.ToHex();
  spec.resources = info.resources;
  if (!uppers_->enforces_limit()) spec.resources.disk_bytes = 0;
  spec.ttl_ms = ttl_ms;
  spec.idle_ttl_ms = info.idle_ttl_ms;
  spec.metadata = info.metadata;
  for (const auto& [key, value] : metadata) spec.metadata[key] = value;
  spec.envs = info.envs;
  spec.project = info.project;
  spec.job = info.job;

  std::vector<ForkChild> children(count);
  std::atomic<uint32_t> next{0};
  auto work = [&] {
    for (uint32_t i = next++; i < count; i = next++) {
      SandboxSpec child = spec;
      if (!part.empty()) child.request_id = id + ":" + part + ":" + std::to_string(i);
      Result<SandboxInfo> made = Create(child);
      if (made.ok()) {
        children[i].info = std::move(*made);
      } else {
        children[i].status = std::move(made).status();
      }
    }
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min<size_t>(kForksAtOnce, count); ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  DbBatch batch;
  AddEvent(*parent, batch, "FORKED", std::to_string(count) + " children");
  ESKER_RETURN_IF_ERROR(db_->Write(batch, NodeDb::Durability::kSurvivesProcess));
  return children;
}

}  // namespace esker
