// Privileged: nodes that come and go, sandboxes that misbehave, init started wrongly.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/io.h"
#include "base/socket.h"
#include "src/protocol.h"
#include "testing/fixture.h"

namespace esker {
namespace {

using testing::HasSubstr;

class Life : public InitTest {
 protected:
  void Reconnect() {
    Status status = node_->Connect(sandbox_->socket_path());
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
};

TEST_F(Life, ANewNodeGetsTheRestOfTheOutput) {
  InitCommandSpec spec = Spec({});
  // More than a pipe holds, so that it is blocked while nobody reads.
  spec.shell = "i=0; while [ $i -lt 40000 ]; do echo line $i; i=$((i+1)); done";
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok());
  std::string seen = TestNode::ReadUntil(started->pipes.out.get(), "line 100\n");
  started->pipes = {};
  node_->Disconnect();
  Reconnect();
  ASSERT_EQ(node_->inventory().commands.size(), 1u);
  EXPECT_EQ(node_->inventory().protocol, init_protocol::kVersion);
  EXPECT_EQ(node_->inventory().commands[0].command_id, spec.command_id);
  EXPECT_EQ(node_->inventory().commands[0].state, InitCommandState::kRunning);
  auto pipes = node_->Handover(spec.command_id);
  ASSERT_TRUE(pipes.ok()) << pipes.status().ToString();
  seen += TestNode::ReadAll(pipes->out.get());
  auto status = node_->WaitExit(spec.command_id);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->exit_code, 0);
  std::string expected;
  for (int i = 0; i < 40'000; ++i) expected += "line " + std::to_string(i) + "\n";
  EXPECT_TRUE(seen == expected) << seen.size() << " bytes instead of " << expected.size();
  node_->Acknowledge(spec.command_id);
  ExpectIdle();
}

TEST_F(Life, AnEndWhileTheNodeIsAwayIsReportedWithItsOutput) {
  InitCommandSpec spec = Spec({});
  spec.shell = "read line; echo $line; exit 9";
  spec.want_stdin = true;
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok());
  node_->Disconnect();
  ASSERT_EQ(::write(started->pipes.in.get(), "hello\n", 6), 6);
  started->pipes = {};
  EXPECT_TRUE(Eventually([&] { return sandbox_->CountCommandCgroups() == 0; }));
  Reconnect();
  auto status = node_->WaitExit(spec.command_id);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->exit_code, 9);
  auto pipes = node_->Handover(spec.command_id);
  ASSERT_TRUE(pipes.ok());
  EXPECT_EQ(TestNode::ReadAll(pipes->out.get()), "hello\n");
  // Not acknowledged yet: the next node hears of it too.
  Reconnect();
  EXPECT_TRUE(node_->WaitExit(spec.command_id).ok());
  node_->Acknowledge(spec.command_id);
  Settle();
  Reconnect();
  EXPECT_TRUE(node_->inventory().commands.empty());
  EXPECT_EQ(node_->Handover(spec.command_id).status().code(), Code::kNotFound);
  ExpectIdle();
}

TEST_F(Life, TimeOutsHoldWithTheNodeAway) {
  InitCommandSpec spec = Spec({"sleep", "1000"});
  spec.timeout_ms = 200;
  ASSERT_TRUE(node_->Start(spec).ok());
  node_->Disconnect();
  EXPECT_TRUE(Eventually([&] { return sandbox_->CountProcesses() == 1; }));
  Reconnect();
  auto status = node_->WaitExit(spec.command_id);
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(status->timed_out);
}

TEST_F(Life, AFrozenSandboxUsesNoTimeOfItsCommands) {
  auto entry = sandbox_->cgroups().OpenEntry("sb");
  ASSERT_TRUE(entry.ok());
  auto stat = ReadFileToString("/proc/self/fd/" + std::to_string(entry->unified.get()) +
                               "/cgroup.stat.local");
  if (!stat.ok() || stat->find("frozen_usec") == std::string::npos) {
    GTEST_SKIP() << "this kernel does not count frozen time (Linux 6.18 does)";
  }
  InitCommandSpec spec = Spec({});
  spec.shell = "echo up; sleep 1; echo survived";
  spec.timeout_ms = 1500;
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok());
  EXPECT_EQ(TestNode::ReadUntil(started->pipes.out.get(), "up"), "up\n");
  ASSERT_TRUE(sandbox_->cgroups().Freeze("sb", 5000).ok());
  // Well past the time-out; a timer of the host's measures it.
  EXPECT_FALSE(WaitReadable(started->pipes.out.get(), 2000).ok());
  ASSERT_TRUE(sandbox_->cgroups().Thaw("sb").ok());
  auto status = node_->WaitExit(spec.command_id);
  ASSERT_TRUE(status.ok());
  EXPECT_FALSE(status->timed_out);
  InitCommandSpec second = Spec({"sleep", "1000"});
  second.timeout_ms = 300;
  ASSERT_TRUE(node_->Start(second).ok());
  ASSERT_TRUE(sandbox_->cgroups().Freeze("sb", 5000).ok());
  ASSERT_TRUE(sandbox_->cgroups().Thaw("sb").ok());
  status = node_->WaitExit(second.command_id);
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(status->timed_out);
}

