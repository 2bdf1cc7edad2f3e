#include "base/temp_dir.h"

#include <cstdlib>

#include "base/io.h"

namespace esker {

Result<TempDir> TempDir::Create(const std::string& parent) {
  std::string base = parent;
  if (base.empty()) {
    const char* tmp = std::getenv("TMPDIR");
    base = tmp != nullptr && *tmp != '\0' ? tmp : "/var/tmp";
  }
  std::string path = base + "/esker-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return ErrnoError("make temporary directory in " + base);
  return TempDir(path);
}

TempDir::~TempDir() {
  if (!path_.empty()) (void)Remove();
}

Status TempDir::Remove() { return RemoveTree(std::exchange(path_, {})); }

}  // namespace esker
