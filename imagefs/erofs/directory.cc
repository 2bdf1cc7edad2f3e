#include "directory.h"

#include <cstring>

namespace esker::erofs {

void WriteDirectoryBlock(const DirectoryEntry* entries, size_t count, char* out) {
  size_t name_offset = count * sizeof(Dirent);
  for (size_t i = 0; i < count; ++i) {
    const Dirent dirent{entries[i].nid, static_cast<uint16_t>(name_offset), entries[i].file_type,
                        0};
    std::memcpy(out + i * sizeof(Dirent), &dirent, sizeof(dirent));
    std::memcpy(out + name_offset, entries[i].name.data(), entries[i].name.size());
    name_offset += entries[i].name.size();
  }
}

}  // namespace esker::erofs
