#include "base/digest.h"

#include <openssl/evp.h>

#include <cstdlib>

namespace esker {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int k = 0; k < 8; ++k) crc = (crc & 1) ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

uint32_t CrcPortable(uint32_t crc, const uint8_t* p, size_t n) {
  while (n--) crc = (crc >> 8) ^ kCrcTable[(crc ^ *p++) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t CrcSse42(uint32_t crc, const uint8_t* p, size_t n) {
  uint64_t wide = crc;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  while (n--) crc = __builtin_ia32_crc32qi(crc, *p++);
  return crc;
}
#endif

}  // namespace

std::string HexEncode(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (unsigned char c : bytes) {
    out.push_back(kDigits[c >> 4]);
    out.push_back(kDigits[c & 15]);
  }
  return out;
}

Result<std::string> HexDecode(std::string_view hex) {
  if (hex.size() % 2 != 0) return InvalidArgumentError("hex text has an odd length");
  std::string out;
  out.reserve(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); i += 2) {
    int high = HexValue(hex[i]), low = HexValue(hex[i + 1]);
    if (high < 0 || low < 0) return InvalidArgumentError("not lower-case hex: " + std::string(hex));
    out.push_back(static_cast<char>(high << 4 | low));
  }
  return out;
}

std::string Digest::ToHex() const { return HexEncode(AsBytes()); }

Result<Digest> Digest::FromHex(std::string_view hex) {
  if (hex.size() != 64) {
    return InvalidArgumentError("a digest is 64 hex digits, got " + std::to_string(hex.size()));
  }
  ESKER_ASSIGN_OR_RETURN(std::string raw, HexDecode(hex));
  return FromBytes(raw);
}

Result<Digest> Digest::FromBytes(std::string_view raw) {
  Digest digest;
  if (raw.size() != digest.bytes.size()) {
    return InvalidArgumentError("a digest is 32 bytes, got " + std::to_string(raw.size()));
  }
  std::memcpy(digest.bytes.data(), raw.data(), raw.size());
  return digest;
}

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
  void Init() {
    // Only memory exhaustion fails here, and nothing sensible can follow that.
    if (context == nullptr || EVP_DigestInit_ex(context, EVP_sha256(), nullptr) != 1) std::abort();
  }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) { impl_->Init(); }
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(const void* data, size_t size) {
  if (EVP_DigestUpdate(impl_->context, data, size) != 1) std::abort();
}

Digest Sha256::Finish() {
  Digest digest;
  if (EVP_DigestFinal_ex(impl_->context, digest.bytes.data(), nullptr) != 1) std::abort();
  impl_->Init();
  return digest;
}

Digest Sha256::Of(const void* data, size_t size) {
  Sha256 hash;
  hash.Update(data, size);
  return hash.Finish();
}

uint32_t Crc32c(const void* data, size_t size, uint32_t seed) {
  const auto* p = static_cast<const uint8_t*>(data);
  uint32_t crc = ~seed;
#if defined(__x86_64__)
  static const bool kHasSse42 = __builtin_cpu_supports("sse4.2");
  if (kHasSse42) return ~CrcSse42(crc, p, size);
#endif
  return ~CrcPortable(crc, p, size);
}

}  // namespace esker
