#include "mounts.h"

#include <gtest/gtest.h>

namespace esker {
namespace {

TEST(CgroupMounts, FindsControllersMountedSeparatelyAndTheHybridTree) {
  CgroupMounts mounts = ParseCgroupMounts(
      "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
      "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
      "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:3 - cgroup cgroup rw,memory\n"
      "39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
      "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  EXPECT_EQ(mounts.unified, "/sys/fs/cgroup/unified");
  EXPECT_EQ(mounts.v1.size(), 3u);
  EXPECT_EQ(mounts.v1["memory"], "/sys/fs/cgroup/memory");
  EXPECT_EQ(mounts.v1["pids"], "/sys/fs/cgroup/pids");
  EXPECT_EQ(mounts.v1["cpu"], "/sys/fs/cgroup/cpu");
}

TEST(CgroupMounts, CoMountedControllersShareAMountPointAndEscapesAreUndone) {
  CgroupMounts mounts = ParseCgroupMounts(
      "32 31 0:29 / /c\\040g/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "33 31 0:29 / /later rw - cgroup cgroup rw,cpu,cpuacct\n");
  EXPECT_EQ(mounts.v1["cpu"], "/c g/cpu,cpuacct");
  EXPECT_EQ(mounts.v1["cpuacct"], "/c g/cpu,cpuacct");
  EXPECT_EQ(mounts.unified, "");
}

TEST(CgroupMounts, PureV2AndNonsense) {
  CgroupMounts mounts = ParseCgroupMounts(
      "\n- - -\n1 2 3\n30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
      "30 20 0:26 / /short rw - cgroup");
  EXPECT_EQ(mounts.unified, "/sys/fs/cgroup");
  EXPECT_TRUE(mounts.v1.empty());
}

}  // namespace
}  // namespace esker
