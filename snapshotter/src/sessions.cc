// Imports and leases: what garbage collection must leave alone.
#include <chrono>

#include "index_impl.h"

namespace esker {

namespace {
constexpr auto kCancelPoll = std::chrono::milliseconds(100);
}

// --- pins ----------------------------------------------------------------------------------------

PinSet::~PinSet() {
  std::unique_lock state(index_.state_mutex_);
  for (const PackId& pack : mine_) {
    auto it = index_.pins_.find(pack);
    if (it != index_.pins_.end() && --it->second == 0) index_.pins_.erase(it);
  }
}

void PinSet::PinLocked(const PackId& pack) {
  if (!mine_.insert(pack).second) return;
  ++index_.pins_[pack];
  // A pin that comes and goes while a collection runs must still be seen by it.
  if (index_.touched_) index_.touched_->insert(pack);
}

bool PinSet::PinAll(const PackSet& packs) {
  std::unique_lock state(index_.state_mutex_);
  for (const PackId& pack : packs) {
    auto it = index_.packs_.find(pack);
    if (it == index_.packs_.end() || !it->second.usable()) return false;
  }
  for (const PackId& pack : packs) PinLocked(pack);
  return true;
}

Status PinSet::PinBlob(const BlobId& id) {
  ESKER_ASSIGN_OR_RETURN(PackSet packs, index_.UsablePacks(id));
  if (PinAll(packs)) return OkStatus();
  // Condemned in between; another pack may hold the same.
  ESKER_ASSIGN_OR_RETURN(packs, index_.UsablePacks(id));
  if (PinAll(packs)) return OkStatus();
  return NotFoundError("blob " + id.ToHex() + " was just condemned by garbage collection");
}

// --- imports -------------------------------------------------------------------------------------

// Holds a diff_id for one session.
class LayerClaim final : public Lease {
 public:
  LayerClaim(IndexImpl& index, std::string diff_id) : index_(index), diff_id_(std::move(diff_id)) {}
  ~LayerClaim() override {
    std::unique_lock state(index_.state_mutex_);
    index_.claimed_layers_.erase(diff_id_);
    index_.state_changed_.notify_all();
  }

 private:
  IndexImpl& index_;
  const std::string diff_id_;
};

class ImportSessionImpl final : public ImportSession {
 public:
  explicit ImportSessionImpl(IndexImpl& index) : index_(index), pins_(index) {
    std::unique_lock state(index_.state_mutex_);
    event_ = index_.next_event_++;
    index_.live_imports_.insert(event_);
  }
  ~ImportSessionImpl() override {
    std::unique_lock state(index_.state_mutex_);
    index_.live_imports_.erase(index_.live_imports_.find(event_));
  }

  Result<bool> HasChunk(const ChunkRef& chunk) override {
    std::shared_lock gate(index_.gate_);
    std::vector<PackId> candidates;
    Database::Cursor cursor = index_.db_->NewChunkCursor();
    for (cursor.Seek(chunk.digest.AsBytes()); cursor.Valid(); cursor.Next()) {
      ESKER_ASSIGN_OR_RETURN(ChunkEntry entry, ChunkEntry::Decode(cursor.value()));
      if (entry.length == chunk.length) {
        candidates.push_back(PackId{DigestAt(cursor.key(), chunk.digest.bytes.size())});
      }
    }
    ESKER_RETURN_IF_ERROR(cursor.status());
    if (candidates.empty()) return false;
    std::unique_lock state(index_.state_mutex_);
    const PackId* first = nullptr;
    uint64_t first_sequence = 0;
    for (const PackId& pack : candidates) {
      auto it = index_.packs_.find(pack);
      if (it == index_.packs_.end() || !it->second.usable()) continue;
      if (first == nullptr || it->second.entry.sequence < first_sequence) {
        first = &pack;
        first_sequence = it->second.entry.sequence;
      }
    }
    // The one that will answer for the chunk when the new blob is placed.
    if (first != nullptr) pins_.PinLocked(*first);
    return first != nullptr;
  }

  Status RegisterPack(const PackWriter::Published& pack) override {
    return index_.RegisterPack(pack);
  }

