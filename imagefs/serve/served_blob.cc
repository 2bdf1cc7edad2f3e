#include "served_blob.h"

#include "base/log.h"
#include "recordings.h"

namespace esker {
Result<std::shared_ptr<ServedBlob>> ServedBlob::Load(NodeCache& cache, const BlobId& id,
                                                     Counters* whole) {
  ESKER_ASSIGN_OR_RETURN(std::shared_ptr<const BlobLayout> layout, cache.ReadLayout(id));
  return std::make_shared<ServedBlob>(cache, std::move(layout), whole);
}

ServedBlob::ServedBlob(NodeCache& cache, std::shared_ptr<const BlobLayout> layout, Counters* whole)
    : cache_(cache),
      id_(layout->map().id),
      size_bytes_(layout->map().size_bytes),
      file_(cache.File(layout)),
      counters_(whole),
      layout_(std::move(layout)) {}

std::shared_ptr<const BlobLayout> ServedBlob::layout() const {
  std::lock_guard lock(mutex_);
  return layout_;
}

bool ServedBlob::ReloadLayout() {
  Result<std::shared_ptr<const BlobLayout>> fresh = cache_.ReadLayout(id_);
  if (!fresh.ok()) return false;  // the map in memory is as good as before
  std::lock_guard lock(mutex_);
  if ((*fresh)->map().generation <= layout_->map().generation) return false;
  LogInfo("blob-map-reloaded", {{"blob", id_.ToHex()}, {"generation", (*fresh)->map().generation}});
  layout_ = std::move(*fresh);
  return true;
}

size_t ServedBlob::MemoryBytes() const {
  return sizeof(*this) + layout()->MemoryBytes() + layout()->entry_count() * 2;
}

ServedBlob::Joined ServedBlob::Join(const std::shared_ptr<const BlobLayout>& layout,
                                    uint32_t group) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<GroupFetch>& fetch = fetches_[{layout.get(), group}];
  const bool owner = fetch == nullptr;
  if (owner) fetch = std::make_shared<GroupFetch>(layout, group);
  return {fetch, owner};
}

void ServedBlob::Leave(const GroupFetch& fetch) {
  std::lock_guard lock(mutex_);
  fetches_.erase({fetch.layout().get(), fetch.group()});
}

void ServedBlob::AddLog(const std::shared_ptr<TouchLog>& log) {
  std::lock_guard lock(mutex_);
  logs_.push_back(log);
  logged_ = true;
}

void ServedBlob::NoteRead(uint64_t offset, uint64_t size, int64_t now_nanos) {
  if (!logged_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  std::erase_if(logs_, [](const auto& log) { return log.expired(); });
  logged_ = !logs_.empty();
  for (const auto& weak : logs_) {
    if (std::shared_ptr<TouchLog> log = weak.lock()) log->Touch(offset, size, now_nanos);
  }
}

bool ServedBlob::TakeCompletion() {
  return !complete() && file_->AllPresent() && !completion_taken_.exchange(true);
}

}  // namespace esker
