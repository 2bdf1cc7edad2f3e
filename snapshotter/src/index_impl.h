// The index's inside. One class, its functions by concern: index.cc (open, statistics),
// packs.cc (registration), placement.cc (which pack answers for a chunk), sessions.cc (imports and
// leases), images.cc, tags.cc, garbage.cc, forget.cc, reconcile.cc. Lock order and invariants:
// ../README.md.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/unique_fd.h"
#include "database.h"
#include "entries.h"
#include "ownership.h"
#include "records.h"
#include "snapshotter/index.h"

namespace esker {

class PinSet;
using PackSet = std::unordered_set<PackId, PackId::Hash>;

class IndexImpl final : public Index {
 public:
  IndexImpl(Store& store, const IndexOptions& options, UniqueFd lock,
            std::unique_ptr<Database> database);
  ~IndexImpl() override;
  // Claims the store and reconciles; called once, before anybody else has the object.
  Status Start(const IndexOptions& options);

  std::unique_ptr<ImportSession> StartImport() override;
  Status RegisterPack(const PackWriter::Published& pack) override;
  Result<BlobMap> GetBlobMap(const BlobId& id) override;
  Result<std::optional<ImageLayer>> FindLayer(const std::string& diff_id) override;
  Result<ImageId> PublishImage(const Manifest& manifest) override;
  Result<ImageRecord> GetImage(const ImageId& id) override;
  Result<ImageRecord> ResolveImage(const std::string& reference, const ImageView& view) override;
  Result<std::vector<ImageRecord>> ListImages() override;
  Result<std::vector<ImageId>> ListChildren(const ImageId& id) override;
  Status DeleteImage(const ImageId& id, bool force) override;
  Status SetTag(const std::string& name, const ImageId& id, const std::string& job) override;
  Status DeleteTag(const std::string& name) override;
  Result<std::unique_ptr<Lease>> LeaseImage(const ImageId& id, const std::string& holder) override;
  void EnableGc() override;
  void GuardGc(std::function<Status(const GcOptions&)> guard) override;
  Result<GcReport> CollectGarbage(const GcOptions& options) override;
  Result<RebuildReport> Rebuild(
      const std::function<void(uint64_t done, uint64_t total)>& on_progress) override;
  Result<Stats> GetStats() override;
  Status CheckServing() override;

 private:
  friend class ImportSessionImpl;
  friend class ImageLease;
  friend class LayerClaim;
  friend class PinSet;

  struct PackState {
    PackEntry entry;
    uint64_t event = 0;     // when it was registered, on the scale of next_event_
    bool deleting = false;  // its file is about to go; nobody may count on it again
    bool usable() const { return entry.condemned_ns == 0 && !deleting; }
  };
  // A blob's list and the pack that answers for each of its chunks.
  struct Placement {
    BlobChunks list;
    std::vector<ChunkLocation> locations;
    PackSet packs;                // of the locations, and the one that answers for the list
    bool uses_condemned = false;  // only a condemned pack has some part of it
  };
  using Progress = std::function<void(uint64_t done, uint64_t total)>;
  // What the store's numbered records say of an image.
  struct ImageState {
    uint64_t number = 0;
    bool deleted = false;
  };

  // --- packs (packs.cc) -----------------------------------------------------------------------
  enum class Presence { kAbsent, kRegistered, kDeleting };
  struct ParsedManifest {
    ImageId id;
    std::string json;
    Manifest manifest;
  };
  Status RegisterFooter(const PackId& id, const PackFooter& footer);
  // The same while the catalogue lock is held; kDeleting: drop the lock, WaitUntilDeleted, again.
  Result<Presence> RegisterFooterLocked(const PackId& id, const PackFooter& footer);
  // Whether the pack is registered; a condemned one is made usable again.
  Result<Presence> Revive(const PackId& id);
  Status WaitUntilDeleted(const PackId& id);
  // Size and time of publication from the file itself, so that a rebuilt index has the same.
  Result<PackEntry> StatPack(const PackId& id) const;
  static Result<std::vector<ParsedManifest>> ParseManifests(const PackId& id,
                                                            const PackFooter& footer);
  Status WriteChunks(const PackId& id, const PackFooter& footer);
  Status WriteCatalogue(const PackId& id, const PackFooter& footer, PackEntry entry,
                        const std::vector<ParsedManifest>& manifests);
  Status PutImage(Database::Batch& batch, const PackId& pack, int64_t published_ns,
                  const ParsedManifest& parsed);

