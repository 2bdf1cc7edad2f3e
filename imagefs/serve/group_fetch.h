// GroupFetch: one fetch of one group of chunks, shared by all reads that wait for them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "blob_layout.h"
#include "counters.h"
#include "pack_source.h"

namespace esker {

// The thread that made it (the owner) calls Load once and then Prove per chunk; the others Copy.
// Chunks become available one by one, and stay until the last holder lets go.
class GroupFetch {
 public:
  GroupFetch(std::shared_ptr<const BlobLayout> layout, uint32_t group);

  const std::shared_ptr<const BlobLayout>& layout() const { return layout_; }
  uint32_t group() const { return group_; }

  // --- owner ---
  // One try to read the stored bytes. Fewer bytes than the group has is no error here: the chunks
  // beyond fail later.
  Status Load(PackSource& packs, Counters& counters);
  // Instead of Load: the group's stored bytes, read by the caller.
  void Provide(std::vector<uint8_t> stored) { stored_ = std::move(stored); }
  // Decompresses the chunk's frame if that has not been done, and compares the chunk's digest; a
  // wrong one is read again from the store once. The bytes on success; DATA_LOSS otherwise, and
  // whatever the store said.
  Result<std::span<const uint8_t>> Prove(uint32_t entry, PackSource& packs, Counters& counters);
  // Nothing more will come: chunks not proved yet fail with `status`.
  void Finish(const Status& status);

  // --- others ---
  // Waits until the chunk is available or cannot be, at most until the monotonic time given;
  // DEADLINE_EXCEEDED then. Copies from `offset` in the chunk.
  Status Copy(uint32_t entry, uint32_t offset, std::span<uint8_t> out, int64_t deadline_nanos);

 private:
  struct Chunk {
    bool settled = false;
    Status status;
    std::span<const uint8_t> bytes;
  };
  Result<std::span<const uint8_t>> ProveOnce(uint32_t entry);
  Status DecodeFrame(const ChunkLocation& where, std::span<const uint8_t> stored);
  Status RefreshFrame(const ChunkLocation& where, PackSource& packs, Counters& counters);

  const std::shared_ptr<const BlobLayout> layout_;
  const uint32_t group_;
  // Owner only. Frames by their offset in the pack; `bytes` above point into the plain ones.
  std::vector<uint8_t> stored_;
  std::map<uint64_t, std::vector<uint8_t>> frames_;
  std::vector<std::vector<uint8_t>> retired_;  // frames that were read again

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Chunk> chunks_;
  bool finished_ = false;
};

}  // namespace esker
