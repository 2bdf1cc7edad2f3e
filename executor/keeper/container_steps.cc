#include "container_steps.h"

#include <array>

namespace esker::keeper {

const char* StepName(Step step) {
  static constexpr std::array<const char*, static_cast<size_t>(Step::kCount)> kNames = {
      "start",
      "join the cgroups",
      "set the OOM score",
      "open the syscall filter",
      "enter the network namespace",
      "clone a layer's mount",
      "id-map a layer",
      "id-map the upper volume",
      "enter the template mount namespace",
      "make namespaces",
      "make a tmpfs upper",
      "open the upper volume",
      "raise capabilities",
      "mount overlay",
      "prove the root writable",
      "enter the root",
      "find a mount point",
      "mount /proc",
      "mask a file in /proc",
      "mount /dev",
      "mount /dev/pts",
      "mount /dev/shm",
      "mount /dev/mqueue",
      "mount /sys",
      "set the host name",
      "limit open files",
      "pass descriptors",
      "enter the user namespace",
      "become the sandbox's root",
      "tie init to the keeper",
      "execute init",
  };
  return step < Step::kCount ? kNames[static_cast<size_t>(step)] : "an unknown step";
}

}  // namespace esker::keeper