  // --- placement (placement.cc) ---------------------------------------------------------------
  Result<Placement> PlaceBlob(const BlobId& id);
  Status LocateChunks(std::span<const ChunkRef> chunks, const PackId& home, Placement& placement);
  Result<std::optional<ImageLayer>> UseLayer(const std::string& diff_id, PinSet& pins);
  // All packs that hold the blob's list or any of its chunks.
  Status AddAllHolders(const BlobId& id, PackSet& packs);
  // The packs that hold a thing, in order of registration, usable ones first.
  Result<std::vector<PackId>> Holders(char kind, const Digest& id);
  // The packs that PlaceBlob chooses, remembered until something is condemned. NOT_FOUND or
  // DATA_LOSS if the blob is not all here in usable packs.
  Result<PackSet> UsablePacks(const BlobId& id);

  // --- images and tags (images.cc, tags.cc) -----------------------------------------------------
  Result<std::optional<ImageEntry>> FindImage(const ImageId& id);  // live ones only
  Result<ImageRecord> GetImageUngated(const ImageId& id);
  // Its manifest is here, so that it not being found means that it was deleted.
  bool image_known_deleted(const ImageId& id);
  Result<ImageRecord> MakeRecord(const ImageId& id, const ImageEntry& entry);
  Result<std::vector<std::string>> TagsOf(const ImageId& id);
  Status AddTags(ImageRecord& record);
  Result<std::optional<TagEntry>> FindTag(const std::string& full_name);
  Result<std::vector<std::string>> AllTagNames();
  // Under the first of the full names that has an image.
  Result<std::optional<ImageRecord>> FindByName(const std::vector<std::string>& full_names);
  Result<std::optional<ImageRecord>> FindByPrefix(const std::string& hex, const ImageView& view);
  Status CheckOwner();
  // The following need the catalogue lock.
  Status WriteImageState(const ImageId& id, bool deleted);
  Status WriteTag(const std::string& full_name, const std::optional<ImageId>& image,
                  const std::string& job = "");
  Status DeleteImageLocked(const ImageId& id);
  // Checks that the store is still ours, and finishes what a failure left half done.
  Status BeginChange();
  Status PublishImageState(const ImageId& id, const ImageStateRecord& record);
  Result<bool> ConditionHolds(const ImageStateRecord& record);
  Status ResolveImageState(const ImageId& id);
  // Whether it is of kind "image" and the one tag it has is its last.
  Result<bool> GoesWithItsTag(const ImageId& id);
  Status ChangeTag(const std::string& full_name, const TagEntry* current,
                   const std::optional<ImageId>& image, const std::string& job = "");
  // ABORTED with `deleting` set: its pack is being deleted; wait for that without the lock, again.
  Result<ImageId> PublishLocked(const Manifest& manifest, std::optional<PackId>& deleting);
  Result<ImageId> PublishPackLocked(const ImageId& id, std::string json,
                                    std::optional<PackId>& deleting);
  Status NoSuchImage(const std::string& reference, const ImageView& view);

  // --- garbage (garbage.cc) ---------------------------------------------------------------------
  struct Marked {
    PackSet packs;
    uint64_t images_live = 0;
    std::unordered_set<BlobId, BlobId::Hash> seen, seen_leased;
  };
  // What a collection starts from, taken in one moment.
  struct View {
    Database::Cursor images;
    std::set<ImageId> leased;
    uint64_t oldest_import;
  };
  View TakeView();
  uint64_t OldestImportLocked() const;
  Result<Marked> Mark(View& view);
  Status MarkImage(const ImageId& id, const Manifest& manifest, bool leased, Marked& marked);
  Status MarkBlob(const BlobId& id, bool leased, Marked& marked);
  Status Condemn(const PackSet& live, uint64_t oldest_import);
  Status SweepPacks(int64_t grace_ns, GcReport& report);
  std::vector<PackId> DuePacks(int64_t grace_ns);
  bool BeginDeletion(const PackId& id);
  Status DeletePack(const PackId& id, uint64_t& images_gone);

