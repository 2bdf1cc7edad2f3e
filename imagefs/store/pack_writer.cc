#include <sys/stat.h>

#include <thread>
#include <unordered_set>

#include "base/failpoint.h"
#include "base/io.h"
#include "frame_compressor.h"
#include "imagefs/pack.h"
#include "pack_format.h"

namespace esker {
namespace {

// Checks that every chunk of these frames reads back with its digest.
Status VerifyFrames(int fd, const PackFooter& footer, const std::vector<uint32_t>& first_chunk,
                    size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const PackFrame& frame = footer.frames[i];
    Result<std::vector<uint8_t>> plain =
        ReadFrame(fd, {{}, frame.offset, frame.stored, frame.plain, frame.codec, 0});
    if (!plain.ok()) return std::move(plain).status().Wrap("read back what was written");
    for (uint32_t c = first_chunk[i]; c < first_chunk[i + 1]; ++c) {
      const PackChunk& chunk = footer.chunks[c];
      if (Sha256::Of(plain->data() + chunk.offset, chunk.ref.length) != chunk.ref.digest) {
        return DataLossError("read back what was written: chunk " + chunk.ref.digest.ToHex() +
                             " has other bytes");
      }
    }
  }
  return OkStatus();
}

class PackWriterImpl : public PackWriter {
 public:
  PackWriterImpl(Store& store, Store::Temporary temporary)
      : store_(store), temporary_(std::move(temporary)), offset_(pack_format::kHeaderBytes) {}

  ~PackWriterImpl() override {
    // Best effort; what stays is swept by age.
    if (temporary_.fd.valid()) (void)store_.DiscardTemporary(std::move(temporary_));
  }

  Status Begin() {
    std::string header = pack_format::Header();
    return WriteFull(temporary_.fd.get(), header.data(), header.size()).Wrap(What());
  }

