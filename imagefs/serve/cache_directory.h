// CacheDirectory: one directory of the node's cache, as the blob server sees it: whether it is
// there, takes writes, and how much lies in it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "imagefs/cache_layout.h"

namespace esker {

// A blob's file in data/.
struct StoredBlob {
  BlobId id;
  bool full = false;
  uint64_t size_bytes = 0;
  uint64_t disk_bytes = 0;  // blocks, with those of its presence file
  int64_t used_ms = 0;      // wall clock; what the times of its files say
};

// Thread-safe.
class CacheDirectory {
 public:
  // Makes what is missing, and locks it: one server at a time, until the last of its system calls
  // has ended, also when it was killed. FAILED_PRECONDITION while another one holds the lock.
  static Result<std::shared_ptr<CacheDirectory>> Open(const std::string& root, const Clock& clock);

  const CacheLayout& layout() const { return layout_; }
  // The directory is still the one under its name.
  bool Present() const { return present_.load(); }
  // Present, and no write has failed lately.
  bool Writable() const;
  // Writing stops for a while: short when the disk is full (which also wakes the eviction), longer
  // otherwise. Logged once each time.
  void ReportWriteError(const Status& status);
  uint64_t write_errors() const { return write_errors_.load(); }
  // Whether the last write error was another than "full" and is still held against it.
  bool Failing() const { return failing_.load() && !Writable(); }

  // Looks again: presence, free space, and exactly how much lies here.
  void Refresh();
  // Presence and free space only; the sum of map/ and meta/ when they have changed.
  void Look();

  // Real blocks of data/, map/ and meta/: exact at Refresh, an upper estimate since.
  uint64_t used_bytes() const {
    return pending_bytes_.load() + data_bytes_.load() + other_bytes_.load();
  }
  // Before something is written; then it was, or was not.
  void Charge(uint64_t bytes) { pending_bytes_ += bytes; }
  void Written(uint64_t bytes);
  void NotWritten(uint64_t bytes) { pending_bytes_ -= bytes; }
  // It was removed. Never beside a Refresh, which might have seen that already.
  void Refund(uint64_t bytes);
  uint64_t free_bytes() const { return free_bytes_.load(); }
  uint64_t file_system_bytes() const { return file_system_bytes_.load(); }
  uint64_t device() const { return device_; }
  // How much may lie here so that the file system keeps some room.
  uint64_t room_limit() const { return room_limit_.load(); }
  // What must go for that.
  uint64_t shortage() const { return shortage_.load(); }
  // It is not used any more; who has files open there may read on.
  void Leave() { present_ = false; }
  // Another server may have it. For a process that ends at once and cannot be waited for.
  void Unlock() const;

  // The files in data/. Those of other programs and versions are not listed.
  Result<std::vector<StoredBlob>> List() const;

 private:
  CacheDirectory(CacheLayout layout, const Clock& clock)
      : layout_(std::move(layout)), clock_(clock) {}
  void RemoveForeign() const;
  uint64_t SumOthers();

  const CacheLayout layout_;
  const Clock& clock_;
  UniqueFd lock_;
  uint64_t device_ = 0, inode_ = 0;
  std::atomic<bool> present_{true};
  std::atomic<bool> failing_{false};
  std::atomic<int64_t> paused_until_{INT64_MIN};
  std::atomic<uint64_t> write_errors_{0};
  std::atomic<uint64_t> pending_bytes_{0}, data_bytes_{0}, other_bytes_{0};
  std::atomic<uint64_t> written_bytes_{0};  // ever
  std::atomic<uint64_t> free_bytes_{0}, file_system_bytes_{0}, room_limit_{0};
  std::atomic<uint64_t> shortage_{0};
  std::mutex look_mutex_;                // guards what follows
  std::vector<int64_t> others_changed_;  // change times of map/ and meta/ when last summed
};

}  // namespace esker