  // --- forgetting (forget.cc) -------------------------------------------------------------------
  struct PackContents {
    std::vector<Digest> chunks;
    std::vector<BlobId> blobs;
    std::vector<ImageId> images;
  };
  // From the footer; if that cannot be read, from the database.
  Result<PackContents> ContentsOf(const PackId& id);
  Result<std::map<PackId, PackContents>> ScanContents(const PackSet& packs);
  // Removes all that the database has of a pack. `images_gone` counts images it held alone.
  Status ForgetPack(const PackId& id, const PackContents& contents, uint64_t& images_gone);
  Status ForgetHolder(Database::Batch& batch, char kind, const Digest& id, const PackId& pack,
                      bool& last);
  Status ForgetImage(Database::Batch& batch, const ImageId& id);
  Status SweepLayers();
  Status SweepTagRecords();
  Status SweepTagRecord(const std::string& name);
  Status SweepImageRecords();
  Status SweepStartRecords();
  Result<uint64_t> SweepTemporaries(int64_t grace_ns);

  // --- reconciliation (reconcile.cc)
  // --------------------------------------------------------------
  Status Reconcile(const Progress& on_progress, std::map<PackId, std::string>& unreadable);
  Status LoadPacks();
  Status LoadImageStates();
  Status ApplyImageStates();
  Status LoadTags();
  Status FinishHalfDone();
  Status DropMissingPacks(const std::vector<PackId>& listed);
  // Registers what is in the store and not in the database; what cannot be read is told, with the
  // reason, and left alone.
  Status AdoptPacks(const std::vector<PackId>& listed, const Progress& on_progress,
                    std::map<PackId, std::string>& unreadable);
  Status AdoptPack(const PackId& id, const Result<PackFooter>& footer,
                   std::map<PackId, std::string>& unreadable);
  // Deletes those that AdoptPacks brought and that are not all here: an import on another machine
  // that lost its session may publish a pack after what it counts on was collected.
  Status DropUnfinishedImages();
  Result<bool> IsWhole(const ImageId& id);

  Result<Stats> CountAll();

  Store& store_;
  Clock& clock_;
  UniqueFd lock_;  // on the database's directory; released last
  std::unique_ptr<Database> db_;
  uint64_t epoch_ = 0;

  // Held shared by every call, exclusively by Rebuild.
  std::shared_mutex gate_;
  std::mutex gc_mutex_;  // one collection at a time

  // The catalogue: everything in the database but chunks, and the store's records.
  std::mutex catalogue_mutex_;
  std::unordered_map<ImageId, ImageState, ImageId::Hash> image_states_;  // those with records
  std::set<ImageId> unresolved_images_;  // their latest record may have a condition

  // In-memory state of packs, imports and leases. Held for short times only, never over a write to
  // the store but the sweep of temporary files.
  std::shared_mutex state_mutex_;
  std::condition_variable_any state_changed_;
  std::unordered_map<PackId, PackState, PackId::Hash> packs_;
  uint64_t next_sequence_ = 1;
  uint64_t next_event_ = 1;
  uint64_t condemnations_ = 0;  // counts the times something was condemned
  std::unordered_map<BlobId, PackSet, BlobId::Hash> usable_cache_;
  std::unordered_map<PackId, uint32_t, PackId::Hash> pins_;
  std::multiset<uint64_t> live_imports_;  // the events at which they started
  std::multiset<ImageId> leases_;
  std::set<std::string> claimed_layers_;
  std::optional<PackSet> touched_;  // packs used since the running collection began
  bool gc_enabled_ = false;
  bool collected_ = false;  // a collection has begun since the start
  std::set<ImageId> adopted_images_;  // by the collection that begins; guarded by gc_mutex_
  std::function<Status(const GcOptions&)> gc_guard_;
  std::unique_ptr<Ownership> ownership_;  // with beats only; ends before all the above
};

// Pins of packs, dropped together. Not thread-safe by itself.
class PinSet {
 public:
  explicit PinSet(IndexImpl& index) : index_(index) {}
  PinSet(const PinSet&) = delete;
  PinSet& operator=(const PinSet&) = delete;
  ~PinSet();
  // Pins all packs the blob needs. NOT_FOUND or DATA_LOSS if it is not all here.
  Status PinBlob(const BlobId& id);
  // Pins the packs if all are usable; changes nothing and gives false otherwise.
  bool PinAll(const PackSet& packs);
  // Pins one usable pack; the state lock is held exclusively.
  void PinLocked(const PackId& pack);

 private:
  IndexImpl& index_;
  PackSet mine_;
};

}  // namespace esker
