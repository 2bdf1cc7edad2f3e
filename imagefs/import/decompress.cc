#include "decompress.h"

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "byte_source.h"

namespace esker::import_internal {
namespace {

constexpr size_t kPeekBytes = 6;
constexpr size_t kBufferBytes = 256u << 10;
// What a decompressor may take to remember; more is a hostile or exotic stream.
constexpr uint64_t kMaxXzMemory = 256u << 20;
constexpr int kMaxZstdWindowLog = 27;  // 128 MiB, what `zstd -d` allows by default

struct Buffers {
  const uint8_t* in = nullptr;
  size_t in_size = 0;
  bool in_is_last = false;  // the source has no more
  uint8_t* out = nullptr;
  size_t out_size = 0;
};

// One format. A compressed stream is one or more members, one after the other.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Begins a member.
  virtual Status Start() = 0;
  // Goes on, moving the buffers. True at the end of the member. A stream that needs more input
  // returns false with all input taken.
  virtual Result<bool> Step(Buffers& buffers) = 0;
};

Status Damaged(const char* format, const char* why) {
  return DataLossError(std::string("decompress the ") + format +
                       " stream: " + (why != nullptr ? why : "damaged"));
}

class GzipDecoder : public Decoder {
 public:
  ~GzipDecoder() override {
    if (started_) ::inflateEnd(&stream_);
  }
  Status Start() override {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    int result = started_ ? ::inflateReset(&stream_) : ::inflateInit2(&stream_, kGzipOnly);
    if (result != Z_OK) return ResourceExhaustedError("no memory to decompress gzip");
    started_ = true;
    return OkStatus();
  }
  Result<bool> Step(Buffers& b) override {
    stream_.next_in = const_cast<uint8_t*>(b.in);
    stream_.avail_in = static_cast<uInt>(b.in_size);
    stream_.next_out = b.out;
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(b.out_size, 1u << 30));
    const uInt room = stream_.avail_out;
    int result = ::inflate(&stream_, Z_NO_FLUSH);
    b.in = stream_.next_in;
    b.in_size = stream_.avail_in;
    b.out += room - stream_.avail_out;
    b.out_size -= room - stream_.avail_out;
    if (result == Z_STREAM_END) return true;
    // Z_BUF_ERROR: nothing could be done for want of input or room, which is no damage.
    if (result == Z_OK || result == Z_BUF_ERROR) return false;
    return Damaged("gzip", stream_.msg);
  }

 private:
  z_stream stream_ = {};
  bool started_ = false;
};

class ZstdDecoder : public Decoder {
 public:
  ~ZstdDecoder() override { ZSTD_freeDCtx(context_); }
  Status Start() override {
    if (context_ == nullptr) context_ = ZSTD_createDCtx();
    if (context_ == nullptr) return ResourceExhaustedError("no memory to decompress zstd");
    ZSTD_DCtx_reset(context_, ZSTD_reset_session_only);
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kMaxZstdWindowLog);
    return OkStatus();
  }
  Result<bool> Step(Buffers& b) override {
    ZSTD_inBuffer in = {b.in, b.in_size, 0};
    ZSTD_outBuffer out = {b.out, b.out_size, 0};
    size_t result = ZSTD_decompressStream(context_, &out, &in);
    b.in += in.pos;
    b.in_size -= in.pos;
    b.out += out.pos;
    b.out_size -= out.pos;
    if (ZSTD_isError(result)) return Damaged("zstd", ZSTD_getErrorName(result));
    return result == 0;
  }

 private:
  ZSTD_DCtx* context_ = nullptr;
};

