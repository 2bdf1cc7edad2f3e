#include <sys/stat.h>

#include "base/io.h"
#include "imagefs/pack.h"
#include "pack_format.h"

namespace esker {
namespace pack_format {

Result<PackFooter> ReadFooter(int fd, const PackId& id) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return ErrnoError("stat the pack");
  const uint64_t size = static_cast<uint64_t>(status.st_size);
  if (size < kHeaderBytes + kTrailerBytes) {
    return DataLossError("the pack has only " + std::to_string(size) + " bytes");
  }
  std::string header(kHeaderBytes, '\0');
  ESKER_RETURN_IF_ERROR(PReadExact(fd, header.data(), header.size(), 0, "the header"));
  ESKER_RETURN_IF_ERROR(CheckHeader(header));
  std::string tail(kTrailerBytes, '\0');
  ESKER_RETURN_IF_ERROR(
      PReadExact(fd, tail.data(), tail.size(), size - tail.size(), "the trailer"));
  ESKER_ASSIGN_OR_RETURN(Trailer trailer, ParseTrailer(tail, size));
  if (trailer.footer_digest != id.digest) {
    return DataLossError("the file holds pack " + trailer.footer_digest.ToHex());
  }
  std::string stored(trailer.footer_stored, '\0');
  ESKER_RETURN_IF_ERROR(
      PReadExact(fd, stored.data(), stored.size(), trailer.footer_offset, "the footer"));
  if (Crc32c(stored.data(), stored.size()) != trailer.footer_checksum) {
    return DataLossError("pack footer: wrong checksum");
  }
  std::string plain(trailer.footer_plain, '\0');
  ESKER_RETURN_IF_ERROR(
      Decompress(stored, trailer.footer_codec, plain.data(), plain.size()).Wrap("pack footer"));
  if (Sha256::Of(plain) != id.digest) {
    return DataLossError("pack footer: its digest is not the pack's id");
  }
  ESKER_ASSIGN_OR_RETURN(PackFooter footer, PackFooter::Parse(plain));
  uint64_t frames_end = kHeaderBytes;
  if (!footer.frames.empty()) {
    frames_end = footer.frames.back().offset + footer.frames.back().stored;
  }
  if (frames_end > trailer.footer_offset) {
    return DataLossError("pack footer: its frames end beyond its own start");
  }
  return footer;
}

}  // namespace pack_format

Result<PackFooter> ReadPackFooter(const Store& store, const PackId& id) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, store.OpenPack(id));
  Result<PackFooter> footer = pack_format::ReadFooter(fd.get(), id);
  if (!footer.ok()) {
    return std::move(footer).status().Wrap("pack " + id.ToHex() + " in the store " + store.path());
  }
  return footer;
}

namespace {

std::string Describe(const ChunkLocation& location) {
  return "a frame of pack " + location.pack.ToHex();
}

}  // namespace

Result<std::vector<uint8_t>> DecodeFrame(std::string_view stored, const ChunkLocation& location) {
  ESKER_RETURN_IF_ERROR(
      pack_format::CheckFrameSizes(location.frame_stored, location.frame_plain, location.codec));
  if (stored.size() != location.frame_stored) {
    return DataLossError(Describe(location) + ": " + std::to_string(stored.size()) +
                         " bytes, wanted " + std::to_string(location.frame_stored));
  }
  if (location.codec == kCodecRaw) return std::vector<uint8_t>(stored.begin(), stored.end());
  std::vector<uint8_t> plain(location.frame_plain);
  ESKER_RETURN_IF_ERROR(pack_format::Decompress(stored, location.codec, plain.data(), plain.size())
                            .Wrap(Describe(location)));
  return plain;
}

Result<std::vector<uint8_t>> ReadFrame(int pack_fd, const ChunkLocation& location) {
  ESKER_RETURN_IF_ERROR(
      pack_format::CheckFrameSizes(location.frame_stored, location.frame_plain, location.codec));
  if (location.frame_offset > INT64_MAX - kMaxChunkSize) {
    return DataLossError("a frame at the impossible offset " +
                         std::to_string(location.frame_offset));
  }
  if (location.codec == kCodecRaw) {  // straight into place
    std::vector<uint8_t> plain(location.frame_plain);
    ESKER_RETURN_IF_ERROR(
        PReadExact(pack_fd, plain.data(), plain.size(), location.frame_offset, Describe(location)));
    return plain;
  }
  std::string stored(location.frame_stored, '\0');
  ESKER_RETURN_IF_ERROR(
      PReadExact(pack_fd, stored.data(), stored.size(), location.frame_offset, Describe(location)));
  return DecodeFrame(stored, location);
}

}  // namespace esker