  Status AddChunk(const ChunkRef& ref, std::span<const uint8_t> bytes) override {
    ESKER_RETURN_IF_ERROR(status_);
    if (bytes.size() != ref.length || bytes.empty() || bytes.size() > kMaxChunkSize) {
      return InvalidArgumentError("a chunk must have 1 to 1 MiB bytes, and as many as it says");
    }
    if (!known_.insert(ref.digest).second) return OkStatus();
    if (bytes.size() > kMaxFrameSize / 2) {
      std::string plain(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return QueueFrame(std::move(plain), {{ref, 0, 0}});
    }
    if (gathered_.size() + bytes.size() > kMaxFrameSize) ESKER_RETURN_IF_ERROR(FlushGathered());
    gathered_chunks_.push_back({ref, 0, static_cast<uint32_t>(gathered_.size())});
    gathered_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return OkStatus();
  }

  bool HasChunk(const Digest& digest) const override { return known_.contains(digest); }
  void AddBlob(BlobChunks blob) override { footer_.blobs.push_back(std::move(blob)); }
  void AddManifest(std::string json) override { footer_.manifests.push_back(std::move(json)); }
  uint64_t stored_bytes() const override { return offset_ - pack_format::kHeaderBytes; }

  Result<Published> Finish() override {
    Result<Published> published = DoFinish();
    // Whatever happened, this writer is done; a failed one says so again.
    status_ = published.ok() ? FailedPreconditionError("this pack was published already")
                             : published.status();
    if (temporary_.fd.valid()) (void)store_.DiscardTemporary(std::move(temporary_));
    return published;
  }

 private:
  std::string What() const { return "write a pack in the store " + store_.path(); }

  Status FlushGathered() {
    if (gathered_.empty()) return OkStatus();
    std::string plain = std::move(gathered_);
    gathered_.clear();
    return QueueFrame(std::move(plain), std::exchange(gathered_chunks_, {}));
  }

  // Frames are numbered, and later written, in the order they are queued.
  Status QueueFrame(std::string plain, std::vector<PackChunk> chunks) {
    for (PackChunk& chunk : chunks) {
      chunk.frame = frames_queued_;
      footer_.chunks.push_back(chunk);
    }
    ++frames_queued_;
    ESKER_RETURN_IF_ERROR(WriteReady(false));
    compressor_.Push(std::move(plain));
    return OkStatus();
  }

  // Writes frames that are ready; with `all`, waits for every one.
  Status WriteReady(bool all) {
    while (std::optional<FrameCompressor::Frame> frame =
               compressor_.Pop(all || compressor_.full())) {
      status_ = WriteFrame(*frame);
      ESKER_RETURN_IF_ERROR(status_);
    }
    return OkStatus();
  }

  Status WriteFrame(const FrameCompressor::Frame& frame) {
    const std::string& bytes = frame.packed.bytes;
    ESKER_RETURN_IF_ERROR(WriteFull(temporary_.fd.get(), bytes.data(), bytes.size()).Wrap(What()));
    footer_.frames.push_back(
        {offset_, static_cast<uint32_t>(bytes.size()), frame.plain_bytes, frame.packed.codec});
    offset_ += bytes.size();
    return OkStatus();
  }

  Result<Published> DoFinish() {
    ESKER_RETURN_IF_ERROR(status_);
    ESKER_RETURN_IF_ERROR(FlushGathered());
    ESKER_RETURN_IF_ERROR(WriteReady(true));
    ESKER_FAILPOINT("pack.before_footer");
    ESKER_ASSIGN_OR_RETURN(Published published, WriteEnd());
    ESKER_FAILPOINT("pack.before_verify");
    ESKER_RETURN_IF_ERROR(Verify(published.id).Wrap(What()));
    ESKER_RETURN_IF_ERROR(store_.PublishPack(std::move(temporary_), published.id));
    published.footer = std::move(footer_);
    return published;
  }

  Result<Published> WriteEnd() {
    std::string plain = footer_.Serialise();
    if (plain.size() > pack_format::kMaxFooterBytes) {
      return ResourceExhaustedError(What() + ": its footer would have " +
                                    std::to_string(plain.size()) + " bytes, more than 1 GiB");
    }
    pack_format::Trailer trailer;
    trailer.footer_offset = offset_;
    trailer.footer_plain = plain.size();
    trailer.footer_digest = Sha256::Of(plain);
    pack_format::Packed packed = pack_format::Compress(std::move(plain));
    trailer.footer_codec = packed.codec;
    trailer.footer_stored = packed.bytes.size();
    trailer.footer_checksum = Crc32c(packed.bytes.data(), packed.bytes.size());
    packed.bytes += pack_format::SerialiseTrailer(trailer);
    ESKER_RETURN_IF_ERROR(
        WriteFull(temporary_.fd.get(), packed.bytes.data(), packed.bytes.size()).Wrap(What()));
    return Published{PackId{trailer.footer_digest}, {}, offset_ + packed.bytes.size()};
  }

  // Reads the whole file back, half of the frames on a thread of its own if there are many.
  Status Verify(const PackId& id) {
    std::vector<uint32_t> first_chunk(footer_.frames.size() + 1,
                                      static_cast<uint32_t>(footer_.chunks.size()));
    for (size_t c = footer_.chunks.size(); c-- > 0;) {
      first_chunk[footer_.chunks[c].frame] = static_cast<uint32_t>(c);
    }
    const int fd = temporary_.fd.get();
    const size_t frames = footer_.frames.size();
    constexpr size_t kWorthThread = 8;
    const size_t middle = frames < kWorthThread ? frames : frames / 2;
    Status second;
    std::thread helper;
    if (middle < frames) {
      helper =
          std::thread([&] { second = VerifyFrames(fd, footer_, first_chunk, middle, frames); });
    }
    Status first = VerifyFrames(fd, footer_, first_chunk, 0, middle);
    if (helper.joinable()) helper.join();
    ESKER_RETURN_IF_ERROR(first);
    ESKER_RETURN_IF_ERROR(second);
    // The id is the footer's digest, so reading it under its id compares every byte of it.
    return pack_format::ReadFooter(fd, id).status();
  }

  Store& store_;
  Store::Temporary temporary_;
  uint64_t offset_;  // where the next frame goes
  Status status_;    // the first write error; nothing is written after it
  uint32_t frames_queued_ = 0;
  std::string gathered_;  // the frame of small chunks that is being filled
  std::vector<PackChunk> gathered_chunks_;
  std::unordered_set<Digest, DigestHash> known_;
  PackFooter footer_;
  FrameCompressor compressor_;
};

}  // namespace

Result<std::unique_ptr<PackWriter>> PackWriter::Create(Store& store) {
  ESKER_ASSIGN_OR_RETURN(Store::Temporary temporary, store.NewTemporary());
  auto writer = std::make_unique<PackWriterImpl>(store, std::move(temporary));
  ESKER_RETURN_IF_ERROR(writer->Begin());
  return std::unique_ptr<PackWriter>(std::move(writer));
}

}  // namespace esker
