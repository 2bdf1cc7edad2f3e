#include <cstdlib>
#include <string>

#include "base/wire.h"
#include "imagefs/blob_map.h"

// The checksum is put right first, so that the fuzzer reaches what stands behind them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size > 4) {
    uint32_t checksum = esker::Crc32c(bytes.data(), size - 4);
    std::memcpy(bytes.data() + size - 4, &checksum, 4);
  }
  auto map = esker::BlobMap::Parse(bytes);
  if (!map.ok()) return 0;
  auto again = esker::BlobMap::Parse(map->Serialise());
  if (!again.ok() || again->id != map->id || again->size_bytes != map->size_bytes) std::abort();
  return 0;
}
