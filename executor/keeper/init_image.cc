#include "init_image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/io.h"

namespace esker::keeper {

Result<UniqueFd> MakeProgramFile(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd program, OpenFile(path, O_RDONLY));
  struct stat st = {};
  if (fstat(program.get(), &st) != 0) return ErrnoError("stat " + path);
  UniqueFd copy(memfd_create("esker-init", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!copy.valid()) return ErrnoError("make a memory file for " + path);
  for (off_t done = 0; done < st.st_size;) {
    ssize_t n = sendfile(copy.get(), program.get(), &done, static_cast<size_t>(st.st_size - done));
    if (n < 0) return ErrnoError("copy " + path + " to memory");
    if (n == 0) return DataLossError(path + " became shorter while it was read");
  }
  if (fchmod(copy.get(), 0111) != 0 || fchown(copy.get(), 0, 0) != 0) {
    return ErrnoError("set mode and owner of the copy of " + path);
  }
  if (fcntl(copy.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)) {
    return ErrnoError("seal the copy of " + path);
  }
  // execve refuses a file that anyone has open for writing (ETXTBSY), this descriptor included.
  return OpenFile("/proc/self/fd/" + std::to_string(copy.get()), O_RDONLY);
}

Result<int> InitImage::Current() {
  struct stat st = {};
  if (stat(path_.c_str(), &st) != 0) return ErrnoError("find " + path_);
  int64_t changed = int64_t{st.st_ctim.tv_sec} * 1'000'000'000 + st.st_ctim.tv_nsec;
  if (!file_.valid() || st.st_ino != inode_ || changed != changed_ns_) {
    ESKER_ASSIGN_OR_RETURN(file_, MakeProgramFile(path_));
    inode_ = st.st_ino;
    changed_ns_ = changed;
  }
  return file_.get();
}

}  // namespace esker::keeper
