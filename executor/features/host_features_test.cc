#include "executor/host_features.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/io.h"
#include "base/temp_dir.h"
#include "testing/leak_check.h"

namespace esker {
namespace {

// What happens where something is missing is tests/e2e/test_kernel.py, with system calls refused.
TEST(HostFeatures, ThisMachineHasAllAndKeepsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  Result<TempDir> dir = TempDir::Create();
  ASSERT_TRUE(dir.ok());
  HostProbe probe{dir->path() + "/probe", "esker-features-test-" + std::to_string(getpid()), true};
  testing::LeakCheck leaks(dir->path());
  leaks.AddCgroup(probe.cgroup);
  // As one that was killed leaves it.
  ASSERT_TRUE(MakeDirectories(probe.directory + "/fuse/x").ok());
  for (int i = 0; i < 2; ++i) {
    Result<std::vector<Finding>> findings = RequireHost(probe);
    ASSERT_TRUE(findings.ok()) << findings.status().ToString();
    EXPECT_GT(findings->size(), 15u);
    for (const Finding& finding : *findings) EXPECT_FALSE(finding.detail.empty()) << finding.name;
  }
  EXPECT_EQ(leaks.Remains(), std::vector<std::string>());
  EXPECT_EQ(ListDirectory(dir->path())->size(), 0u);
  ASSERT_TRUE(dir->Remove().ok());
}

TEST(HostFeatures, ADirectoryThatCannotBeMadeIsNamed) {
  Status refused = RequireHost({"/proc/no/probe", "esker-features-test"}).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.message().find("/proc/no"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace esker
