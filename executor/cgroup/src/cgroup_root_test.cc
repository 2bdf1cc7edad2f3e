// Privileged: real limits on the machine's own hierarchies.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>

#include "base/id.h"
#include "base/io.h"
#include "base/process.h"
#include "executor/cgroup.h"

namespace esker {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Waits for a condition that no descriptor announces.
bool Eventually(const std::function<bool()>& condition, int timeout_ms = 10'000) {
  auto deadline = steady_clock::now() + milliseconds(timeout_ms);
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    sched_yield();
  }
  return true;
}

class CgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "making cgroups needs root";
    name_ = RandomId("esker-test");
    auto root = CgroupRoot::Open(name_);
    ASSERT_TRUE(root.ok()) << root.status().ToString();
    root_ = std::move(*root);
  }

  void TearDown() override {
    if (root_ == nullptr) return;
    auto left = root_->List();
    ASSERT_TRUE(left.ok());
    for (const std::string& id : *left) {
      EXPECT_TRUE(root_->KillAll(id, 10'000).ok());
      Status removed = root_->Remove(id);
      EXPECT_TRUE(removed.ok()) << removed.ToString();
    }
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    Status closed = root_->Close();
    EXPECT_TRUE(closed.ok()) << closed.ToString();
    auto mounts = ListDirectory("/sys/fs/cgroup");
    for (const std::string& mount : mounts.value()) {
      EXPECT_FALSE(PathExists("/sys/fs/cgroup/" + mount + "/" + name_)) << mount;
    }
  }

  void Create(const std::string& id, const CgroupLimits& limits = {}) {
    Status status = root_->Create(id, limits, 0, 0);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  // A child born in the cgroup, as the keeper makes them.
  pid_t StartIn(const std::string& id, const std::function<void()>& body) {
    auto entry = root_->OpenEntry(id);
    if (!entry.ok()) {
      ADD_FAILURE() << entry.status().ToString();
      return -1;
    }
    clone_args args = {};
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = SIGCHLD;
    args.cgroup = static_cast<uint64_t>(entry->unified.get());
    auto pid = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof(args)));
    if (pid == 0) {
      for (UniqueFd& tasks : entry->tasks) {
        if (::write(tasks.get(), "0", 1) != 1) ::_exit(100);
      }
      body();
      ::_exit(0);
    }
    EXPECT_GT(pid, 0) << strerror(errno);
    return pid;
  }

  int Wait(pid_t pid) {
    int status = -1;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return status;
  }

  CgroupUsage Usage(const std::string& id) {
    auto usage = root_->GetUsage(id);
    EXPECT_TRUE(usage.ok()) << usage.status().ToString();
    return usage.ok() ? *usage : CgroupUsage{};
  }

  std::string name_;
  std::unique_ptr<CgroupRoot> root_;
};

