#include "compressor.h"

#include <zlib.h>
#include <zstd.h>

#include <vector>

namespace esker::export_internal {
namespace {

constexpr size_t kOutBytes = 128u << 10;

class PlainCompressor final : public Compressor {
 public:
  explicit PlainCompressor(ByteSink sink) : sink_(std::move(sink)) {}
  Status Write(std::string_view bytes) override { return sink_(bytes); }
  Status Finish() override { return OkStatus(); }

 private:
  ByteSink sink_;
};

// zlib rather than ISA-L: its output does not depend on the processor.
class GzipCompressor final : public Compressor {
 public:
  explicit GzipCompressor(ByteSink sink) : sink_(std::move(sink)), out_(kOutBytes) {}
  ~GzipCompressor() override {
    if (started_) ::deflateEnd(&stream_);
  }
  Status Start() {
    constexpr int kLevel = 6, kMemory = 8;
    if (::deflateInit2(&stream_, kLevel, Z_DEFLATED, 16 + MAX_WBITS, kMemory, Z_DEFAULT_STRATEGY) !=
        Z_OK) {
      return ResourceExhaustedError("no memory to compress");
    }
    started_ = true;
    return OkStatus();
  }
  Status Write(std::string_view bytes) override { return Run(bytes, Z_NO_FLUSH); }
  Status Finish() override { return Run({}, Z_FINISH); }

 private:
  Status Run(std::string_view bytes, int flush) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());  // at most a chunk
    for (;;) {
      stream_.next_out = out_.data();
      stream_.avail_out = static_cast<uInt>(out_.size());
      const int result = ::deflate(&stream_, flush);
      if (result == Z_STREAM_ERROR) return InternalError("zlib cannot compress");
      const size_t n = out_.size() - stream_.avail_out;
      if (n > 0) ESKER_RETURN_IF_ERROR(sink_({reinterpret_cast<const char*>(out_.data()), n}));
      if (stream_.avail_out != 0) return OkStatus();
    }
  }

  ByteSink sink_;
  std::vector<Bytef> out_;
  z_stream stream_ = {};
  bool started_ = false;
};

class ZstdCompressor final : public Compressor {
 public:
  explicit ZstdCompressor(ByteSink sink)
      : sink_(std::move(sink)), out_(ZSTD_CStreamOutSize()), context_(ZSTD_createCCtx()) {}
  ~ZstdCompressor() override { ZSTD_freeCCtx(context_); }
  Status Start() {
    if (context_ == nullptr) return ResourceExhaustedError("no memory to compress");
    ZSTD_CCtx_setParameter(context_, ZSTD_c_compressionLevel, 3);
    ZSTD_CCtx_setParameter(context_, ZSTD_c_checksumFlag, 1);
    return OkStatus();
  }
  Status Write(std::string_view bytes) override { return Run(bytes, ZSTD_e_continue); }
  Status Finish() override { return Run({}, ZSTD_e_end); }

 private:
  Status Run(std::string_view bytes, ZSTD_EndDirective directive) {
    ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
    for (;;) {
      ZSTD_outBuffer out = {out_.data(), out_.size(), 0};
      const size_t left = ZSTD_compressStream2(context_, &out, &in, directive);
      if (ZSTD_isError(left)) {
        return InternalError(std::string("zstd cannot compress: ") + ZSTD_getErrorName(left));
      }
      if (out.pos > 0) ESKER_RETURN_IF_ERROR(sink_({out_.data(), out.pos}));
      if (directive == ZSTD_e_end ? left == 0 : in.pos == in.size) return OkStatus();
    }
  }

  ByteSink sink_;
  std::vector<char> out_;
  ZSTD_CCtx* context_;
};

template <typename T>
Result<std::unique_ptr<Compressor>> Started(ByteSink sink) {
  auto compressor = std::make_unique<T>(std::move(sink));
  ESKER_RETURN_IF_ERROR(compressor->Start());
  return std::unique_ptr<Compressor>(std::move(compressor));
}

}  // namespace

Result<std::unique_ptr<Compressor>> Compressor::Create(LayerCompression kind, ByteSink sink) {
  switch (kind) {
    case LayerCompression::kGzip:
      return Started<GzipCompressor>(std::move(sink));
    case LayerCompression::kZstd:
      return Started<ZstdCompressor>(std::move(sink));
    case LayerCompression::kNone:
      break;
  }
  return std::unique_ptr<Compressor>(std::make_unique<PlainCompressor>(std::move(sink)));
}

}  // namespace esker::export_internal
