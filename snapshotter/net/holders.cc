#include "net/holders.h"

#include <utility>

#include "base/id.h"
#include "base/log.h"

namespace esker::index_net {
namespace {

constexpr int kRecordAttempts = 3;

std::string Seconds(int64_t ns) {
  return std::to_string((ns + 999'999'999) / 1'000'000'000) + " s";
}

}  // namespace

Holders::Holders(Store& store, Index& index, const Options& options)
    : store_(store),
      index_(index),
      clock_(options.clock != nullptr ? *options.clock : Clock::System()),
      lease_ns_(options.lease_ns),
      staleness_ns_(options.staleness_ns) {}

Status Holders::Load() {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, store_.ListRecordNames(kNodeSpace));
  std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    auto node = std::make_shared<Node>(name);
    node->recorded = true;
    node->last_seen_ns = clock_.MonotonicNanos();
    nodes_.emplace(name, std::move(node));
  }
  return OkStatus();
}

std::vector<Holders::NodePtr> Holders::All() {
  std::lock_guard lock(mutex_);
  std::vector<NodePtr> all;
  for (const auto& [name, node] : nodes_) all.push_back(node);
  return all;
}

bool Holders::PastItsTime(const Node& node, int64_t now) const {
  return now - node.last_seen_ns > lease_ns_ + staleness_ns_;
}

// --- entering ------------------------------------------------------------------------------------

Result<Holders::Entered> Holders::Enter(const Holder& holder) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("node", holder.node));
  for (;;) {
    Entered entered;
    {
      std::lock_guard lock(mutex_);
      NodePtr& slot = nodes_[holder.node];
      if (slot == nullptr) slot = std::make_shared<Node>(holder.node);
      entered.node = slot;
    }
    entered.lock = std::unique_lock(entered.node->mutex);
    if (entered.node->dropped) continue;
    Node& node = *entered.node;
    if (holder.epoch < node.epoch) {
      return AbortedError("a later process of node " + node.name + " (start " +
                          std::to_string(node.epoch) + ", ours is " + std::to_string(holder.epoch) +
                          ") talks to the index: two machines with one node.id, or an old process");
    }
    if (holder.epoch > node.epoch) ESKER_RETURN_IF_ERROR(BeginEpoch(node, holder.epoch));
    node.last_seen_ns = clock_.MonotonicNanos();
    return entered;
  }
}

// A new process of the node. Its sandboxes live on from the one before, so leases stay until the
// new one has announced all of its own; imports ended with their process.
Status Holders::BeginEpoch(Node& node, uint64_t epoch) {
  ESKER_RETURN_IF_ERROR(Record(node));
  node.epoch = epoch;
  node.renewed = 0;
  node.announced = false;
  for (auto& [image, held] : node.images) node.inherited.emplace(image, std::move(held.lease));
  node.images.clear();
  node.sessions.clear();
  return OkStatus();
}

// Before a node gets anything, so that no index forgets that it may have something.
Status Holders::Record(Node& node) {
  if (node.recorded) return OkStatus();
  Status status;
  for (int attempt = 0; attempt < kRecordAttempts; ++attempt) {
    // A collection without grace may sweep the temporary file: then once more.
    status = store_.PublishRecord(kNodeSpace, node.name, 1, "holds\n");
    if (status.ok() || status.code() == Code::kAlreadyExists) {
      node.recorded = true;
      return OkStatus();
    }
  }
  return std::move(status).Wrap("record node " + node.name);
}

// --- leases --------------------------------------------------------------------------------------

Status Holders::Take(Node& node, const ImageId& image, uint64_t sequence,
                     const std::string& purpose) {
  if (auto held = node.images.find(image); held != node.images.end()) {
    held->second.sequence = std::max(held->second.sequence, sequence);
    return OkStatus();
  }
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease,
                         index_.LeaseImage(image, "node " + node.name + ", " + purpose));
  node.images.emplace(image, HeldImage{std::move(lease), sequence});
  return OkStatus();
}

Status Holders::LeaseImage(const Holder& holder, const ImageId& image, const std::string& purpose) {
  ESKER_ASSIGN_OR_RETURN(Entered entered, Enter(holder));
  return Take(*entered.node, image, holder.sequence, purpose);
}

