// The one codec of Esker's own binary formats: pack footers, blob maps, presence maps and the
// keeper's and init's messages. Little-endian fixed-width integers, byte strings with a u32 length.
// No allocation in the reader; every read is bounds-checked and a failed reader stays failed.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/digest.h"
#include "base/status.h"

namespace esker {

class WireWriter {
 public:
  template <typename T>
    requires std::is_integral_v<T>
  void Put(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutBytes(std::string_view bytes) {
    Put<uint32_t>(static_cast<uint32_t>(bytes.size()));
    out_.append(bytes);
  }
  void PutRaw(std::string_view bytes) { out_.append(bytes); }
  void PutDigest(const Digest& digest) { out_.append(digest.AsBytes()); }
  size_t size() const { return out_.size(); }
  const std::string& data() const { return out_; }
  std::string Take() { return std::move(out_); }

 private:
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  std::string out_;
};

// Reads what WireWriter wrote from untrusted bytes. After any short read ok() is false, and all
// further reads give zeros and empty strings: check ok() (or Finish()) once at the end, and before
// using a count to size anything.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_integral_v<T>
  T Get() {
    T value{};
    if (rest_.size() < sizeof(T)) {
      Fail();
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  std::string_view GetBytes() { return GetRaw(Get<uint32_t>()); }
  std::string GetString() { return std::string(GetBytes()); }
  std::string_view GetRaw(size_t size) {
    if (rest_.size() < size) {
      Fail();
      return {};
    }
    std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }
  Digest GetDigest() {
    Digest digest;
    std::string_view raw = GetRaw(digest.bytes.size());
    if (raw.size() == digest.bytes.size()) std::memcpy(digest.bytes.data(), raw.data(), raw.size());
    return digest;
  }
  // A count of items that each take at least `min_item_size` bytes of what is left; fails (and
  // gives 0) if that many cannot be there, so a hostile count never sizes an allocation.
  uint32_t GetCount(size_t min_item_size) {
    uint32_t count = Get<uint32_t>();
    if (min_item_size != 0 && count > rest_.size() / min_item_size) {
      Fail();
      return 0;
    }
    return count;
  }
  bool ok() const { return ok_; }
  size_t remaining() const { return rest_.size(); }
  // OK if everything was there and nothing is left over; DATA_LOSS naming `what` otherwise.
  Status Finish(std::string_view what) const {
    if (!ok_) return DataLossError(std::string(what) + " is cut off");
    if (!rest_.empty()) {
      return DataLossError(std::string(what) + " has " + std::to_string(rest_.size()) +
                           " bytes too many");
    }
    return OkStatus();
  }

 private:
  void Fail() {
    ok_ = false;
    rest_ = {};
  }
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace esker
