// NodeTest: a node in a directory of its own; fails if anything of it is left at the end.
#pragma once

#include <grpc/grpc.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/id.h"
#include "node_rig.h"
#include "testing/leak_check.h"

namespace esker::testing {

inline const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}

#define ASSERT_OK(expr)                                                  \
  do {                                                                   \
    auto&& ok_ = (expr);                                                 \
    ASSERT_TRUE(ok_.ok()) << ::esker::testing::StatusOf(ok_).ToString(); \
  } while (false)
#define EXPECT_OK(expr)                                                  \
  do {                                                                   \
    auto&& ok_ = (expr);                                                 \
    EXPECT_TRUE(ok_.ok()) << ::esker::testing::StatusOf(ok_).ToString(); \
  } while (false)

// Waits for a condition that nothing announces; false when it does not come.
inline bool Eventually(const std::function<bool()>& condition, int timeout_ms = 20'000) {
  const int64_t deadline = Clock::System().MonotonicNanos() + timeout_ms * int64_t{1'000'000};
  while (!condition()) {
    if (Clock::System().MonotonicNanos() > deadline) return false;
    ::usleep(2'000);
  }
  return true;
}

class NodeTest : public LeakCheckedTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: it mounts and makes cgroups";
    // The library's poller is the process's, made with the first channel and kept: before the count.
    [[maybe_unused]] static const bool kept = (grpc_init(), true);
    LeakCheckedTest::SetUp();
    node_id_ = "t" + RandomId().substr(0, 7);
    leaks().AddCgroup("esker-" + node_id_);
    rig_ = std::make_unique<NodeRig>(directory(), node_id_);
    ASSERT_OK(rig_->Open());
  }
  void TearDown() override {
    if (rig_ != nullptr) EXPECT_OK(rig_->Drain());
    rig_.reset();
    LeakCheckedTest::TearDown();
  }
  // As a new server process would: the objects go and come again, the sandboxes stay.
  void Reopen() {
    rig_->Close();
    ASSERT_OK(rig_->Open());
  }

  // From here on the node's wall time is clock_'s, over every reopening.
  void UseFakeClock() {
    rig_->options.clock = &clock_;
    Reopen();
  }

  Node& node() { return rig_->node(); }
  static SandboxSpec Spec() {
    SandboxSpec spec;
    spec.image = "busybox:1";
    return spec;
  }
  std::string MustCreate(const SandboxSpec& spec = Spec()) {
    Result<SandboxInfo> info = node().Create(spec);
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info.ok() ? info->id : "";
  }
  std::string MustRun(const std::string& sandbox, const std::string& shell) {
    Result<RunResult> run = RunShell(node(), sandbox, shell);
    EXPECT_TRUE(run.ok()) << run.status().ToString();
    if (!run.ok()) return "";
    EXPECT_EQ(run->info.status.exit_code, 0) << shell << ": " << run->err;
    return run->out;
  }
  CommandInfo MustStart(const std::string& sandbox, const CommandSpec& spec) {
    Result<CommandInfo> info = Start(node(), sandbox, spec);
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info.ok() ? *info : CommandInfo();
  }
  CommandInfo MustStart(const std::string& sandbox, const std::string& shell) {
    CommandSpec spec;
    spec.shell = shell;
    spec.background = true;
    return MustStart(sandbox, spec);
  }
  void Follow(Collector& collector, const CommandInfo& command, uint64_t from = 0) {
    auto subscription = node().Attach(command.sandbox_id, command.id, from, 0, true, &collector);
    ASSERT_OK(subscription);
    collector.Follow(std::move(*subscription));
  }
  // Polls until the sandbox has ended; the info then.
  SandboxInfo WaitEnded(const std::string& id, int timeout_ms = 15'000) {
    for (int waited = 0;; waited += 10) {
      Result<SandboxInfo> info = node().Get(id);
      if (info.ok() && info->state == SandboxState::kEnded) return *info;
      if (waited >= timeout_ms) {
        ADD_FAILURE() << "sandbox " << id << " did not end";
        return info.ok() ? *info : SandboxInfo();
      }
      ::usleep(10'000);
    }
  }

  std::string node_id_;
  FakeClock clock_;  // outlives the node
  std::unique_ptr<NodeRig> rig_;
};

}  // namespace esker::testing