Result<Holders::Lost> Holders::Renew(const Announcement& announcement) {
  ESKER_ASSIGN_OR_RETURN(Entered entered, Enter(announcement.holder));
  Node& node = *entered.node;
  const uint64_t sequence = announcement.holder.sequence;
  Lost lost;
  if (sequence <= node.renewed) return lost;  // overtaken by a later one: a sign of life, no more
  node.renewed = sequence;
  // Take before letting go: an image that was deleted can be taken only while it is still held.
  for (const ImageId& image : announcement.images) {
    Status taken = Take(node, image, sequence, "renewed");
    if (taken.code() == Code::kNotFound) {
      lost.images.push_back(image);
    } else if (!taken.ok()) {
      return taken;
    }
  }
  const std::set<ImageId> images(announcement.images.begin(), announcement.images.end());
  std::erase_if(node.images, [&](const auto& held) {
    return held.second.sequence < sequence && !images.contains(held.first);
  });
  for (const std::string& session : announcement.sessions) {
    if (!node.sessions.contains(session)) lost.sessions.push_back(session);
  }
  const std::set<std::string> sessions(announcement.sessions.begin(), announcement.sessions.end());
  std::erase_if(node.sessions, [&](const auto& held) {
    return held.second->sequence < sequence && !sessions.contains(held.first);
  });
  if (announcement.complete) {
    node.announced = true;
    node.inherited.clear();
  }
  return lost;
}

// --- imports -------------------------------------------------------------------------------------

Status Holders::StartImport(const Holder& holder, const std::string& session) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("import session", session));
  ESKER_ASSIGN_OR_RETURN(Entered entered, Enter(holder));
  if (entered.node->sessions.contains(session)) return OkStatus();
  auto held = std::make_shared<HeldSession>();
  held->session = index_.StartImport();
  held->sequence = holder.sequence;
  entered.node->sessions.emplace(session, std::move(held));
  return OkStatus();
}

Status Holders::EndImport(const Holder& holder, const std::string& session) {
  ESKER_ASSIGN_OR_RETURN(Entered entered, Enter(holder));
  entered.node->sessions.erase(session);
  return OkStatus();
}

Result<std::shared_ptr<HeldSession>> Holders::FindImport(const Holder& holder,
                                                         const std::string& session) {
  ESKER_ASSIGN_OR_RETURN(Entered entered, Enter(holder));
  auto found = entered.node->sessions.find(session);
  if (found != entered.node->sessions.end()) return found->second;
  return AbortedError("the import " + session + " of node " + holder.node +
                      " is not known to the index any more: it started again, or the node was " +
                      "silent for too long; import again");
}

// --- silence and garbage -------------------------------------------------------------------------

void Holders::DropSilent() {
  for (const NodePtr& node : All()) {
    std::unique_lock lock(node->mutex);
    const int64_t now = clock_.MonotonicNanos();
    if (node->dropped || !PastItsTime(*node, now)) continue;
    if (!node->empty() || !node->announced) {
      LogWarning("node_silent_too_long", {{"node", node->name},
                                          {"silent", Seconds(now - node->last_seen_ns)},
                                          {"images", node->images.size() + node->inherited.size()},
                                          {"imports", node->sessions.size()}});
    }
    node->images.clear();
    node->inherited.clear();
    node->sessions.clear();
    // Nothing is held now. If its record cannot be removed it stands for nothing, and delays the
    // first collection of the next index by one lease time.
    if (Status removed = store_.RemoveRecords(kNodeSpace, node->name); !removed.ok()) {
      LogWarning("node_record_stays", {{"node", node->name}, {"why", removed.ToString()}});
    }
    node->dropped = true;
    lock.unlock();
    std::lock_guard all(mutex_);
    nodes_.erase(node->name);
  }
}

Status Holders::MayCollect(const GcOptions& options) {
  DropSilent();
  const int64_t least = lease_ns_ + staleness_ns_;
  for (const NodePtr& node : All()) {
    std::lock_guard lock(node->mutex);
    if (node->dropped) continue;
    const int64_t silent = clock_.MonotonicNanos() - node->last_seen_ns;
    if (node->epoch == 0) {
      return FailedPreconditionError(
          "garbage collection: node " + node->name +
          " has not announced its leases since the index started; it has another " +
          Seconds(least - silent));
    }
    // A process that has not listed everything yet still has what the one before it held, unless
    // the index started in between.
    if (!node->announced) {
      return FailedPreconditionError("garbage collection: node " + node->name +
                                     " is starting and has not announced all its leases yet");
    }
    if (options.grace_ns < least && node->name != options.caller && !node->empty()) {
      return FailedPreconditionError(
          "garbage collection: node " + node->name + " holds " +
          std::to_string(node->images.size()) + " image(s) and " +
          std::to_string(node->sessions.size()) + " import(s), so condemned packs must stay for " +
          Seconds(least) + " (lease time and staleness bound of the store); asked for: " +
          Seconds(options.grace_ns));
    }
  }
  return OkStatus();
}

std::vector<Holders::NodeStats> Holders::Describe() {
  std::vector<NodeStats> stats;
  for (const NodePtr& node : All()) {
    std::lock_guard lock(node->mutex);
    if (node->dropped) continue;
    stats.push_back({node->name, node->images.size() + node->inherited.size(),
                     node->sessions.size(), clock_.MonotonicNanos() - node->last_seen_ns,
                     node->announced});
  }
  return stats;
}

}  // namespace esker::index_net
