// File content becomes chunks, and chunks the data blob of a layer. Private to import.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "imagefs/erofs.h"
#include "imagefs/import.h"
#include "imagefs/pack.h"

namespace esker::import_internal {

// Cuts each file at multiples of 1 MiB. Within such a window runs of at least 64 KiB of zeros (and
// windows of nothing else) become holes; what stands between is a chunk. Holes begin and end at
// multiples of a unit that grows with the file, since EROFS needs an index entry for each unit of a
// file with holes: 4096 bytes up to 256 MiB, 1 MiB from 64 GiB on. Chunks that the pack
// or the store has are not stored again. A file with the chunks of an earlier one shares its place
// in the blob; else its chunks are appended, so that the blob is in order of first appearance and
// contiguous content is one extent. Memory: one window, 2 MiB of chunks that wait, the chunk list.
class ContentWriter {
 public:
  // `tick` is called once a chunk; what it returns ends the import.
  ContentWriter(PackWriter& pack, ChunkLookup& lookup, ImportProgress& progress,
                std::function<Status()> tick);

  // One file of that size: Begin, then any of Space+Advance and Skip in file order, then End.
  void Begin(uint64_t size);
  // Where the next bytes of the file go; never empty.
  std::span<uint8_t> Space();
  // So many bytes of Space() have been filled.
  Status Advance(size_t bytes);
  // A hole of any length.
  Status Skip(uint64_t bytes);
  Result<std::vector<erofs::Extent>> End();

  // The blob's list, after the last file; what was kept to recognise files is given up.
  Result<BlobChunks> Finish();
  uint64_t blob_bytes() const { return blob_bytes_; }

  // Stores one chunk unless it is stored already; it may wait for others until Flush(), so that the
  // lookup is asked about many at once.
  Status Store(const ChunkRef& ref, std::span<const uint8_t> bytes);
  Status Flush();

 private:
  struct PlacedChunk {
    uint64_t file_offset = 0;
    ChunkRef ref;
  };

  Status FlushWindow();
  Status AddChunk(size_t begin, size_t end);
  std::vector<erofs::Extent> AppendToBlob();

  PackWriter& pack_;
  ChunkLookup& lookup_;
  ImportProgress& progress_;
  std::function<Status()> tick_;

  std::vector<uint8_t> window_;
  size_t used_ = 0;
  size_t unit_ = kBlockSize;         // where holes may begin and end in the file at hand
  uint64_t window_offset_ = 0;       // of the window in the file; a multiple of its size
  std::vector<PlacedChunk> chunks_;  // of the file at hand

  BlobChunks blob_;
  uint64_t blob_bytes_ = 0;
  std::unordered_set<Digest, DigestHash> in_store_;  // what the lookup said is there

  // Chunks that wait, their bytes one after the other.
  std::vector<ChunkRef> waiting_;
  std::vector<uint8_t> waiting_bytes_;
  std::unordered_set<Digest, DigestHash> waiting_digests_;

  // By the digest of a file's chunks and their offsets.
  std::unordered_map<Digest, std::vector<erofs::Extent>, DigestHash> files_;
};

}  // namespace esker::import_internal