TEST_F(Life, TheNewestConnectionWins) {
  TestNode second;
  ASSERT_TRUE(second.Connect(sandbox_->socket_path()).ok());
  EXPECT_TRUE(node_->WaitDisconnect());
  EXPECT_EQ(node_->Start(Spec({"true"})).status().code(), Code::kUnavailable);
  EXPECT_TRUE(second.Sh("true").ok());
}

TEST_F(Life, ABurstOfStartsIsAnswered) {
  constexpr int kCount = 300;
  std::vector<InitCommandSpec> specs;
  for (int i = 0; i < kCount; ++i) {
    specs.push_back(Spec({"echo", std::to_string(i)}));
    auto started = node_->Start(specs.back());
    ASSERT_TRUE(started.ok()) << started.status().ToString();
  }
  node_->Disconnect();
  Reconnect();
  EXPECT_EQ(node_->inventory().commands.size(), size_t{kCount});
  for (int i = 0; i < kCount; ++i) {
    const std::string& id = specs[static_cast<size_t>(i)].command_id;
    ASSERT_TRUE(node_->WaitExit(id).ok());
    auto pipes = node_->Handover(id);
    ASSERT_TRUE(pipes.ok());
    EXPECT_EQ(TestNode::ReadAll(pipes->out.get()), std::to_string(i) + "\n");
    node_->Acknowledge(id);
  }
  ExpectIdle();
}

TEST_F(Life, TenThousandOrphansLeaveNoZombie) {
  // Each `true` is orphaned by its parent's end.
  auto outcome = Sh("i=0; while [ $i -lt 10000 ]; do (true &); i=$((i+1)); done; echo done");
  EXPECT_EQ(outcome.out, "done\n");
  EXPECT_TRUE(Eventually([&] { return sandbox_->CountChildren() == 0; }));
  ExpectIdle();
}

TEST_F(Life, AStrangeVersionIsRefusedWithBothVersions) {
  auto socket = ConnectSeqpacket(sandbox_->socket_path());
  ASSERT_TRUE(socket.ok());
  WireWriter hello = init_protocol::Begin(init_protocol::Type::kHello, 1);
  hello.Put<uint32_t>(90);
  hello.Put<uint32_t>(99);
  ASSERT_TRUE(SendMessage(socket->get(), hello.data()).ok());
  auto reply = ReceiveMessage(socket->get());
  ASSERT_TRUE(reply.ok());
  WireReader reader(reply->data);
  init_protocol::ReadHeader(reader);
  Status status = init_protocol::GetError(reader);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("90 to 99"));
}

