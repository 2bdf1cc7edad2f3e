#include "imagefs/import.h"

// The first byte says where the manifest ends and the config begins.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  size_t cut = text.size() * data[0] / 255;
  (void)esker::ParseOciImage(text.substr(0, cut), text.substr(cut));
  return 0;
}
