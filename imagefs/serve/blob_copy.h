// BlobCopy: the file of one blob in one cache directory, some of the blob or all of it.
//
// Two kinds of file, told apart by name, and never turned back:
//   .part  ranges come and go: written by Keep, punched out by EvictUnit. Never mounted by itself.
//   .full  whole, synced, verified: may be mounted by itself. Never written nor punched; to drop it
//          is to remove its name, which whoever has it open does not notice.
// So a file with a hole is never mounted, whoever dies when. docs/formats/cache.md.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "blob_layout.h"
#include "cache_directory.h"
#include "presence_map.h"

namespace esker {

enum class CopyRead {
  kHit,
  kMiss,  // not all here, or not any more
  kLost,  // the file is not what it was: use this copy no more
};

// Whether anybody but the holder of `fd` has its file open. The kernel's own opens, of a mount or a
// loop device, count: so a file that is mounted is known as such whoever mounted it, and died
// since.
bool IsOpenElsewhere(int fd);

// Holds verified bytes only: Keep() is given verified bytes, and what an earlier process left, or
// somebody else has touched, is compared with its digest before its first use. Thread-safe; one
// object per file in a process, one process per directory.
//
// Reads take no lock. A read that an eviction crossed is noticed by `evictions_`, which is odd
// while one is under way, and by the presence map, which is cleared before the hole is punched.
class BlobCopy {
 public:
  // NOT_FOUND: there is none. A file of another size, or one that cannot be opened, is no copy.
  static Result<std::shared_ptr<BlobCopy>> Open(std::shared_ptr<CacheDirectory> directory,
                                                std::shared_ptr<const BlobLayout> layout,
                                                const Clock& clock);
  // An empty .part, in place of any that is there.
  static Result<std::shared_ptr<BlobCopy>> Create(std::shared_ptr<CacheDirectory> directory,
                                                  std::shared_ptr<const BlobLayout> layout,
                                                  const Clock& clock);

  CacheDirectory& directory() const { return *directory_; }
  bool full() const { return full_.load(); }
  bool lost() const { return lost_.load(); }
  bool Has(uint32_t chunk) const { return presence_.Get(chunk) != Presence::kAbsent; }
  bool AllPresent() const { return presence_.AllPresent(); }
  bool Empty() const { return presence_.present() == 0; }

  // On kHit `out` holds the blob's bytes from `offset` on, gaps as zeros. [first, end) are the
  // entries that the range touches.
  CopyRead Read(uint32_t first, uint32_t end, uint64_t offset, std::span<uint8_t> out);
  // `bytes` are the chunk's, verified. The caller has charged the directory.
  Status Keep(uint32_t chunk, std::span<const uint8_t> bytes);
  // Makes all bytes durable, drops them from memory, reads them from the disk, compares every
  // digest, and gives the file its other name. DATA_LOSS when a chunk was wrong: it is then absent
  // again. FAILED_PRECONDITION when the file is no longer the one in the directory; ABORTED when
  // ranges were evicted meanwhile.
  Status Complete(const std::atomic<bool>& stop);
  // Removes its names. Whoever has it open, a mount too, goes on reading what it held.
  Status Retire();
  // Compares all that is here, read from the disk. Wrong chunks are absent afterwards; a full copy
  // with one is retired.
  struct Verified {
    uint64_t checked = 0, wrong = 0;
  };
  Result<Verified> Verify(const std::function<bool()>& stop);

  // --- eviction: by units of the blob's address space, each with the chunks that start in it ---
  static constexpr uint32_t kUnitBytes = 1u << 20;
  uint32_t unit_count() const { return static_cast<uint32_t>(used_.size()); }
  bool UnitPresent(uint32_t unit) const;
  uint64_t UnitBytes(uint32_t unit) const;  // of its chunks that are here
  int64_t UnitUsedMs(uint32_t unit) const { return used_[unit].load(std::memory_order_relaxed); }
  int64_t LastUsedMs() const;
  // Punches the unit out of a .part, unless it was used after `used_ms`. UNIMPLEMENTED: this file
  // system cannot punch.
  Status EvictUnit(uint32_t unit, int64_t used_ms);
  bool OpenElsewhere() const;
  // Blocks of its files.
  uint64_t DiskBytes() const;
  // Tells the next process when it was used.
  void RecordUse();

 private:
  BlobCopy(std::shared_ptr<CacheDirectory> directory, std::shared_ptr<const BlobLayout> layout,
           const Clock& clock, UniqueFd fd, bool full);
  class Change;  // holds change_ while we change the file ourselves

  bool Intact();
  void DistrustIfTouched(int64_t seen_change);
  bool Prove(uint32_t chunk);
  void DropWrong(uint32_t chunk, const Status& why);
  bool ReadRange(uint64_t offset, std::span<uint8_t> out) const;
  Result<bool> ChunkIsRight(uint32_t chunk, std::vector<uint8_t>& buffer) const;
  Status VerifyForCompletion(const std::atomic<bool>& stop);
  bool IsTheNamedFile() const;
  void Touch(uint32_t first, uint32_t end);
  std::string Path() const;
  std::pair<uint32_t, uint32_t> ChunksOf(uint32_t unit) const {
    return {unit_first_[unit], unit_first_[unit + 1]};
  }

  const std::shared_ptr<CacheDirectory> directory_;
  const std::shared_ptr<const BlobLayout> layout_;
  const Clock& clock_;
  const UniqueFd fd_;
  std::atomic<bool> full_;
  std::atomic<bool> lost_{false};
  PresenceMap presence_;
  std::vector<uint32_t> unit_first_;        // first chunk of each unit; one more at the end
  std::vector<std::atomic<int64_t>> used_;  // wall clock ms, per unit
  std::atomic<int64_t> recorded_use_ms_{0};
  std::atomic<uint64_t> evictions_{0};
  // Who else changes the file is found by its change time: the one after our own last change, and a
  // count that is odd while we change it.
  std::atomic<uint64_t> changes_{0};
  std::atomic<int64_t> own_change_{0};
  mutable std::mutex change_;  // held while the file, or the kind of file, is changed
};

}  // namespace esker