void TouchMemory(size_t bytes) {
  auto* memory = static_cast<char*>(
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (size_t i = 0; i < bytes; i += 4096) memory[i] = 1;
}

[[noreturn]] void SpinForever() {
  for (;;) asm volatile("");
}

TEST_F(CgroupTest, AMemoryHogIsKilledAndCounted) {
  Create("hog", {.memory_bytes = 32 << 20});
  EXPECT_EQ(Usage("hog").memory_limit_bytes, 32u << 20);
  int status = Wait(StartIn("hog", [] { TouchMemory(256 << 20); }));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  CgroupUsage usage = Usage("hog");
  EXPECT_EQ(usage.oom_kills, 1u);
  EXPECT_EQ(*root_->CountOomKills("hog"), 1u);
  EXPECT_GT(usage.memory_peak_bytes, 16u << 20);
  EXPECT_LE(usage.memory_peak_bytes, 32u << 20);
}

TEST_F(CgroupTest, LimitsCanBeRaisedLoweredAndLifted) {
  Create("a", {.memory_bytes = 32 << 20, .pids = 5, .cpus = 0.5, .cpu_shares = 512});
  for (uint64_t bytes : {64u << 20, 16u << 20, 0u}) {
    Status status = root_->SetLimits("a", {.memory_bytes = bytes});
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(Usage("a").memory_limit_bytes, bytes);
  }
  EXPECT_EQ(Wait(StartIn("a", [] { TouchMemory(40 << 20); })), 0);
}

TEST_F(CgroupTest, AForkBombStopsAtTheLimitAndIsKilledWhole) {
  Create("bomb", {.pids = 20});
  pid_t leader = StartIn("bomb", [] {
    for (;;) ::fork();
  });
  EXPECT_TRUE(Eventually([&] { return Usage("bomb").pids_limit_hits > 0; }));
  EXPECT_LE(Usage("bomb").pids, 20u);
  auto start = steady_clock::now();
  Status status = root_->KillAll("bomb", 10'000);
  EXPECT_TRUE(status.ok()) << status.ToString();
  RecordProperty("kill_ms", static_cast<int>((steady_clock::now() - start) / milliseconds(1)));
  Wait(leader);
  EXPECT_TRUE(Eventually([&] { return Usage("bomb").pids == 0; }));
  EXPECT_TRUE(root_->Remove("bomb").ok());
}

TEST_F(CgroupTest, CpuQuotaThrottlesAndIsMeasured) {
  Create("slow", {.cpus = 0.1});
  StartIn("slow", SpinForever);
  EXPECT_TRUE(Eventually([&] { return Usage("slow").cpu_throttled_nanos > 100'000'000; }));
  EXPECT_GT(Usage("slow").cpu_nanos, 0u);
}

TEST_F(CgroupTest, FreezeHoldsAndThawContinues) {
  Create("ice");
  StartIn("ice", SpinForever);
  Status status = root_->Freeze("ice", 5000);
  ASSERT_TRUE(status.ok()) << status.ToString();
  uint64_t frozen = Usage("ice").cpu_nanos;
  // A cgroup that runs needs about this long to show; a frozen one may not move at all.
  Create("witness");
  pid_t witness = StartIn("witness", SpinForever);
  EXPECT_TRUE(Eventually([&] { return Usage("witness").cpu_nanos > 30'000'000; }));
  EXPECT_EQ(Usage("ice").cpu_nanos, frozen);
  ::kill(witness, SIGKILL);
  Wait(witness);
  ASSERT_TRUE(root_->Thaw("ice").ok());
  EXPECT_TRUE(Eventually([&] { return Usage("ice").cpu_nanos > frozen; }));
}

TEST_F(CgroupTest, AFrozenTreeWithNestedCgroupsIsKilled) {
  Create("tree");
  auto entry = root_->OpenEntry("tree");
  ASSERT_TRUE(entry.ok());
  ASSERT_EQ(::mkdirat(entry->unified.get(), "c-1", 0755), 0);
  ASSERT_EQ(::mkdirat(entry->unified.get(), "c-1/deeper", 0755), 0);
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  StartIn("tree", [&] {
    int procs = ::openat(entry->unified.get(), "c-1/deeper/cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (::write(procs, "0", 1) != 1) ::_exit(101);
    if (::fork() == 0) {
      ::setsid();
      if (::fork() != 0) ::_exit(0);
      if (::write(pipe[1], "x", 1) != 1) ::_exit(102);
    }
    for (;;) ::pause();
  });
  char byte;
  ASSERT_EQ(::read(pipe[0], &byte, 1), 1);
  ::close(pipe[0]);
  ::close(pipe[1]);
  EXPECT_EQ(root_->Remove("tree").code(), Code::kFailedPrecondition);
  ASSERT_TRUE(root_->Freeze("tree", 5000).ok());
  Status status = root_->KillAll("tree", 5000);
  EXPECT_TRUE(status.ok()) << status.ToString();
  status = root_->Remove("tree");
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(root_->Remove("tree").ok()) << "removing twice is fine";
  EXPECT_EQ(root_->Freeze("tree", 100).code(), Code::kNotFound);
}

TEST_F(CgroupTest, ANewNodeAdoptsWhatIsThere) {
  Create("kept", {.pids = 9});
  StartIn("kept", SpinForever);
  auto second = CgroupRoot::Open(name_);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->List().value(), std::vector<std::string>{"kept"});
  Status status = (*second)->Create("kept", {.memory_bytes = 8 << 20}, 0, 0);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(Usage("kept").memory_limit_bytes, 8u << 20);
  EXPECT_TRUE(Eventually([&] { return Usage("kept").pids == 1; }));
  EXPECT_EQ((*second)->Close().code(), Code::kFailedPrecondition) << "it is in use";
}

TEST_F(CgroupTest, TheOwnerMayMakeAndKillChildCgroupsButNotTouchLimits) {
  ASSERT_TRUE(root_->Create("mine", {.memory_bytes = 64 << 20}, 12345, 12346).ok());
  int status = Wait(StartIn("mine", [&] {
    if (::setresgid(12346, 12346, 12346) != 0 || ::setresuid(12345, 12345, 12345) != 0) {
      ::_exit(1);
    }
    std::string own = "/sys/fs/cgroup/unified/" + name_ + "/mine";
    if (!PathExists(own)) ::_exit(77);  // mounted elsewhere
    if (::mkdir((own + "/c-1").c_str(), 0755) != 0) ::_exit(2);
    pid_t child = ::fork();
    if (child == 0) {
      if (!WriteStringToFile(own + "/c-1/cgroup.procs", "0").ok()) ::_exit(3);
      for (;;) ::pause();
    }
    while (ReadFileToString(own + "/c-1/cgroup.procs")->empty()) sched_yield();
    if (!WriteStringToFile(own + "/c-1/cgroup.kill", "1").ok()) ::_exit(4);
    int ended;
    if (::waitpid(child, &ended, 0) != child || !WIFSIGNALED(ended)) ::_exit(5);
    if (WriteStringToFile(own + "/cgroup.freeze", "1").ok()) ::_exit(6);
    if (WriteStringToFile("/sys/fs/cgroup/memory/" + name_ + "/mine/memory.limit_in_bytes", "-1")
            .ok()) {
      ::_exit(7);
    }
  }));
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "cgroup2 is not at /sys/fs/cgroup/unified";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(CgroupTest, MemoryIsReclaimed) {
  Create("cache");
  int status = Wait(StartIn("cache", [] {
    char name[] = "/var/tmp/esker-cgroup-test-XXXXXX";
    int fd = ::mkostemp(name, O_CLOEXEC);
    ::unlink(name);
    std::string block(1 << 20, 'x');
    for (int i = 0; i < 16; ++i) {
      if (::write(fd, block.data(), block.size()) < 0) ::_exit(1);
    }
    ::fsync(fd);
    TouchMemory(1 << 20);
  }));
  ASSERT_EQ(status, 0);
  auto freed = root_->ReclaimMemory("cache");
  ASSERT_TRUE(freed.ok()) << freed.status().ToString();
}

TEST_F(CgroupTest, BadNamesAreRefused) {
  for (const char* id : {"", "..", "a/b", ".x"}) {
    EXPECT_EQ(root_->Create(id, {}, 0, 0).code(), Code::kInvalidArgument) << id;
    EXPECT_EQ(root_->Remove(id).code(), Code::kInvalidArgument) << id;
  }
  EXPECT_EQ(CgroupRoot::Open("../x").status().code(), Code::kInvalidArgument);
}

TEST_F(CgroupTest, AThousandComeAndGo) {
  auto start = steady_clock::now();
  for (int i = 0; i < 1000; ++i) {
    Create("s", {.memory_bytes = 64 << 20, .pids = 10, .cpus = 1});
    Status status = root_->Remove("s");
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  auto took = std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - start);
  RecordProperty("create_and_remove_us", static_cast<int>(took.count() / 1000));
}

}  // namespace
}  // namespace esker