  Result<std::optional<ImageLayer>> UseLayer(const std::string& diff_id) override {
    std::shared_lock gate(index_.gate_);
    return index_.UseLayer(diff_id, pins_);
  }

  Status RememberLayer(const ImageLayer& layer) override {
    std::shared_lock gate(index_.gate_);
    Database::Batch batch(*index_.db_);
    batch.Put(Family::kLayers, layer.diff_id, EncodeLayer(layer));
    return index_.db_->Write(batch);
  }

  Result<std::unique_ptr<Lease>> ClaimLayer(const std::string& diff_id,
                                            const std::function<bool()>& cancelled) override {
    std::unique_lock state(index_.state_mutex_);
    // The holder ends when its client's stream does; until then the wait is bounded by our own
    // client, which can cancel.
    while (index_.claimed_layers_.contains(diff_id)) {
      index_.state_changed_.wait_for(state, kCancelPoll);
      state.unlock();
      if (cancelled && cancelled()) {
        return CancelledError("cancelled while another push imports layer " + diff_id);
      }
      state.lock();
    }
    index_.claimed_layers_.insert(diff_id);
    return std::unique_ptr<Lease>(std::make_unique<LayerClaim>(index_, diff_id));
  }

 private:
  IndexImpl& index_;
  PinSet pins_;
  uint64_t event_ = 0;
};

std::unique_ptr<ImportSession> IndexImpl::StartImport() {
  return std::make_unique<ImportSessionImpl>(*this);
}

Result<std::optional<ImageLayer>> IndexImpl::UseLayer(const std::string& diff_id, PinSet& pins) {
  ESKER_ASSIGN_OR_RETURN(std::optional<std::string> bytes, db_->Get(Family::kLayers, diff_id));
  if (diff_id.empty() || !bytes) return std::optional<ImageLayer>();
  ESKER_ASSIGN_OR_RETURN(ImageLayer layer, DecodeLayer(*bytes));
  Status status = pins.PinBlob(layer.metadata);
  if (status.ok() && layer.has_data()) status = pins.PinBlob(layer.data);
  if (status.ok()) return std::optional<ImageLayer>(std::move(layer));
  // Not (wholly) here any more: it has to be imported again, which is no error.
  if (status.code() == Code::kNotFound || status.code() == Code::kDataLoss) {
    return std::optional<ImageLayer>();
  }
  return status;
}

Result<std::optional<ImageLayer>> IndexImpl::FindLayer(const std::string& diff_id) {
  std::shared_lock gate(gate_);
  PinSet pins(*this);
  return UseLayer(diff_id, pins);
}

// --- leases --------------------------------------------------------------------------------------

class ImageLease final : public Lease {
 public:
  ImageLease(IndexImpl& index, const ImageId& id) : index_(index), id_(id) {}
  ~ImageLease() override {
    std::unique_lock state(index_.state_mutex_);
    index_.leases_.erase(index_.leases_.find(id_));
  }

 private:
  IndexImpl& index_;
  const ImageId id_;
};

Result<std::unique_ptr<Lease>> IndexImpl::LeaseImage(const ImageId& id, const std::string& holder) {
  std::shared_lock gate(gate_);
  // Looked up under the lock under which a collection takes its view of images and leases: either
  // it sees the lease, or it sees the image alive.
  std::unique_lock state(state_mutex_);
  ESKER_ASSIGN_OR_RETURN(std::optional<ImageEntry> image, FindImage(id));
  // A deleted one is still whole while somebody holds it; and before the first collection since the
  // start, since then nothing went that a holder from before had.
  const bool still_whole = leases_.contains(id) || (!collected_ && image_known_deleted(id));
  if (!image && !still_whole) {
    return NotFoundError("lease for " + holder + ": there is no image " + id.ToHex());
  }
  leases_.insert(id);
  return std::unique_ptr<Lease>(std::make_unique<ImageLease>(*this, id));
}

void IndexImpl::EnableGc() {
  std::unique_lock state(state_mutex_);
  gc_enabled_ = true;
}

void IndexImpl::GuardGc(std::function<Status(const GcOptions&)> guard) {
  gc_guard_ = std::move(guard);
}

}  // namespace esker
