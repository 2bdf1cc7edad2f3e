#include "controllers.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "base/io.h"
#include "base/temp_dir.h"

namespace esker {
namespace {

// A directory with plain files in place of the kernel's, to see what would be written where.
class ControllerFiles : public testing::Test {
 protected:
  void SetUp() override {
    auto dir = TempDir::Create();
    ASSERT_TRUE(dir.ok()) << dir.status().ToString();
    dir_.emplace(std::move(*dir));
    auto fd = OpenFile(dir_->path(), O_RDONLY | O_DIRECTORY);
    ASSERT_TRUE(fd.ok());
    fd_ = std::move(*fd);
  }
  void Make(const std::string& name, std::string_view text = "") {
    auto fd = OpenFileAt(fd_.get(), name, O_WRONLY | O_CREAT | O_TRUNC);
    ASSERT_TRUE(fd.ok());
    ASSERT_TRUE(WriteFull(fd->get(), text.data(), text.size()).ok());
  }
  std::string Read(const char* name) {
    auto text = ReadCgroupFile(fd_.get(), name);
    return text.ok() ? *text : text.status().ToString();
  }
  Status Apply(Controller c, CgroupVersion v, const CgroupLimits& limits, bool fresh = true) {
    return ApplyLimits(c, v, fd_.get(), limits, fresh);
  }

  std::optional<TempDir> dir_;
  UniqueFd fd_;
};

TEST_F(ControllerFiles, V2Limits) {
  for (const char* name : {"memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight"}) {
    Make(name);
  }
  CgroupLimits limits = {.memory_bytes = 1 << 20, .pids = 7, .cpus = 1.5, .cpu_shares = 262'144};
  for (Controller c : {Controller::kMemory, Controller::kPids, Controller::kCpu}) {
    Status status = Apply(c, CgroupVersion::kV2, limits);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_EQ(Read("memory.max"), "1048576");
  EXPECT_EQ(Read("memory.swap.max"), "0");
  EXPECT_EQ(Read("pids.max"), "7");
  EXPECT_EQ(Read("cpu.max"), "150000 100000");
  EXPECT_EQ(Read("cpu.weight"), "10000");
}

TEST_F(ControllerFiles, V2WithoutSwapAccounting) {
  Make("memory.max");
  EXPECT_TRUE(Apply(Controller::kMemory, CgroupVersion::kV2, {.memory_bytes = 4096}).ok());
  EXPECT_EQ(Read("memory.max"), "4096");
}

TEST_F(ControllerFiles, AFreshCgroupWithoutLimitsIsNotWrittenTo) {
  EXPECT_TRUE(Apply(Controller::kMemory, CgroupVersion::kV1, {}).ok());
  EXPECT_TRUE(Apply(Controller::kCpu, CgroupVersion::kV2, {}).ok());
  // The files do not exist, so a write would fail.
  EXPECT_EQ(Apply(Controller::kPids, CgroupVersion::kV1, {}, false).code(), Code::kNotFound);
}

TEST_F(ControllerFiles, ATinyCpuLimitIsRoundedUpToWhatTheKernelTakes) {
  Make("cpu.cfs_period_us");
  Make("cpu.cfs_quota_us");
  EXPECT_TRUE(Apply(Controller::kCpu, CgroupVersion::kV1, {.cpus = 0.0001}).ok());
  EXPECT_EQ(Read("cpu.cfs_quota_us"), "1000");
}

TEST_F(ControllerFiles, V2Usage) {
  Make("memory.current", "4096\n");
  Make("memory.max", "max\n");
  Make("memory.events", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 5\noom_group_kill 0\n");
  Make("cpu.stat", "usage_usec 12\nuser_usec 7\nthrottled_usec 9\n");
  CgroupUsage usage;
  EXPECT_TRUE(ReadUsage(Controller::kMemory, CgroupVersion::kV2, fd_.get(), usage).ok());
  EXPECT_TRUE(ReadUsage(Controller::kCpu, CgroupVersion::kV2, fd_.get(), usage).ok());
  EXPECT_EQ(usage.memory_bytes, 4096u);
  EXPECT_EQ(usage.memory_limit_bytes, 0u);
  EXPECT_EQ(usage.oom_kills, 5u);
  EXPECT_EQ(usage.cpu_throttled_nanos, 9000u);
  EXPECT_EQ(ReadUnifiedCpuNanos(fd_.get()).value(), 12'000u);
}

TEST(FindKey, OnlyWholeKeys) {
  EXPECT_EQ(FindKey("oom_kill_disable 1\noom_kill 4", "oom_kill"), 4u);
  EXPECT_EQ(FindKey("oom_kill_disable 1\n", "oom_kill"), 0u);
  EXPECT_EQ(FindKey("", "x"), 0u);
}

TEST(WeightFromShares, EndsAndDefault) {
  EXPECT_EQ(WeightFromShares(0), 100u);
  EXPECT_EQ(WeightFromShares(1), 1u);
  EXPECT_EQ(WeightFromShares(1024), 39u);
  EXPECT_EQ(WeightFromShares(UINT32_MAX), 10'000u);
}

}  // namespace
}  // namespace esker
