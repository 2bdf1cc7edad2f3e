#include "snapshotter/index.h"

#include <fcntl.h>
#include <sys/file.h>

#include "base/io.h"
#include "base/log.h"
#include "index_impl.h"

namespace esker {
namespace {

// Before anything else is touched, the claim on the store above all: a second server by mistake
// must not take the store away from the first.
Result<UniqueFd> LockDirectory(const std::string& directory) {
  ESKER_RETURN_IF_ERROR(MakeDirectories(directory));
  ESKER_ASSIGN_OR_RETURN(UniqueFd lock, OpenFile(directory + "/index.lock", O_RDWR | O_CREAT));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return ErrnoError("lock " + directory + "/index.lock");
  return FailedPreconditionError("the index database " + directory +
                                 " is open in another process: a second server on the same data "
                                 "directory; stop that one, or use another directory");
}

}  // namespace

Result<std::unique_ptr<Index>> Index::Open(Store& store, const IndexOptions& options) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd lock, LockDirectory(options.db_directory));
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Database> database, Database::Open(options.db_directory));
  auto index = std::make_unique<IndexImpl>(store, options, std::move(lock), std::move(database));
  ESKER_RETURN_IF_ERROR(index->Start(options).Wrap("open the index of store " + store.path()));
  return std::unique_ptr<Index>(std::move(index));
}

IndexImpl::IndexImpl(Store& store, const IndexOptions& options, UniqueFd lock,
                     std::unique_ptr<Database> database)
    : store_(store),
      clock_(options.clock != nullptr ? *options.clock : Clock::System()),
      lock_(std::move(lock)),
      db_(std::move(database)) {}

IndexImpl::~IndexImpl() = default;

Status IndexImpl::Start(const IndexOptions& options) {
  if (options.beat_ns > 0) {
    ESKER_ASSIGN_OR_RETURN(ownership_, Ownership::Claim(store_, options));
    epoch_ = ownership_->epoch();
  } else {
    ESKER_ASSIGN_OR_RETURN(epoch_, store_.ClaimOwnership(options.claimant));
  }
  Database::Batch batch(*db_);
  batch.Put(Family::kMeta, "epoch", std::to_string(epoch_));
  ESKER_RETURN_IF_ERROR(db_->Write(batch));
  std::map<PackId, std::string> unreadable;
  ESKER_RETURN_IF_ERROR(Reconcile(options.on_progress, unreadable));
  // One broken pack must not keep all others from being served.
  for (const auto& [id, why] : unreadable) {
    LogWarning("pack_unreadable", {{"pack", id.ToHex()}, {"why", why}});
  }
  return OkStatus();
}

Status IndexImpl::CheckServing() { return ownership_ ? ownership_->Check() : OkStatus(); }

Result<Index::Stats> IndexImpl::GetStats() {
  std::shared_lock gate(gate_);
  return CountAll();
}

Result<Index::Stats> IndexImpl::CountAll() {
  Stats stats;
  {
    std::shared_lock state(state_mutex_);
    stats.packs = packs_.size();
    for (const auto& [id, pack] : packs_) {
      stats.chunks += pack.entry.chunks;
      stats.store_bytes += pack.entry.file_bytes;
    }
  }
  Digest last;
  ESKER_RETURN_IF_ERROR(db_->Scan(Family::kHolders, {&kBlobHolder, 1}, [&](auto key, auto) {
    Digest id = DigestAt(key, 1);
    if (stats.blobs == 0 || id != last) ++stats.blobs;
    last = id;
    return true;
  }));
  ESKER_RETURN_IF_ERROR(db_->Scan(Family::kImages, {}, [&](auto, std::string_view value) {
    Result<ImageEntry> entry = ImageEntry::Decode(value);
    if (entry.ok() && !entry->deleted) ++stats.images;
    return true;
  }));
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> tags, AllTagNames());
  stats.tags = tags.size();
  return stats;
}

}  // namespace esker
