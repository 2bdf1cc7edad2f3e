#include "blob_registry.h"

#include <optional>

namespace esker {
uint64_t NodeOf(const BlobId& id) {
  uint64_t node = 0;
  for (int i = 0; i < 8; ++i) node = node << 8 | id.digest.bytes[i];
  return node;
}

std::shared_ptr<BlobRegistry::Slot> BlobRegistry::SlotOf(uint64_t node) {
  std::lock_guard lock(mutex_);
  auto [found, added] = known_.try_emplace(node);
  if (added) {
    recent_.push_front(node);
    found->second.slot = std::make_shared<Slot>();
    found->second.position = recent_.begin();
  } else {
    recent_.splice(recent_.begin(), recent_, found->second.position);
  }
  return found->second.slot;
}

void BlobRegistry::Account(uint64_t node, size_t memory_bytes) {
  std::lock_guard lock(mutex_);
  auto found = known_.find(node);
  if (found == known_.end()) return;
  memory_bytes_ += memory_bytes - found->second.memory_bytes;
  found->second.memory_bytes = memory_bytes;
  // Those who use a forgotten blob keep it alive; a second object for the same files does no harm
  // (both write the same verified bytes), so nothing is waited for.
  while (recent_.size() > 1 &&
         (known_.size() > limits_.blobs || memory_bytes_ > limits_.memory_bytes)) {
    auto oldest = known_.find(recent_.back());
    memory_bytes_ -= oldest->second.memory_bytes;
    known_.erase(oldest);
    recent_.pop_back();
  }
}

Result<std::shared_ptr<ServedBlob>> BlobRegistry::Find(const BlobId& id) {
  const uint64_t node = NodeOf(id);
  if (node <= 1) return FailedPreconditionError("blob " + id.ToHex() + " has a reserved node id");
  std::shared_ptr<Slot> slot = SlotOf(node);
  std::lock_guard lock(slot->mutex);
  if (slot->blob == nullptr) {
    Result<std::shared_ptr<ServedBlob>> loaded = ServedBlob::Load(cache_, id, &counters_);
    if (!loaded.ok()) {
      Account(node, 0);
      return loaded;
    }
    slot->blob = *loaded;
    Account(node, slot->blob->MemoryBytes());
  }
  if (slot->blob->id() != id) {
    return FailedPreconditionError("blobs " + id.ToHex() + " and " + slot->blob->id().ToHex() +
                                   " share a node id; the second is not served");
  }
  return slot->blob;
}

Result<std::shared_ptr<ServedBlob>> BlobRegistry::FindNode(uint64_t node) {
  {
    std::shared_ptr<Slot> slot = SlotOf(node);
    std::lock_guard lock(slot->mutex);
    if (slot->blob != nullptr) return slot->blob;
  }
  std::optional<BlobId> match;
  for (const BlobId& id : List()) {
    if (NodeOf(id) != node) continue;
    if (match) {
      return FailedPreconditionError("blobs " + id.ToHex() + " and " + match->ToHex() +
                                     " share a node id; neither is served");
    }
    match = id;
  }
  if (!match) {
    Account(node, 0);
    return NotFoundError("no blob map here has node id " + std::to_string(node));
  }
  return Find(*match);
}

std::vector<std::shared_ptr<ServedBlob>> BlobRegistry::Loaded() const {
  std::vector<std::shared_ptr<Slot>> slots;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [node, known] : known_) slots.push_back(known.slot);
  }
  std::vector<std::shared_ptr<ServedBlob>> blobs;
  for (const std::shared_ptr<Slot>& slot : slots) {
    std::unique_lock lock(slot->mutex, std::try_to_lock);  // one that is being loaded: next time
    if (lock.owns_lock() && slot->blob != nullptr) blobs.push_back(slot->blob);
  }
  return blobs;
}

}  // namespace esker
