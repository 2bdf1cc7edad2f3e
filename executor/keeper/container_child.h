// The child's side of building a container: from clone3 to the execve of init.
//
// The keeper prepares a BuildPlan, clones, and the child runs BuildContainer on its copy of it.
// Only system calls in here: no allocation, no locks, no destructors. Why it is built this way:
// docs/decisions/0002-keeper.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace esker::keeper {

// A file or directory of /proc that is covered in every sandbox.
struct ProcCover {
  enum class With : uint8_t { kNull, kEmptyDirectory, kReadOnlyItself };
  std::string name;  // relative to /proc
  With with = With::kNull;
};
// Those that this kernel has, in the order in which they are mounted.
std::vector<ProcCover> FindProcCovers();

// Every descriptor lies above kFirstFreeFd, so that init's numbers can be filled with dup3.
inline constexpr int kFirstFreeFd = 16;

struct BuildPlan {
  // Borrowed; valid until execve.
  int report = -1;                    // write end of the report pipe
  int keeper_pidfd = -1;              // to notice that the keeper died before it could be watched
  int template_ns = -1;               // the template mount namespace
  int user_ns = -1;                   // the range's
  int network_ns = -1;                // from the pool; -1: the child makes its own
  int skeleton = -1;                  // lowest lower: the mount points
  int dev = -1, sys = -1;             // what is bound there
  int volume = -1;                    // detached mount of the volume; -1: tmpfs upper
  int init = -1;                      // esker-init's memory file
  int log = -1;                       // init's standard error
  int listen = -1;                    // init's fd 3
  int unified = -1;                   // init's fd 4; -1: none
  const char* filter_path = nullptr;  // reopened for init's fd 5, for an offset of its own
  const int* tasks = nullptr;
  size_t task_count = 0;
  const int* layers = nullptr;  // topmost first
  size_t layer_count = 0;
  const ProcCover* covers = nullptr;
  size_t cover_count = 0;

  uint32_t first_id = 0;  // of the range
  bool read_only = false;
  bool private_network = true;
  uint32_t nofile_limit = 0;
  const char* hostname = nullptr;
  // Numbers as text, made before the clone.
  const char* first_id_text = nullptr;  // mount option uid=, gid=
  const char* tty_gid_text = nullptr;   // the range's group 5
  const char* shm_bytes_text = nullptr;
};

[[noreturn]] void BuildContainer(const BuildPlan& plan);

}  // namespace esker::keeper
