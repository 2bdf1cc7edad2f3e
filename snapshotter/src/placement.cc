// Which pack answers for a chunk. The choice must not change while the blob lives, since nodes keep
// maps: first the pack that was the first to hold the blob's own list (it was written with it),
// then the one that was registered first. Garbage collection keeps exactly what is chosen here.
#include <algorithm>

#include "index_impl.h"

namespace esker {
namespace {

constexpr size_t kSlice = 1024;  // chunks looked up per hold of the state lock
constexpr size_t kMaxCachedBlobs = 4096;

struct Candidate {
  PackId pack;
  ChunkEntry entry;
};

Status ReadCandidates(Database::Cursor& cursor, const ChunkRef& chunk,
                      std::vector<Candidate>& out) {
  out.clear();
  for (cursor.Seek(chunk.digest.AsBytes()); cursor.Valid(); cursor.Next()) {
    ESKER_ASSIGN_OR_RETURN(ChunkEntry entry, ChunkEntry::Decode(cursor.value()));
    if (entry.length != chunk.length) continue;
    out.push_back({PackId{DigestAt(cursor.key(), chunk.digest.bytes.size())}, entry});
  }
  return cursor.status();
}

}  // namespace

Result<std::vector<PackId>> IndexImpl::Holders(char kind, const Digest& id) {
  std::vector<PackId> holders;
  const std::string prefix = HolderPrefix(kind, id);
  ESKER_RETURN_IF_ERROR(db_->Scan(Family::kHolders, prefix, [&](std::string_view key, auto) {
    holders.push_back(PackId{DigestAt(key, prefix.size())});
    return true;
  }));
  std::shared_lock state(state_mutex_);
  std::erase_if(holders, [&](const PackId& pack) {
    auto it = packs_.find(pack);
    return it == packs_.end() || it->second.deleting;
  });
  std::sort(holders.begin(), holders.end(), [&](const PackId& a, const PackId& b) {
    const PackState& x = packs_.at(a);
    const PackState& y = packs_.at(b);
    if (x.usable() != y.usable()) return x.usable();
    return x.entry.sequence < y.entry.sequence;
  });
  return holders;
}

Status IndexImpl::LocateChunks(std::span<const ChunkRef> chunks, const PackId& home,
                               Placement& placement) {
  Database::Cursor cursor = db_->NewChunkCursor();
  std::vector<Candidate> candidates;
  std::shared_lock state(state_mutex_);
  for (const ChunkRef& chunk : chunks) {
    ESKER_RETURN_IF_ERROR(ReadCandidates(cursor, chunk, candidates));
    const Candidate* best = nullptr;
    const PackState* best_state = nullptr;
    for (const Candidate& candidate : candidates) {
      auto it = packs_.find(candidate.pack);
      if (it == packs_.end() || it->second.deleting) continue;
      auto rank = [&](const PackId& pack, const PackState& s) {
        return std::tuple(!s.usable(), pack != home, s.entry.sequence);
      };
      if (best == nullptr || rank(candidate.pack, it->second) < rank(best->pack, *best_state)) {
        best = &candidate;
        best_state = &it->second;
      }
    }
    if (best == nullptr) {
      return DataLossError("chunk " + chunk.digest.ToHex() + " (" + std::to_string(chunk.length) +
                           " bytes) is in no pack of the store");
    }
    if (!best_state->usable()) placement.uses_condemned = true;
    placement.packs.insert(best->pack);
    placement.locations.push_back(best->entry.location);
    placement.locations.back().pack = best->pack;
  }
  return OkStatus();
}

Result<IndexImpl::Placement> IndexImpl::PlaceBlob(const BlobId& id) {
  ESKER_ASSIGN_OR_RETURN(std::vector<PackId> holders, Holders(kBlobHolder, id.digest));
  ESKER_ASSIGN_OR_RETURN(std::optional<std::string> list,
                         db_->Get(Family::kBlobs, id.digest.AsBytes()));
  if (holders.empty() || !list) return NotFoundError("there is no blob " + id.ToHex());
  Placement placement;
  Result<BlobChunks> decoded = DecodeBlobList(*list);
  if (!decoded.ok()) return std::move(decoded).status().Wrap("blob " + id.ToHex());
  placement.list = std::move(*decoded);
  const PackId home = holders.front();
  placement.packs.insert(home);
  {
    std::shared_lock state(state_mutex_);
    auto it = packs_.find(home);
    placement.uses_condemned = it == packs_.end() || !it->second.usable();
  }
  placement.locations.reserve(placement.list.chunks.size());
  std::span<const ChunkRef> rest = placement.list.chunks;
  while (!rest.empty()) {
    std::span<const ChunkRef> slice = rest.first(std::min(rest.size(), kSlice));
    ESKER_RETURN_IF_ERROR(LocateChunks(slice, home, placement).Wrap("blob " + id.ToHex()));
    rest = rest.subspan(slice.size());
  }
  return placement;
}

Result<BlobMap> IndexImpl::GetBlobMap(const BlobId& id) {
  std::shared_lock gate(gate_);
  ESKER_ASSIGN_OR_RETURN(Placement placement, PlaceBlob(id));
  BlobMap map = BlobMap::Make(placement.list, placement.locations);
  map.generation = 1;  // grows with compaction, which moves chunks of live blobs
  return map;
}

Result<PackSet> IndexImpl::UsablePacks(const BlobId& id) {
  uint64_t condemnations;
  {
    std::shared_lock state(state_mutex_);
    auto it = usable_cache_.find(id);
    if (it != usable_cache_.end()) return it->second;
    condemnations = condemnations_;
  }
  ESKER_ASSIGN_OR_RETURN(Placement placement, PlaceBlob(id));
  if (placement.uses_condemned) {
    return NotFoundError("a part of blob " + id.ToHex() + " is condemned by garbage collection");
  }
  std::unique_lock state(state_mutex_);
  if (condemnations == condemnations_) {
    if (usable_cache_.size() >= kMaxCachedBlobs) usable_cache_.clear();
    usable_cache_.emplace(id, placement.packs);
  }
  return std::move(placement.packs);
}

Status IndexImpl::AddAllHolders(const BlobId& id, PackSet& packs) {
  ESKER_ASSIGN_OR_RETURN(std::vector<PackId> holders, Holders(kBlobHolder, id.digest));
  packs.insert(holders.begin(), holders.end());
  ESKER_ASSIGN_OR_RETURN(std::optional<std::string> bytes,
                         db_->Get(Family::kBlobs, id.digest.AsBytes()));
  if (!bytes) return NotFoundError("there is no blob " + id.ToHex());
  ESKER_ASSIGN_OR_RETURN(BlobChunks list, DecodeBlobList(*bytes));
  Database::Cursor cursor = db_->NewChunkCursor();
  std::vector<Candidate> candidates;
  for (const ChunkRef& chunk : list.chunks) {
    ESKER_RETURN_IF_ERROR(ReadCandidates(cursor, chunk, candidates));
    for (const Candidate& candidate : candidates) packs.insert(candidate.pack);
  }
  return OkStatus();
}

}  // namespace esker
