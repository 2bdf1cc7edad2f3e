// A data blob's bytes by their place in the device. Private to export.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "imagefs/export.h"
#include "imagefs/pack.h"

namespace esker::export_internal {

// Keeps a few frames and packs, since files of a layer lie side by side in packs.
class DataReader {
 public:
  DataReader(const Store& store, BlobMap map) : store_(store), map_(std::move(map)) {}

  // Gives the range to `sink` piece by piece, each chunk compared with its digest. What lies
  // between chunks reads as zeros; a range that ends beyond the blob is DATA_LOSS.
  Status Read(uint64_t offset, uint64_t length, const ByteSink& sink);

 private:
  struct Frame {
    PackId pack;
    uint64_t offset = 0;
    std::vector<uint8_t> bytes;
  };
  Result<const Frame*> FrameAt(const ChunkLocation& where);
  Result<int> Pack(const PackId& id);
  Status Load(size_t entry);

  const Store& store_;
  const BlobMap map_;
  std::list<std::unique_ptr<Frame>> frames_;      // the one used last is in front
  std::list<std::pair<PackId, UniqueFd>> packs_;  // likewise
  size_t loaded_ = SIZE_MAX;                      // entry whose bytes are proved: chunk_
  std::string chunk_;
};

}  // namespace esker::export_internal
