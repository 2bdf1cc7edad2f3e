// A ChunkLookup that knows the packs it was told of; for tests.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "imagefs/blob_map.h"
#include "imagefs/import.h"

namespace esker::testing {

// Thread-safe.
class MemoryLookup : public ChunkLookup {
 public:
  void Register(const PackWriter::Published& pack) {
    std::lock_guard lock(mutex_);
    for (const PackChunk& chunk : pack.footer.chunks) {
      chunks_.emplace(chunk.ref.digest, pack.footer.Locate(pack.id, chunk));
    }
    for (const BlobChunks& blob : pack.footer.blobs) blobs_.emplace(blob.Id(), blob);
  }
  Result<bool> HasChunk(const ChunkRef& chunk) override {
    std::lock_guard lock(mutex_);
    ++asked_;
    return chunks_.contains(chunk.digest);
  }
  int asked() const { return asked_; }

  Result<BlobMap> Map(const BlobId& id) const {
    std::lock_guard lock(mutex_);
    auto found = blobs_.find(id);
    if (found == blobs_.end()) return NotFoundError("blob " + id.ToHex());
    std::vector<ChunkLocation> locations;
    for (const ChunkRef& ref : found->second.chunks) locations.push_back(chunks_.at(ref.digest));
    return BlobMap::Make(found->second, locations);
  }

  // The whole blob as its address space reads: chunks at block boundaries, zeros between. Every
  // chunk is compared with its digest.
  Result<std::string> ReadBlob(const Store& store, const BlobId& id) const {
    std::lock_guard lock(mutex_);
    auto found = blobs_.find(id);
    if (found == blobs_.end()) return NotFoundError("blob " + id.ToHex());
    std::string out;
    for (const ChunkRef& ref : found->second.chunks) {
      auto location = chunks_.find(ref.digest);
      if (location == chunks_.end()) return NotFoundError("chunk " + ref.digest.ToHex());
      ESKER_ASSIGN_OR_RETURN(UniqueFd fd, store.OpenPack(location->second.pack));
      ESKER_ASSIGN_OR_RETURN(std::vector<uint8_t> frame, ReadFrame(fd.get(), location->second));
      std::string bytes(frame.begin() + location->second.offset,
                        frame.begin() + location->second.offset + ref.length);
      if (Sha256::Of(bytes) != ref.digest) return DataLossError("chunk " + ref.digest.ToHex());
      out += bytes;
      out.resize(AlignToBlock(out.size()));
    }
    return out;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<Digest, ChunkLocation, DigestHash> chunks_;
  std::unordered_map<BlobId, BlobChunks, BlobId::Hash> blobs_;
  int asked_ = 0;
};

}  // namespace esker::testing
