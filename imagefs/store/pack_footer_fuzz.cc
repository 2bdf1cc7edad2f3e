#include <cstdlib>

#include "imagefs/pack.h"

// What parses must say the same when written and parsed again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto footer = esker::PackFooter::Parse({reinterpret_cast<const char*>(data), size});
  if (!footer.ok()) return 0;
  std::string bytes = footer->Serialise();
  auto again = esker::PackFooter::Parse(bytes);
  if (!again.ok() || again->Serialise() != bytes) std::abort();
  return 0;
}
