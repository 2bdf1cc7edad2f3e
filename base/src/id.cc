#include "base/id.h"

#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

#include "base/io.h"

namespace esker {

std::string RandomId() {
  static constexpr char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::string id;
  while (id.size() < 20) {
    uint8_t bytes[32];
    if (::getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) std::abort();
    for (uint8_t byte : bytes) {
      // 252 = 7 * 36: larger values would favour the first letters.
      if (byte < 252 && id.size() < 20) id.push_back(kAlphabet[byte % 36]);
    }
  }
  return id;
}

std::string RandomId(std::string_view prefix) { return std::string(prefix) + "-" + RandomId(); }

Status CheckIdentifier(std::string_view what, std::string_view id) {
  if (id.empty() || id.size() > 64) {
    return InvalidArgumentError(std::string(what) + " must have 1 to 64 characters, has " +
                                std::to_string(id.size()));
  }
  if (id[0] == '.' || id[0] == '-') {
    return InvalidArgumentError(std::string(what) + " must not start with '" + id[0] + "'");
  }
  for (char c : id) {
    bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                c == '_' || c == '.' || c == '-';
    if (!good) {
      return InvalidArgumentError(std::string(what) +
                                  " may contain letters, digits, '_', '.' and '-' only");
    }
  }
  return OkStatus();
}

const std::string& BootId() {
  static const std::string kId = [] {
    Result<std::string> text = ReadFileToString("/proc/sys/kernel/random/boot_id", 64);
    std::string id = text.ok() ? *text : "unknown";
    while (!id.empty() && id.back() == '\n') id.pop_back();
    return id;
  }();
  return kId;
}

}  // namespace esker
