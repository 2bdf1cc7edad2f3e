// Packs: immutable files of many compressed frames, written once, sequentially.
// docs/formats/pack.md.
//
// header | frames | footer | trailer. The footer lists frames, the chunks in them, blob lists and
// image manifests; so one pack can publish a whole snapshot with one fsync and one link, and the
// index can be rebuilt from footers alone. The pack's id is the SHA-256 of its footer.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "imagefs/store.h"
#include "imagefs/types.h"

namespace esker {

struct PackFrame {
  uint64_t offset = 0;
  uint32_t stored = 0;
  uint32_t plain = 0;
  uint8_t codec = kCodecRaw;
};
struct PackChunk {
  ChunkRef ref;
  uint32_t frame = 0;   // index into frames
  uint32_t offset = 0;  // in the plain frame
};
struct PackFooter {
  std::vector<PackFrame> frames;
  std::vector<PackChunk> chunks;
  std::vector<BlobChunks> blobs;  // lists may name chunks that other packs hold
  std::vector<std::string>
      manifests;  // image manifests (JSON bytes); an image's id is their digest

  ChunkLocation Locate(const PackId& pack, const PackChunk& chunk) const;
  std::string Serialise() const;
  // From untrusted bytes; every count and range is checked. DATA_LOSS says what is wrong.
  static Result<PackFooter> Parse(std::string_view bytes);
};

// Writes one pack. Not thread-safe (one writer, one thread); compresses on helper threads inside.
// Small chunks share a frame of up to kMaxFrameSize plain bytes; a chunk larger than half of that
// has a frame of its own. What does not shrink is stored raw. zstd level 3.
class PackWriter {
 public:
  static Result<std::unique_ptr<PackWriter>> Create(Store& store);
  virtual ~PackWriter() = default;  // unfinished: the temporary file is removed

  // The caller has computed ref.digest over bytes. A chunk already in this pack is skipped.
  virtual Status AddChunk(const ChunkRef& ref, std::span<const uint8_t> bytes) = 0;
  virtual bool HasChunk(const Digest& digest) const = 0;
  virtual void AddBlob(BlobChunks blob) = 0;
  virtual void AddManifest(std::string json) = 0;
  virtual uint64_t stored_bytes() const = 0;  // compressed, so far

  struct Published {
    PackId id;
    PackFooter footer;
    uint64_t file_bytes = 0;
  };
  // Writes footer and trailer, reads everything back and compares digests, publishes. Durable on
  // return. After an error nothing is visible.
  virtual Result<Published> Finish() = 0;
};

// Reads and checks footer and trailer (version, checksum, id). Errors: NOT_FOUND, DATA_LOSS.
Result<PackFooter> ReadPackFooter(const Store& store, const PackId& id);

// Reads one frame and gives its plain bytes; size-checked, not digest-checked (chunks are).
Result<std::vector<uint8_t>> ReadFrame(int pack_fd, const ChunkLocation& location);
// The same of bytes that were read already: exactly location.frame_stored of them.
Result<std::vector<uint8_t>> DecodeFrame(std::string_view stored, const ChunkLocation& location);

}  // namespace esker
