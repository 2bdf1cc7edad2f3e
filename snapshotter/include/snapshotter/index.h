// The index of one store: which chunks, blobs, images and tags there are, who uses them, what may
// go.
//
// RocksDB answers quickly; the store is the truth. Everything acknowledged is durable in the store
// before the index changes, and opening the index reconciles the two (packs published by a process
// that died before it could index them appear; packs that are gone disappear), so RocksDB may lose
// its newest writes to a power cut, or be deleted as a whole, without losing anything.
// All methods are thread-safe and block on disk. Times are wall-clock nanoseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "imagefs/blob_map.h"
#include "imagefs/import.h"
#include "imagefs/manifest.h"
#include "imagefs/pack.h"
#include "imagefs/store.h"

namespace esker {

struct ImageRecord {
  ImageId id;
  Manifest manifest;
  int64_t published_ns = 0;
  // Full names: "app:1" (shared by all projects) or "@project/app:1" (that project's own).
  std::vector<std::string> tags;
  std::map<std::string, std::string> jobs;  // of the tags that a job gave, by full name
  uint64_t plain_bytes = 0;                 // metadata + data of all layers
};

// Whose eyes a look-up has. What it may not see does not exist for it: neither found, nor among
// nearest names, nor what makes an id ambiguous.
struct ImageView {
  // Whose names a reference without "@project/" means, before the shared ones. "": only those.
  std::string project;
  // All projects' names, and every image by its id. Otherwise: the shared names, the project's, the
  // images with such a name, and the snapshots of the project's sandboxes.
  bool all = true;
};

struct GcReport {
  uint64_t packs_live = 0, packs_deleted = 0;
  uint64_t bytes_deleted = 0;
  uint64_t images_live = 0, images_deleted = 0;
  uint64_t packs_condemned = 0;  // will go once the grace time is over
  uint64_t temporaries_deleted = 0;
};
struct GcOptions {
  // How long a condemned pack stays readable: one lease time plus the store's staleness bound.
  int64_t grace_ns = 0;
  std::string caller;  // the node that asks, "" for the index's own process
};

struct RebuildReport {
  uint64_t packs = 0, images = 0, tags = 0, damaged = 0;
  std::vector<std::string> damaged_names;  // what was unreadable, and why (first 100)
};

struct IndexOptions {
  std::string db_directory;
  std::string claimant;    // who we are, for the owner record
  Clock* clock = nullptr;  // nullptr: the system's
  std::function<void(uint64_t done, uint64_t total)> on_progress;  // of the start's reconciliation
  // How often the owner says in the store that it is alive, and looks whether it still owns it. 0:
  // never, and no look at whether the store has a living owner.
  int64_t beat_ns = 0;
  // A new name may appear that much later on another machine.
  int64_t staleness_ns = 30'000'000'000;
  bool take_over = false;  // also from an owner that is alive
};

// Keeps what it covers alive; released on destruction. Sandboxes hold one on their image, imports
// hold one on what they deduplicate against.
class Lease {
 public:
  virtual ~Lease() = default;
};

// Deduplication answers for one import, and what garbage collection must leave alone meanwhile:
// every chunk and layer it reported, and every pack that was registered after it was started. Start
// it before anything is written, end it after the image is published. Must not outlive the index.
class ImportSession : public ChunkLookup {
 public:
  // As Index::FindLayer; the layer's blobs stay until the session ends.
  virtual Result<std::optional<ImageLayer>> UseLayer(const std::string& diff_id) = 0;
  // A layer of a registered pack, for later sessions to find (until its blobs are collected).
  virtual Status RememberLayer(const ImageLayer& layer) = 0;
  // Waits until no other session imports this diff_id, then is the only one that does until the
  // result is destroyed. `cancelled` (may be empty) is polled; true ends with CANCELLED.
  virtual Result<std::unique_ptr<Lease>> ClaimLayer(const std::string& diff_id,
                                                    const std::function<bool()>& cancelled) = 0;
  // As Index::RegisterPack, for a pack that was written with this session's answers. ABORTED also
  // when the session was lost (the index is another process, and started again or heard nothing of
  // us for too long): what the pack counts on may be gone, import again.
  virtual Status RegisterPack(const PackWriter::Published& pack) = 0;
};

class Index {
 public:
  // Claims the store (owner epoch), opens or creates the database, reconciles it with the store.
  // FAILED_PRECONDITION: another process has this database open, or (with beats) the store has an
  // owner elsewhere that was alive a moment ago. With `take_over` that one is fenced; this waits
  // for the staleness bound, so that it knows. `store` must outlive the index.
  static Result<std::unique_ptr<Index>> Open(Store& store, const IndexOptions& options);
  virtual ~Index() = default;

