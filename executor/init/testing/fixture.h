// What all privileged tests of init share: one sandbox and one node for each test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "base/id.h"
#include "test_node.h"
#include "test_sandbox.h"

namespace esker {

// Waits for a condition that nothing announces.
inline bool Eventually(const std::function<bool()>& condition, int timeout_ms = 10'000) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

class InitTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string why = TestSandbox::WhyNot(); !why.empty()) GTEST_SKIP() << why;
    StartSandbox({});
  }

  void StartSandbox(TestSandbox::Options options) {
    options.init_binary = ESKER_INIT_BINARY;
    auto sandbox = TestSandbox::Start(options);
    ASSERT_TRUE(sandbox.ok()) << sandbox.status().ToString();
    sandbox_ = std::move(*sandbox);
    node_ = std::make_unique<TestNode>();
    Status status = node_->Connect(sandbox_->socket_path());
    ASSERT_TRUE(status.ok()) << status.ToString();
    fds_at_start_ = sandbox_->CountInitFds();
  }

  void TearDown() override {
    if (sandbox_ == nullptr) return;
    node_ = nullptr;
    Status status = sandbox_->Stop();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  InitCommandSpec Spec(std::vector<std::string> argv) {
    InitCommandSpec spec;
    spec.command_id = RandomId();
    spec.argv = std::move(argv);
    return spec;
  }
  TestNode::Outcome Run(const InitCommandSpec& spec, const std::string& input = "") {
    auto outcome = node_->Run(spec, input);
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    return outcome.ok() ? *outcome : TestNode::Outcome{};
  }
  TestNode::Outcome Sh(const std::string& shell, const std::string& user = "") {
    InitCommandSpec spec = Spec({});
    spec.shell = shell;
    spec.user = user;
    return Run(spec);
  }
  // Acknowledging has no answer; a call behind it does.
  void Settle() { EXPECT_TRUE(node_->Configure({}).ok()); }
  // Nothing of any command is left in init.
  void ExpectIdle() {
    Settle();
    // A file call answers before its process ends.
    EXPECT_TRUE(Eventually([&] { return sandbox_->CountChildren() == 0; }));
    EXPECT_TRUE(Eventually([&] { return sandbox_->CountInitFds() == fds_at_start_; }))
        << sandbox_->CountInitFds() << " descriptors instead of " << fds_at_start_;
    EXPECT_EQ(sandbox_->CountCommandCgroups(), 0u);
  }

  std::unique_ptr<TestSandbox> sandbox_;
  std::unique_ptr<TestNode> node_;
  size_t fds_at_start_ = 0;
};

}  // namespace esker
