// Where the cgroup hierarchies of this machine are mounted.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace esker {

struct CgroupMounts {
  std::map<std::string, std::string> v1;  // controller -> mount point; co-mounted ones share it
  std::string unified;                    // cgroup2 mount point, "" if there is none
};

// From the text of /proc/<pid>/mountinfo (proc(5)). Lines that make no sense are passed over; of
// several mounts of one hierarchy the first counts.
CgroupMounts ParseCgroupMounts(std::string_view mountinfo);

}  // namespace esker