  // --- packs, chunks, blobs -------------------------------------------------------------------
  // Waits while garbage collection sweeps temporary files (a directory listing).
  virtual std::unique_ptr<ImportSession> StartImport() = 0;
  // Indexes a published pack (chunks, blobs, manifests). Idempotent. Images whose manifests it
  // holds exist from then on, unless a tombstone in the store says deleted. ABORTED: garbage
  // collection removed the very same pack a moment ago (or it is not visible yet): import again.
  virtual Status RegisterPack(const PackWriter::Published& pack) = 0;
  // The blob's list with current locations. NOT_FOUND, or DATA_LOSS if a chunk has no location.
  virtual Result<BlobMap> GetBlobMap(const BlobId& id) = 0;
  // A layer that was imported before from this OCI diff_id, if its blobs are all still here.
  virtual Result<std::optional<ImageLayer>> FindLayer(const std::string& diff_id) = 0;

  // --- images and tags ------------------------------------------------------------------------
  // Publishes a manifest as a small pack of its own and indexes it. All its blobs must be known
  // (NOT_FOUND names the first that is not). Publishing what exists already is OK.
  virtual Result<ImageId> PublishImage(const Manifest& manifest) = 0;
  virtual Result<ImageRecord> GetImage(const ImageId& id) = 0;
  // "[@project/]name[:tag]" (tag "latest" by default), or a hex image id (or a unique prefix of 12
  // or more digits). The record has the names that the view shows. NOT_FOUND says what was looked
  // for and lists the nearest names.
  virtual Result<ImageRecord> ResolveImage(const std::string& reference,
                                           const ImageView& view = {}) = 0;
  virtual Result<std::vector<ImageRecord>> ListImages() = 0;
  // Images that exist and name this one as their parent; it may be deleted itself.
  virtual Result<std::vector<ImageId>> ListChildren(const ImageId& id) = 0;
  // Makes the image unreachable (its tags too); the bytes go at garbage collection once no lease
  // and no other image needs them. FAILED_PRECONDITION while it has tags and !force.
  virtual Status DeleteImage(const ImageId& id, bool force) = 0;
  // Durable on return. The image that had the name before is treated as by DeleteTag. `job`: which
  // gave the name ("" for none); a name that names this image already keeps the job it has.
  virtual Status SetTag(const std::string& name, const ImageId& id,
                        const std::string& job = "") = 0;
  // Removes a tag; an image of kind "image" that loses its last tag is deleted with it.
  virtual Status DeleteTag(const std::string& name) = 0;

  // --- leases and garbage collection ----------------------------------------------------------
  // NOT_FOUND if the image does not exist any more. The lease keeps its blobs, in every pack that
  // holds a part of them, even when the image is deleted meanwhile. Leases live in memory: holders
  // take them again after a restart, before EnableGc(); also that of an image that was deleted, as
  // long as another lease is on it or nothing was collected since the index started.
  virtual Result<std::unique_ptr<Lease>> LeaseImage(const ImageId& id,
                                                    const std::string& holder) = 0;
  // Garbage collection refuses (FAILED_PRECONDITION) until this was called: nodes call it when they
  // hold their leases again.
  virtual void EnableGc() = 0;
  // Asked at the beginning of each collection; an error is its answer. Call it before EnableGc().
  virtual void GuardGc(std::function<Status(const GcOptions&)> guard) = 0;
  // Mark from live images and leases, sweep whole packs. Runs beside imports and creates; one at a
  // time. FAILED_PRECONDITION too while a pack of the store cannot be read: what it refers to would
  // be taken for unused.
  virtual Result<GcReport> CollectGarbage(const GcOptions& options) = 0;

  // Forgets the database's content and builds it anew from the store; damaged packs are skipped and
  // reported, never deleted.
  virtual Result<RebuildReport> Rebuild(
      const std::function<void(uint64_t done, uint64_t total)>& on_progress) = 0;

  struct Stats {
    // chunks: copies of chunks, summed over packs; images: those that exist (not deleted).
    uint64_t packs = 0, chunks = 0, blobs = 0, images = 0, tags = 0, store_bytes = 0;
  };
  virtual Result<Stats> GetStats() = 0;
  // FAILED_PRECONDITION once another index has taken the store over: nothing is changed from here
  // any more, and what is answered may be out of date. Knows as of the last beat.
  virtual Status CheckServing() = 0;
};

// Parses "[@project/]name[:tag]": repository path of [a-z0-9._/-] and tag of [A-Za-z0-9._-]; gives
// the full "[@project/]name:tag". INVALID_ARGUMENT says what is wrong.
Result<std::string> NormaliseTag(const std::string& reference);
// The full name that `reference` means as a name of this project ("": a shared one).
// PERMISSION_DENIED when it says another project itself.
Result<std::string> NameInProject(const std::string& project, const std::string& reference);
// "" for a shared name.
std::string_view ProjectOfName(std::string_view full_name);
std::string_view NameWithoutProject(std::string_view full_name);
// Leaves only the names that the view shows; false if it does not show the image itself.
bool RestrictToView(const ImageView& view, ImageRecord& record);

}  // namespace esker
