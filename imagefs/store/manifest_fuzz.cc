#include <cstdlib>

#include "imagefs/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto manifest = esker::Manifest::FromJson(text);
  if (manifest.ok() && manifest->ToJson() != text) std::abort();
  return 0;
}
