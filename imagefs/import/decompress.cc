#include "decompress.h"

#include <isa-l/igzip_lib.h>
#include <lzma.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "byte_source.h"
#include "gzip_header.h"

namespace esker::import_internal {
namespace {

constexpr size_t kPeekBytes = 6;
constexpr size_t kBufferBytes = 256u << 10;
constexpr size_t kDirectBytes = 64u << 10;
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

const char* InflateError(int code) {
  switch (code) {
    case ISAL_INVALID_BLOCK:
      return "an invalid block";
    case ISAL_INVALID_SYMBOL:
      return "an invalid symbol";
    case ISAL_INVALID_LOOKBACK:
      return "a reference to before its start";
    case ISAL_INVALID_WRAPPER:
      return "an invalid header";
    case ISAL_UNSUPPORTED_METHOD:
      return "not deflate";
    case ISAL_INCORRECT_CHECKSUM:
      return "incorrect data check";
    default:
      return nullptr;
  }
}

// By ISA-L, which is faster than zlib (README.md); it checks CRC-32 and length at a member's end.
class GzipDecoder : public Decoder {
 public:
  Status Start() override {
    ::isal_inflate_init(&state_);
    state_.crc_flag = ISAL_GZIP_NO_HDR_VER;
    header_ = GzipHeader();
    return OkStatus();
  }
  Result<bool> Step(Buffers& b) override {
    ESKER_ASSIGN_OR_RETURN(bool begun, header_.Feed(b.in, b.in_size));
    if (!begun) return false;
    state_.next_in = const_cast<uint8_t*>(b.in);
    state_.avail_in = static_cast<uint32_t>(b.in_size);
    state_.next_out = b.out;
    state_.avail_out = static_cast<uint32_t>(std::min<size_t>(b.out_size, 1u << 30));
    const uint32_t room = state_.avail_out;
    const int result = ::isal_inflate(&state_);
    b.in = state_.next_in;
    b.in_size = state_.avail_in;
    b.out += room - state_.avail_out;
    b.out_size -= room - state_.avail_out;
    if (result != ISAL_DECOMP_OK) return Damaged("gzip", InflateError(result));
    return state_.block_state == ISAL_BLOCK_FINISH;
  }

 private:
  GzipHeader header_;
  inflate_state state_;
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
  // A stream may begin with a skippable frame (0x184D2A50 to 5F), as parallel compressors write.
  const bool skippable = start.size() >= 4 && (static_cast<uint8_t>(start[0]) & 0xf0) == 0x50 &&
                         start.substr(1, 3) == "\x2a\x4d\x18"sv;
  if (skippable || start.starts_with("\x28\xb5\x2f\xfd"sv)) return std::make_unique<ZstdDecoder>();
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
      : decoder_(std::move(decoder)),
        source_(std::move(start), rest),
        buffer_(kBufferBytes),
        plain_(kBufferBytes) {}

  // Small reads (a tar's headers) are served from a buffer, since a decoder works best on long
  // runs.
  Result<size_t> Read(void* buffer, size_t size) override {
    if (given_ == ready_) {
      if (size >= kDirectBytes) return Decode(static_cast<uint8_t*>(buffer), size);
      given_ = ready_ = 0;
      ESKER_ASSIGN_OR_RETURN(ready_, Decode(plain_.data(), plain_.size()));
    }
    const size_t n = std::min(size, ready_ - given_);
    std::memcpy(buffer, plain_.data() + given_, n);
    given_ += n;
    return n;
  }

 private:
  // Some bytes, 0 at the end.
  Result<size_t> Decode(uint8_t* buffer, size_t size) {
    buffers_.out = buffer;
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
  std::vector<uint8_t> plain_;  // decoded and not yet given: given_ to ready_
  size_t given_ = 0, ready_ = 0;
  Buffers buffers_;
  bool in_member_ = false;
  bool any_member_ = false;
};

}  // namespace

Result<bool> IsCompressed(ByteSource& source) {
  std::string start(kPeekBytes, '\0');
  ESKER_ASSIGN_OR_RETURN(size_t n, ReadFully(source, start.data(), start.size()));
  start.resize(n);
  return DecoderFor(start) != nullptr;
}

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
