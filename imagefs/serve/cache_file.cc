#include "cache_file.h"

#include "base/log.h"
#include "node_cache.h"

namespace esker {

CacheFile::CacheFile(NodeCache& cache, std::shared_ptr<const BlobLayout> layout)
    : cache_(cache), layout_(std::move(layout)), copy_(cache_.FindCopy(layout_)) {}

std::shared_ptr<BlobCopy> CacheFile::copy() const {
  std::lock_guard lock(mutex_);
  return copy_;
}

bool CacheFile::Read(const BlobLayout&, uint32_t first, uint32_t end, uint64_t offset,
                     std::span<uint8_t> out) {
  std::shared_ptr<BlobCopy> copy = this->copy();
  if (copy == nullptr) return false;
  switch (copy->Read(first, end, offset, out)) {
    case CopyRead::kHit:
      return true;
    case CopyRead::kMiss:
      return false;
    case CopyRead::kLost:
      break;
  }
  Status dropped = Drop(copy);
  if (!dropped.ok()) copy->directory().ReportWriteError(dropped);
  return false;
}

bool CacheFile::Has(uint32_t chunk) const {
  std::shared_ptr<BlobCopy> copy = this->copy();
  return copy != nullptr && !copy->lost() && copy->Has(chunk);
}

bool CacheFile::AllPresent() const {
  std::shared_ptr<BlobCopy> copy = this->copy();
  return copy != nullptr && !copy->lost() && copy->AllPresent();
}

bool CacheFile::complete() const {
  std::shared_ptr<BlobCopy> copy = this->copy();
  return copy != nullptr && !copy->lost() && copy->full();
}

bool CacheFile::Keeps() const { return cache_.HasRoom(); }

// The copy, if its directory takes writes, or another in a directory that does.
std::shared_ptr<BlobCopy> CacheFile::CopyToWrite() {
  std::lock_guard lock(mutex_);
  const bool usable = copy_ != nullptr && !copy_->lost() && copy_->directory().Present();
  if (usable && !copy_->directory().Failing()) return copy_;
  std::shared_ptr<BlobCopy> fresh = cache_.FindCopy(layout_);
  if (fresh == nullptr || fresh->directory().Failing()) fresh = cache_.CreateCopy(layout_);
  if (fresh != nullptr) copy_ = std::move(fresh);
  return copy_;
}

void CacheFile::Keep(const BlobLayout&, uint32_t chunk, std::span<const uint8_t> bytes) {
  if (!cache_.HasRoom()) return;
  std::shared_ptr<BlobCopy> copy = CopyToWrite();
  if (copy == nullptr || copy->lost() || copy->Has(chunk)) return;
  const uint64_t charge = AlignToBlock(bytes.size());
  if (!cache_.Reserve(copy->directory(), charge)) return;
  Status kept = copy->Keep(chunk, bytes);
  if (kept.ok()) {
    copy->directory().Written(charge);
    if (copy->AllPresent()) cache_.AllPresent(id());
    return;
  }
  copy->directory().NotWritten(charge);
  copy->directory().ReportWriteError(kept);
  cache_.Wake();
}

Status CacheFile::Complete(const BlobLayout&, const std::atomic<bool>& stop) {
  std::shared_ptr<BlobCopy> copy = this->copy();
  if (copy == nullptr) return FailedPreconditionError("nothing of the blob is here any more");
  return copy->Complete(stop);
}

Status CacheFile::Drop(const std::shared_ptr<BlobCopy>& copy) {
  {
    std::lock_guard lock(mutex_);
    if (copy_ == copy) copy_ = nullptr;
  }
  return copy->Retire();  // what that frees is counted at the next Refresh
}

}  // namespace esker
