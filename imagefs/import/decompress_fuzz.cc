// Any bytes as a compressed stream. What zlib makes of gzip, ours must make of it too.
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "decompress.h"

namespace {

constexpr size_t kMaxPlain = 1 << 20;

class FuzzSource : public esker::ByteSource {
 public:
  FuzzSource(const uint8_t* data, size_t size, size_t step)
      : data_(data), left_(size), step_(step) {}
  esker::Result<size_t> Read(void* buffer, size_t size) override {
    const size_t n = std::min({size, left_, step_});
    std::memcpy(buffer, data_, n);
    data_ += n;
    left_ -= n;
    return n;
  }

 private:
  const uint8_t* data_;
  size_t left_, step_;
};

std::optional<std::string> Ours(const uint8_t* data, size_t size, size_t step) {
  FuzzSource source(data, size, step);
  auto plain = esker::import_internal::Decompress(source);
  if (!plain.ok()) return std::nullopt;
  std::string out;
  char buffer[5000];
  while (out.size() < kMaxPlain) {
    auto n = (*plain)->Read(buffer, step < sizeof(buffer) ? step + 1 : sizeof(buffer));
    if (!n.ok()) return std::nullopt;
    if (*n == 0) break;
    out.append(buffer, *n);
  }
  return out;
}

// One member that fills the whole input.
std::optional<std::string> Zlib(const uint8_t* data, size_t size) {
  z_stream stream = {};
  if (::inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) std::abort();
  std::string out(kMaxPlain, '\0');
  stream.next_in = const_cast<Bytef*>(data);
  stream.avail_in = static_cast<uInt>(size);
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = ::inflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  const bool whole = result == Z_STREAM_END && stream.avail_in == 0;
  ::inflateEnd(&stream);
  if (!whole) return std::nullopt;
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t step = data[0] == 0 ? 1 << 20 : data[0];
  ++data;
  --size;
  const std::optional<std::string> pieces = Ours(data, size, step);
  const std::optional<std::string> whole = Ours(data, size, 1 << 20);
  // How the bytes arrive must not matter.
  if (pieces.has_value() != whole.has_value()) std::abort();
  if (whole && whole->size() < kMaxPlain && *whole != *pieces) std::abort();
  if (size > 2 && data[0] == 0x1f && data[1] == 0x8b) {
    const std::optional<std::string> other = Zlib(data, size);
    if (other && other->size() < kMaxPlain && other != whole) std::abort();
  }
  return 0;
}