TEST_F(Life, GarbageEndsTheConnectionAndNothingElse) {
  for (const std::string& bytes : {std::string("\x02"), std::string("x"), std::string(5, '\0'),
                                   std::string(100'000, '\xff')}) {
    auto socket = ConnectSeqpacket(sandbox_->socket_path());
    ASSERT_TRUE(socket.ok());
    ASSERT_TRUE(SendMessage(socket->get(), bytes).ok());
    EXPECT_EQ(ReceiveMessage(socket->get()).status().code(), Code::kUnavailable);
  }
  Reconnect();
  EXPECT_TRUE(node_->Sh("true").ok());
}

TEST_F(Life, CutRequestsAreRefused) {
  auto socket = ConnectSeqpacket(sandbox_->socket_path());
  ASSERT_TRUE(socket.ok());
  WireWriter hello = init_protocol::Begin(init_protocol::Type::kHello, 1);
  hello.Put<uint32_t>(1);
  hello.Put<uint32_t>(1);
  ASSERT_TRUE(SendMessage(socket->get(), hello.data()).ok());
  ASSERT_TRUE(ReceiveMessage(socket->get()).ok());
  for (uint8_t type = 2; type < 70; ++type) {
    if (type == static_cast<uint8_t>(init_protocol::Type::kAcknowledge)) continue;  // no reply
    WireWriter request = init_protocol::Begin(static_cast<init_protocol::Type>(type), 7);
    request.PutRaw("\xff\xff\xff");
    ASSERT_TRUE(SendMessage(socket->get(), request.data()).ok());
    auto reply = ReceiveMessage(socket->get());
    ASSERT_TRUE(reply.ok()) << int{type};
    WireReader reader(reply->data);
    EXPECT_EQ(init_protocol::ReadHeader(reader).request, 7u);
    Status status = init_protocol::GetError(reader);
    EXPECT_FALSE(status.ok()) << int{type};
  }
  Reconnect();
  EXPECT_TRUE(node_->Sh("true").ok());
}

TEST_F(Life, IdleMemoryIsSmall) {
  ASSERT_TRUE(node_->Sh("true").ok());
  Settle();
  uint64_t bytes = sandbox_->AnonymousBytes();
  RecordProperty("anonymous_kib", static_cast<int>(bytes / 1024));
  EXPECT_LE(bytes, 150u * 1024);
}

class Limits : public InitTest {
 protected:
  void SetUp() override {
    if (std::string why = TestSandbox::WhyNot(); !why.empty()) GTEST_SKIP() << why;
    StartSandbox({.limits = {.memory_bytes = 48 << 20, .pids = 40}});
  }
};

TEST_F(Limits, AForkBombStaysInsideAndIsKilled) {
  InitCommandSpec spec = Spec({});
  spec.shell = "f() { f | f & }; f; echo up; while :; do sleep 0.01 || :; done";
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok());
  auto hits = [&] { return sandbox_->cgroups().GetUsage("sb").value().pids_limit_hits; };
  EXPECT_TRUE(Eventually([&] { return hits() > 0; }));
  // The node hears which limit it was, and can end it.
  Result<InitClient::Started> refused = node_->Start(Spec({"true"}));
  for (int i = 0; i < 1000 && refused.ok(); ++i) refused = node_->Start(Spec({"true"}));
  if (!refused.ok()) {
    EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
    EXPECT_THAT(refused.status().message(), HasSubstr("limit of processes"));
  }
  EXPECT_TRUE(node_->Signal(spec.command_id, SIGKILL, true).ok());
  EXPECT_TRUE(node_->WaitExit(spec.command_id).ok());
  EXPECT_TRUE(Eventually([&] { return sandbox_->CountProcesses() == 1; }));
  auto after = node_->Sh("echo fine");
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->out, "fine\n");
}

TEST_F(Limits, AMemoryHogDiesAndInitLives) {
  auto outcome = Sh("dd if=/dev/zero of=/dev/null bs=200M count=1");
  EXPECT_EQ(outcome.status.signal, SIGKILL);
  EXPECT_EQ(Sh("echo fine").out, "fine\n");
  EXPECT_EQ(sandbox_->cgroups().GetUsage("sb").value().oom_kills, 1u);
}

TEST(Startup, WithoutACgroupInitRefusesClearly) {
  if (std::string why = TestSandbox::WhyNot(); !why.empty()) GTEST_SKIP() << why;
  auto sandbox = TestSandbox::Start({.init_binary = ESKER_INIT_BINARY, .with_cgroup = false});
  ASSERT_TRUE(sandbox.ok()) << sandbox.status().ToString();
  auto status = (*sandbox)->WaitInit();
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 78) << *status;
  EXPECT_TRUE((*sandbox)->Stop().ok());
}

TEST(Startup, WithoutAFilterOnlyForTests) {
  if (std::string why = TestSandbox::WhyNot(); !why.empty()) GTEST_SKIP() << why;
  auto sandbox = TestSandbox::Start({.init_binary = ESKER_INIT_BINARY, .with_filter = false});
  ASSERT_TRUE(sandbox.ok()) << sandbox.status().ToString();
  TestNode node;
  ASSERT_TRUE(node.Connect((*sandbox)->socket_path()).ok());
  EXPECT_EQ(node.Sh("grep ^Seccomp: /proc/self/status")->out, "Seccomp:\t0\n");
  node.Disconnect();
  EXPECT_TRUE((*sandbox)->Stop().ok());
}

TEST(Startup, NobodyAnswersAndTheDeadlineHolds) {
  auto directory = TempDir::Create();
  ASSERT_TRUE(directory.ok());
  auto listening = ListenSeqpacket(directory->path() + "/s");
  ASSERT_TRUE(listening.ok());
  TestNode node;
  EXPECT_EQ(node.Connect(directory->path() + "/s", 50).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(node.Connect(directory->path() + "/none", 50).code(), Code::kNotFound);
}

}  // namespace
}  // namespace esker