class XzDecoder : public Decoder {
 public:
  ~XzDecoder() override { ::lzma_end(&stream_); }
  Status Start() override {
    if (::lzma_stream_decoder(&stream_, kMaxXzMemory, 0) != LZMA_OK) {
      return ResourceExhaustedError("no memory to decompress xz");
    }
    return OkStatus();
  }
  Result<bool> Step(Buffers& b) override {
    stream_.next_in = b.in;
    stream_.avail_in = b.in_size;
    stream_.next_out = b.out;
    stream_.avail_out = b.out_size;
    lzma_ret result = ::lzma_code(&stream_, LZMA_RUN);
    b.in = stream_.next_in;
    b.in_size = stream_.avail_in;
    b.out = stream_.next_out;
    b.out_size = stream_.avail_out;
    switch (result) {
      case LZMA_STREAM_END:
        return true;
      case LZMA_OK:
      case LZMA_BUF_ERROR:
        return false;
      case LZMA_MEMLIMIT_ERROR:
        return ResourceExhaustedError("decompress the xz stream: it needs more than 256 MiB");
      default:
        return Damaged("xz", nullptr);
    }
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

std::unique_ptr<Decoder> DecoderFor(std::string_view start) {
  using namespace std::string_view_literals;
  if (start.starts_with("\x1f\x8b"sv)) return std::make_unique<GzipDecoder>();
  if (start.starts_with("\x28\xb5\x2f\xfd"sv)) return std::make_unique<ZstdDecoder>();
  if (start.starts_with("\xfd"
                        "7zXZ\0"sv))
    return std::make_unique<XzDecoder>();
  return nullptr;
}

// Gives the peeked bytes first, then the rest.
class PeekedSource : public ByteSource {
 public:
  PeekedSource(std::string start, ByteSource& rest) : start_(std::move(start)), rest_(rest) {}
  Result<size_t> Read(void* buffer, size_t size) override {
    if (given_ == start_.size()) return rest_.Read(buffer, size);
    size_t n = std::min(size, start_.size() - given_);
    std::memcpy(buffer, start_.data() + given_, n);
    given_ += n;
    return n;
  }

 private:
  std::string start_;
  size_t given_ = 0;
  ByteSource& rest_;
};

class DecodingSource : public ByteSource {
 public:
  DecodingSource(std::unique_ptr<Decoder> decoder, std::string start, ByteSource& rest)
      : decoder_(std::move(decoder)), source_(std::move(start), rest), buffer_(kBufferBytes) {}

  Result<size_t> Read(void* buffer, size_t size) override {
    buffers_.out = static_cast<uint8_t*>(buffer);
    buffers_.out_size = size;
    while (buffers_.out_size == size && size > 0) {
      if (buffers_.in_size == 0 && !buffers_.in_is_last) ESKER_RETURN_IF_ERROR(Refill());
      if (!in_member_) {
        ESKER_ASSIGN_OR_RETURN(bool another, StartMember());
        if (!another) return size_t{0};
      }
      const bool starved = buffers_.in_size == 0;
      ESKER_ASSIGN_OR_RETURN(bool ended, decoder_->Step(buffers_));
      if (ended) in_member_ = false;
      // Nothing to feed it and nothing came out: the rest is missing.
      if (!ended && starved && buffers_.in_is_last && buffers_.out_size == size) {
        return DataLossError("the compressed stream is cut off");
      }
    }
    return size - buffers_.out_size;
  }

 private:
  Status Refill() {
    ESKER_ASSIGN_OR_RETURN(size_t n, source_.Read(buffer_.data(), buffer_.size()));
    buffers_.in = buffer_.data();
    buffers_.in_size = n;
    buffers_.in_is_last = n == 0;
    return OkStatus();
  }

  // False at the end of the stream. Writers pad with zeros to whole blocks; anything else behind a
  // member must be another member, which the decoder finds out.
  Result<bool> StartMember() {
    while (any_member_) {
      while (buffers_.in_size > 0 && *buffers_.in == 0) {
        ++buffers_.in;
        --buffers_.in_size;
      }
      if (buffers_.in_size > 0) break;
      if (buffers_.in_is_last) return false;
      ESKER_RETURN_IF_ERROR(Refill());
    }
    ESKER_RETURN_IF_ERROR(decoder_->Start());
    in_member_ = any_member_ = true;
    return true;
  }

  std::unique_ptr<Decoder> decoder_;
  PeekedSource source_;
  std::vector<uint8_t> buffer_;
  Buffers buffers_;
  bool in_member_ = false;
  bool any_member_ = false;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> Decompress(ByteSource& source) {
  std::string start(kPeekBytes, '\0');
  ESKER_ASSIGN_OR_RETURN(size_t n, ReadFully(source, start.data(), start.size()));
  start.resize(n);
  std::unique_ptr<Decoder> decoder = DecoderFor(start);
  std::unique_ptr<ByteSource> plain;
  if (decoder == nullptr) {
    plain = std::make_unique<PeekedSource>(std::move(start), source);
  } else {
    plain = std::make_unique<DecodingSource>(std::move(decoder), std::move(start), source);
  }
  return plain;
}

}  // namespace esker::import_internal
