// NodeCache: all that a node's disks hold of blobs: directories, budget, eviction.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cache_control.h"
#include "cache_directory.h"
#include "cache_file.h"

namespace esker {

// Bytes kept and evicted since the start, of real disk blocks.
struct EvictionCounts {
  std::atomic<uint64_t> evictions{0};
  std::atomic<uint64_t> evicted_bytes{0};
};

// Keeps the cache below its budget: what is kept is charged before it is written, and a thread
// evicts the least recently used ranges when 19/20 are used, until 9/10 are. A directory that is
// gone or fails is left out; reads never notice. Settings are those in the home, read again when
// they change; maps lie there too.
//
// Thread-safe. Lock order: a CacheFile's mutex, then `mutex_` here, then a BlobCopy's; the files
// table's alone.
class NodeCache : public CacheControl {
 public:
  // Never fails: a directory that cannot be used is tried again.
  NodeCache(std::string home, const Clock& clock);
  ~NodeCache() override;

  // The one object of that blob.
  std::shared_ptr<CacheFile> File(std::shared_ptr<const BlobLayout> layout);
  // From the blob's map. NOT_FOUND: there is none. DATA_LOSS: it is damaged, or another blob's.
  Result<std::shared_ptr<const BlobLayout>> ReadLayout(const BlobId& id) const;
  // Of all maps.
  std::vector<BlobId> ListMaps() const;

  // Called, on the thread that kept it, after the last chunk of a blob came. Set before any is
  // kept.
  void OnAllPresent(std::function<void(const BlobId&)> call) { all_present_ = std::move(call); }
  // Stops the thread. What is kept and read goes on.
  void Stop();
  // Ends all eviction, then gives the directories to the next server. What is still kept or read
  // meanwhile does it no harm: only a hole that is punched could.
  void Unlock();

  // --- for CacheFile ---
  // The best copy that is there: a full one, else the one used last. Others of the same blob are
  // removed. Null: none.
  std::shared_ptr<BlobCopy> FindCopy(const std::shared_ptr<const BlobLayout>& layout);
  // A new one, in the directory with the most room. Null: none takes it.
  std::shared_ptr<BlobCopy> CreateCopy(const std::shared_ptr<const BlobLayout>& layout);
  bool HasRoom() const;
  // Charges the directory, unless that would be beyond the budget.
  bool Reserve(CacheDirectory& directory, uint64_t bytes);
  // Has the thread look now.
  void Wake();
  void AllPresent(const BlobId& id) const {
    if (all_present_) all_present_(id);
  }

  // --- CacheControl ---
  CacheStats Stats() override;
  Status List(const std::function<bool(const CachedBlob&)>& each) override;
  Result<PruneReport> Prune(const PruneRequest& request,
                            const std::function<bool()>& stop) override;
  Status Verify(const std::vector<BlobId>& blobs,
                const std::function<bool(const VerifiedBlob&)>& each,
                const std::function<bool()>& stop) override;

 private:
  using Directories = std::vector<std::shared_ptr<CacheDirectory>>;
  struct Goal;     // what a pass is to reach
  struct Victim;   // a range, or a whole copy
  struct Present;  // a blob on disk, and its file object if there is one

  void Run();
  // Settings, directories that come and go, free space.
  void LookAround();
  Directories directories() const;
  uint64_t used_bytes() const;
  std::shared_ptr<CacheFile> KnownFile(const BlobId& id) const;
  Result<std::shared_ptr<CacheFile>> FileOf(const BlobId& id);

  bool OverHighWater() const;
  void EvictToLowWater();
  void RecordUses();
  std::vector<Present> ListPresent() const;
  std::vector<Victim> FindVictims(const std::vector<Present>& present) const;
  void Evict(const Victim& victim, std::vector<Present>& present, Goal& goal);
  void EvictUnits(CacheFile& file, uint32_t unit, int64_t used_ms, Goal& goal);
  void Pass(Goal& goal, const std::function<bool()>& stop);

  const CacheLayout home_;
  const Clock& clock_;
  std::function<void(const BlobId&)> all_present_;
  EvictionCounts counts_;
  std::atomic<uint64_t> limit_{0};     // of used bytes
  std::atomic<uint64_t> budget_{0};    // as set, or half of the file systems
  std::atomic<bool> writable_{false};  // some directory takes writes

  mutable std::mutex mutex_;  // guards what follows
  CacheSettings settings_;
  int64_t settings_change_ = -1;
  Directories directories_;
  std::map<std::string, std::string> said_;  // why a directory is not used, as logged

  mutable std::mutex files_mutex_;  // guards what follows
  std::map<BlobId, std::weak_ptr<CacheFile>> files_;
  size_t files_swept_at_ = 1024;

  std::mutex pass_mutex_;                // one eviction, prune or verification at a time
  int64_t fruitless_until_ = INT64_MIN;  // guarded by pass_mutex_

  std::mutex wake_mutex_;  // guards what follows
  std::condition_variable wake_;
  bool woken_ = false;
  bool stopping_ = false;
  std::thread thread_;  // last
};

}  // namespace esker
