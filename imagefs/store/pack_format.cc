#include "pack_format.h"

#include <zstd.h>

#include <memory>

#include "base/wire.h"

namespace esker::pack_format {
namespace {

struct FreeCompressor {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};
struct FreeDecompressor {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

}  // namespace

std::string Header() {
  WireWriter out;
  out.PutRaw(kHeaderMagic);
  out.Put<uint32_t>(kVersion);
  out.Put<uint32_t>(0);
  return out.Take();
}

Status CheckHeader(std::string_view bytes) {
  if (bytes == Header()) return OkStatus();
  if (bytes.substr(0, kHeaderMagic.size()) != kHeaderMagic) {
    return DataLossError("the file does not start as a pack does");
  }
  return DataLossError("the pack has an unknown version or flags");
}

std::string SerialiseTrailer(const Trailer& trailer) {
  WireWriter out;
  out.PutRaw(kTrailerMagic);
  out.Put<uint32_t>(kVersion);
  out.Put<uint32_t>(trailer.footer_codec);
  out.Put<uint64_t>(trailer.footer_offset);
  out.Put<uint64_t>(trailer.footer_stored);
  out.Put<uint64_t>(trailer.footer_plain);
  out.PutDigest(trailer.footer_digest);
  out.Put<uint32_t>(trailer.footer_checksum);
  out.Put<uint32_t>(Crc32c(out.data().data(), out.size()));
  return out.Take();
}

Result<Trailer> ParseTrailer(std::string_view bytes, uint64_t file_bytes) {
  if (bytes.size() != kTrailerBytes || file_bytes < kHeaderBytes + kTrailerBytes) {
    return DataLossError("the pack is too short to hold a trailer");
  }
  WireReader in(bytes);
  if (in.GetRaw(kTrailerMagic.size()) != kTrailerMagic) {
    return DataLossError("the pack does not end as a pack does: it is cut off or damaged");
  }
  uint32_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + kTrailerBytes - sizeof(checksum), sizeof(checksum));
  if (checksum != Crc32c(bytes.data(), kTrailerBytes - sizeof(checksum))) {
    return DataLossError("the pack's trailer has a wrong checksum");
  }
  if (uint32_t version = in.Get<uint32_t>(); version != kVersion) {
    return DataLossError("the pack's trailer has unknown version " + std::to_string(version));
  }
  Trailer trailer;
  uint32_t codec = in.Get<uint32_t>();
  trailer.footer_offset = in.Get<uint64_t>();
  trailer.footer_stored = in.Get<uint64_t>();
  trailer.footer_plain = in.Get<uint64_t>();
  trailer.footer_digest = in.GetDigest();
  trailer.footer_checksum = in.Get<uint32_t>();
  if (codec != kCodecRaw && codec != kCodecZstd) {
    return DataLossError("the pack's footer has unknown codec " + std::to_string(codec));
  }
  trailer.footer_codec = static_cast<uint8_t>(codec);
  const uint64_t end = file_bytes - kTrailerBytes;
  if (trailer.footer_offset < kHeaderBytes || trailer.footer_offset > end ||
      trailer.footer_stored != end - trailer.footer_offset) {
    return DataLossError("the pack's footer does not lie between its frames and its trailer");
  }
  if (trailer.footer_stored > kMaxFooterBytes || trailer.footer_plain > kMaxFooterBytes ||
      (codec == kCodecRaw && trailer.footer_stored != trailer.footer_plain)) {
    return DataLossError("the pack's footer has impossible sizes");
  }
  return trailer;
}

Status CheckFrameSizes(uint64_t stored, uint64_t plain, uint8_t codec) {
  bool good = plain >= 1 && plain <= kMaxChunkSize;
  if (codec == kCodecRaw) {
    good = good && stored == plain;
  } else if (codec == kCodecZstd) {
    good = good && stored >= 1 && stored < plain;
  } else {
    return DataLossError("a frame has unknown codec " + std::to_string(codec));
  }
  if (good) return OkStatus();
  return DataLossError("a frame has impossible sizes: " + std::to_string(stored) + " stored, " +
                       std::to_string(plain) + " plain, codec " + std::to_string(codec));
}

Packed Compress(std::string plain) {
  thread_local std::unique_ptr<ZSTD_CCtx, FreeCompressor> context(ZSTD_createCCtx());
  // Output that would not save 1/32 does not fit, and zstd gives up early.
  size_t budget = plain.size() - plain.size() / 32;
  if (plain.size() < 32) return {std::move(plain), kCodecRaw};
  std::string out(budget, '\0');
  size_t n = ZSTD_compressCCtx(context.get(), out.data(), out.size(), plain.data(), plain.size(),
                               kZstdLevel);
  if (ZSTD_isError(n) || n >= budget) return {std::move(plain), kCodecRaw};
  out.resize(n);
  return {std::move(out), kCodecZstd};
}

Status Decompress(std::string_view stored, uint8_t codec, void* out, size_t size) {
  if (codec == kCodecRaw) {
    if (stored.size() != size) return DataLossError("a raw frame has a wrong size");
    std::memcpy(out, stored.data(), size);
    return OkStatus();
  }
  thread_local std::unique_ptr<ZSTD_DCtx, FreeDecompressor> context(ZSTD_createDCtx());
  size_t n = ZSTD_decompressDCtx(context.get(), out, size, stored.data(), stored.size());
  if (ZSTD_isError(n)) {
    return DataLossError(std::string("decompression failed: ") + ZSTD_getErrorName(n));
  }
  if (n != size) {
    return DataLossError("decompression gave " + std::to_string(n) + " bytes, not " +
                         std::to_string(size));
  }
  return OkStatus();
}

}  // namespace esker::pack_format
