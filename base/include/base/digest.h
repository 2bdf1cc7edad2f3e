// SHA-256 digests: the names of chunks, blobs, images and packs. (FIPS 180-4, by OpenSSL.)
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace esker {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  auto operator<=>(const Digest&) const = default;
  std::string ToHex() const;
  std::string_view AsBytes() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // 64 lower-case hex digits, nothing else; INVALID_ARGUMENT otherwise.
  static Result<Digest> FromHex(std::string_view hex);
  // Exactly 32 raw bytes; INVALID_ARGUMENT otherwise.
  static Result<Digest> FromBytes(std::string_view raw);
};

struct DigestHash {
  size_t operator()(const Digest& d) const {
    size_t h;
    std::memcpy(&h, d.bytes.data(), sizeof(h));
    return h;
  }
};

// Incremental SHA-256. Thread-compatible. Finish() resets it for the next message.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void Update(const void* data, size_t size);
  void Update(std::string_view data) { Update(data.data(), data.size()); }
  Digest Finish();

  static Digest Of(const void* data, size_t size);
  static Digest Of(std::string_view data) { return Of(data.data(), data.size()); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Lower-case hex of any bytes, and back (INVALID_ARGUMENT on anything but pairs of hex digits).
std::string HexEncode(std::string_view bytes);
Result<std::string> HexDecode(std::string_view hex);

// CRC-32C (Castagnoli), hardware where the CPU has it. `seed` continues an earlier result.
uint32_t Crc32c(const void* data, size_t size, uint32_t seed = 0);

}  // namespace esker
