#include <sys/stat.h>

#include "container_child.h"

namespace esker::keeper {

// The uid range already closes what only root may read or write; the covers also hide what all may
// read, and stand when a kernel forgets a check.
std::vector<ProcCover> FindProcCovers() {
  using With = ProcCover::With;
  static constexpr struct {
    const char* name;
    With with;
  } kCovers[] = {{"sys", With::kReadOnlyItself},
                 {"bus", With::kReadOnlyItself},
                 {"irq", With::kReadOnlyItself},
                 {"fs", With::kReadOnlyItself},
                 {"kcore", With::kNull},
                 {"kallsyms", With::kNull},
                 {"keys", With::kNull},
                 {"key-users", With::kNull},
                 {"timer_list", With::kNull},
                 {"sched_debug", With::kNull},
                 {"latency_stats", With::kNull},
                 {"kpagecount", With::kNull},
                 {"kpageflags", With::kNull},
                 {"kpagecgroup", With::kNull},
                 {"sysrq-trigger", With::kNull},
                 {"kmsg", With::kNull},
                 {"acpi", With::kEmptyDirectory},
                 {"scsi", With::kEmptyDirectory},
                 {"asound", With::kEmptyDirectory}};
  std::vector<ProcCover> covers;
  for (auto& cover : kCovers) {
    struct stat st;
    if (stat((std::string("/proc/") + cover.name).c_str(), &st) == 0) {
      covers.push_back({cover.name, cover.with});
    }
  }
  return covers;
}

}  // namespace esker::keeper
