// The life of sandboxes and commands on the real parts: store, index, keeper, init, overlay.
#include "executor/node.h"

#include <fcntl.h>
#include <signal.h>

#include <thread>

#include "base/io.h"
#include "base/process.h"
#include "node_test_base.h"

namespace esker::testing {
namespace {

TEST_F(NodeTest, CreateRunDelete) {
  std::string id = MustCreate();
  Result<RunResult> run = RunShell(node(), id, "echo out; echo err >&2; echo $FROM_IMAGE; exit 3");
  ASSERT_OK(run);
  EXPECT_EQ(run->out, "out\n1\n");
  EXPECT_EQ(run->err, "err\n");
  EXPECT_EQ(run->info.status.exit_code, 3);
  Result<bool> deleted = node().Delete(id);
  ASSERT_OK(deleted);
  EXPECT_TRUE(*deleted);
  deleted = node().Delete(id);
  ASSERT_OK(deleted);
  EXPECT_FALSE(*deleted);
  Result<SandboxInfo> info = node().Get(id);
  ASSERT_OK(info);
  EXPECT_EQ(info->state, SandboxState::kEnded);
  EXPECT_EQ(info->end_reason, "DELETED");
  Result<RunResult> late = RunShell(node(), id, "true");
  EXPECT_EQ(late.status().code(), Code::kFailedPrecondition) << late.status().ToString();
  EXPECT_EQ(node().Delete("sb-nobody").status().code(), Code::kNotFound);
  EXPECT_GE(node().GetEvents(id)->size(), 4u);
}

TEST_F(NodeTest, WhatCannotBeCreatedLeavesNothing) {
  SandboxSpec spec = Spec();
  spec.image = "nothing:1";
  EXPECT_EQ(node().Create(spec).status().code(), Code::kNotFound);
  spec = Spec();
  spec.hostname = "-bad-";
  EXPECT_EQ(node().Create(spec).status().code(), Code::kInvalidArgument);
  spec = Spec();
  spec.envs["A=B"] = "x";
  EXPECT_EQ(node().Create(spec).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(node().GetStats().sandboxes, 0u);
}

TEST_F(NodeTest, TheNodeRefusesMoreThanItMayHold) {
  rig_->options.max_sandboxes = 1;
  Reopen();
  MustCreate();
  Result<SandboxInfo> second = node().Create(Spec());
  EXPECT_EQ(second.status().code(), Code::kResourceExhausted) << second.status().ToString();
}

TEST_F(NodeTest, ExitCodesOfWhatCannotBeRun) {
  std::string id = MustCreate();
  CommandSpec spec;
  spec.argv = {"/no/such/program"};
  CommandInfo info = MustStart(id, spec);
  Collector collector;
  Follow(collector, info);
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status.exit_code, 127);
  EXPECT_NE(exit->status.start_error, "");
  MustRun(id, "touch /tmp/plain");
  spec.argv = {"/tmp/plain"};
  Collector second;
  Follow(second, MustStart(id, spec));
  exit = second.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status.exit_code, 126);
}

TEST_F(NodeTest, EnvironmentUserAndDirectory) {
  SandboxSpec sandbox = Spec();
  sandbox.envs = {{"FROM_IMAGE", "sandbox"}, {"OWN", "1"}};
  sandbox.hostname = "box";
  std::string id = MustCreate(sandbox);
  CommandSpec spec;
  spec.shell = "echo $FROM_IMAGE $OWN $EXTRA; id -u; pwd; cat /proc/sys/kernel/hostname";
  spec.envs = {{"EXTRA", "2"}};
  spec.user = "agent";
  spec.cwd = "/home";
  Collector collector;
  Follow(collector, MustStart(id, spec));
  ASSERT_OK(collector.WaitExit());
  EXPECT_EQ(collector.out(), "sandbox 1 2\n1000\n/home\nbox\n");
}

TEST_F(NodeTest, TimeoutKillsTheWholeTree) {
  std::string id = MustCreate();
  CommandSpec spec;
  spec.shell = "setsid sleep 1000 & sleep 1000 & echo started; wait";
  spec.timeout_ms = 300;
  Collector collector;
  Follow(collector, MustStart(id, spec));
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_TRUE(exit->status.timed_out);
  EXPECT_EQ(collector.out(), "started\n");
  Result<SandboxUsage> usage = node().GetUsage(id);
  ASSERT_OK(usage);
  EXPECT_EQ(usage->cgroup.pids, 1u) << "init alone";
}

TEST_F(NodeTest, SignalsReachTheCommandOrItsTree) {
  std::string id = MustCreate();
  CommandInfo one =
      MustStart(id, "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.1; done");
  Collector collector;
  Follow(collector, one);
  ASSERT_OK(collector.WaitBytes(3));
  Result<bool> sent = Signal(node(), id, one.id, SIGTERM, false);
  ASSERT_OK(sent);
  EXPECT_TRUE(*sent);
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status.exit_code, 5);
  EXPECT_EQ(collector.out(), "up\ngot\n");
  CommandInfo two = MustStart(id, "sleep 1000 & sleep 1000");
  ASSERT_OK(Signal(node(), id, two.id, 0, true));
  Collector second;
  Follow(second, two);
  exit = second.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status.signal, SIGKILL);
  sent = Signal(node(), id, two.id, SIGTERM, false);
  ASSERT_OK(sent);
  EXPECT_FALSE(*sent);
}

TEST_F(NodeTest, ABackgroundChildDoesNotHoldTheEnd) {
  std::string id = MustCreate();
  int64_t began = Clock::System().MonotonicNanos();
  CommandInfo info = MustStart(id,
                               "{ until [ -e /tmp/go ]; do sleep 0.01; done; echo late; "
                               "sleep 1000; } & echo early");
  Collector collector;
  Follow(collector, info);
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_LT(Clock::System().MonotonicNanos() - began, 1'900'000'000);
  EXPECT_EQ(collector.out(), "early\n");
  // What it writes later is in the log all the same.
  MustRun(id, "touch /tmp/go");
  ASSERT_TRUE(Eventually([&] { return node().GetCommand(id, info.id)->stdout_bytes >= 11; }));
  Collector again;
  Follow(again, info);
  ASSERT_OK(again.WaitExit());
  EXPECT_EQ(again.out(), "early\nlate\n");
}

TEST_F(NodeTest, StdinWithOffsetsAndEnd) {
  std::string id = MustCreate();
  CommandSpec spec;
  spec.shell = "cat; echo end";
  spec.want_stdin = true;
  CommandInfo info = MustStart(id, spec);
  Collector collector;
  Follow(collector, info);
  EXPECT_EQ(*SendStdin(node(), id, info.id, "one ", false, 0), 4u);
  EXPECT_EQ(*SendStdin(node(), id, info.id, "one ", false, 0), 4u);  // a retry
  EXPECT_EQ(*SendStdin(node(), id, info.id, "e two\n", false, 2), 8u);
  EXPECT_EQ(SendStdin(node(), id, info.id, "gap", false, 99).status().code(), Code::kOutOfRange);
  EXPECT_EQ(*SendStdin(node(), id, info.id, "", true), 8u);
  ASSERT_OK(collector.WaitExit());
  EXPECT_EQ(collector.out(), "one two\nend\n");
  EXPECT_EQ(SendStdin(node(), id, info.id, "x", false).status().code(), Code::kFailedPrecondition);
}

TEST_F(NodeTest, ACommandThatDoesNotReadBoundsItsStdin) {
  std::string id = MustCreate();
  CommandSpec spec;
  spec.shell = "sleep 1000";
  spec.want_stdin = true;
  CommandInfo info = MustStart(id, spec);
  std::string big(3u << 20, 'x');
  node().SendStdin(id, info.id, big, false, std::nullopt, [](Result<uint64_t>) {});
  EXPECT_EQ(SendStdin(node(), id, info.id, big, false).status().code(), Code::kResourceExhausted);
}

TEST_F(NodeTest, ATerminal) {
  std::string id = MustCreate();
  CommandSpec spec;
  spec.argv = {"/bin/sh", "-c", "stty size; read line; echo got $line"};
  spec.pty = true;
  spec.rows = 30;
  spec.cols = 100;
  CommandInfo info = MustStart(id, spec);
  Collector collector;
  Follow(collector, info);
  ASSERT_OK(collector.WaitBytes(6));
  ASSERT_OK(SendStdin(node(), id, info.id, "hi\n", false));
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status.exit_code, 0);
  EXPECT_NE(collector.out().find("30 100"), std::string::npos) << collector.out();
  EXPECT_NE(collector.out().find("got hi"), std::string::npos) << collector.out();
}

TEST_F(NodeTest, OutputByOffsets) {
  std::string id = MustCreate();
  CommandInfo info = MustStart(id, "seq 1 100000");
  Collector whole;
  Follow(whole, info);
  ASSERT_OK(whole.WaitExit());
  EXPECT_EQ(whole.out().size(), 588895u);
  EXPECT_TRUE(whole.in_order());
  Collector part;
  auto subscription = node().Attach(id, info.id, 588000, 0, true, &part);
  ASSERT_OK(subscription);
  part.Follow(std::move(*subscription));
  ASSERT_OK(part.WaitExit());
  EXPECT_EQ(part.out(), whole.out().substr(588000));
  EXPECT_EQ(node().Attach(id, info.id, 588896, 0, true, &part).status().code(), Code::kOutOfRange);
}

TEST_F(NodeTest, OnlyAWindowOfHugeOutputIsKept) {
  std::string id = MustCreate();
  CommandSpec spec;
  spec.shell = "yes 0123456789abcde | head -c 67108864";
  spec.output_limit = 1 << 20;
  CommandInfo info = MustStart(id, spec);
  Collector end_only;
  auto waiting = node().Attach(id, info.id, 0, 0, false, &end_only);
  ASSERT_OK(waiting);
  end_only.Follow(std::move(*waiting));
  Result<CommandInfo> exit = end_only.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->stdout_bytes, 64u << 20);
  Collector late;
  Follow(late, info);
  ASSERT_OK(late.WaitExit());
  EXPECT_TRUE(late.in_order());
  EXPECT_GE(late.out().size(), 1u << 20);
  EXPECT_LE(late.out().size(), 2u << 20);
  EXPECT_EQ(late.lost() + late.out().size(), 64u << 20);
  struct stat st;
  ASSERT_EQ(::stat((directory() + "/node/sandboxes/" + id + "/" + info.id + ".out").c_str(), &st),
            0);
  EXPECT_LE(st.st_blocks * 512, 4 << 20);
}

TEST_F(NodeTest, ASlowFollowerHoldsTheCommandBackAndLosesNothing) {
  std::string id = MustCreate();
  CommandSpec spec;
  spec.shell = "yes 0123456789abcde | head -c 8388608";
  spec.output_limit = 1 << 20;
  CommandInfo info = MustStart(id, spec);
  Collector slow;
  slow.Hold();
  Follow(slow, info);
  // Held back: more than half of the window is read, and while another command comes and goes on
  // the same loop not one byte more.
  uint64_t before = 0;
  ASSERT_TRUE(Eventually([&] {
    before = node().GetCommand(id, info.id)->stdout_bytes;
    MustRun(id, "echo and go");
    return before > spec.output_limit / 2 && node().GetCommand(id, info.id)->stdout_bytes == before;
  }));
  EXPECT_LT(before, 2u << 20);
  slow.Go();
  ASSERT_OK(slow.WaitExit());
  EXPECT_EQ(slow.out().size(), 8u << 20);
  EXPECT_EQ(slow.lost(), 0u);
  EXPECT_TRUE(slow.in_order());
}

TEST_F(NodeTest, TheSameRequestStartsOneCommand) {
  std::string id = MustCreate();
  CommandSpec spec;
  spec.shell = "echo x >> /tmp/count; sleep 0.2";
  spec.request_id = "r/1";
  CommandInfo one = MustStart(id, spec), two = MustStart(id, spec);
  EXPECT_EQ(one.id, two.id);
  Collector collector;
  Follow(collector, one);
  ASSERT_OK(collector.WaitExit());
  EXPECT_EQ(MustRun(id, "wc -l < /tmp/count"), "1\n");
  spec.shell = "echo other";
  EXPECT_EQ(Start(node(), id, spec).status().code(), Code::kAlreadyExists);
  Reopen();
  spec.shell = "echo x >> /tmp/count; sleep 0.2";
  EXPECT_EQ(MustStart(id, spec).id, one.id);
}

TEST_F(NodeTest, FilesGoInAndOut) {
  std::string id = MustCreate();
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  std::thread writer(
      // One frame, and the empty one that commits.
      [fd = std::move(write_end)] {
        EXPECT_OK(WriteFull(fd.get(), "\x0a\0\0\0hello file\0\0\0\0", 18));
      });
  InitFileRequest request;
  request.op = InitFileOp::kWrite;
  request.path = "/data/new/file";
  Result<InitFileResult> written = FileCall(node(), id, request, std::move(read_end));
  writer.join();
  ASSERT_OK(written);
  EXPECT_EQ(written->error_number, 0) << written->error_path;
  EXPECT_EQ(MustRun(id, "cat /data/new/file"), "hello file");
  request.op = InitFileOp::kStat;
  Result<InitFileResult> stat = FileCall(node(), id, request);
  ASSERT_OK(stat);
  ASSERT_EQ(stat->entries.size(), 1u);
  EXPECT_EQ(stat->entries[0].size, 10u);
}

// --- limits -------------------------------------------------------------------------------------

TEST_F(NodeTest, ADiskLimitHolds) {
  SandboxSpec spec = Spec();
  spec.resources.disk_bytes = 64u << 20;
  Result<SandboxInfo> info = node().Create(spec);
  if (info.status().code() == Code::kUnimplemented) GTEST_SKIP() << info.status().message();
  ASSERT_OK(info);
  Result<RunResult> run = RunShell(node(), info->id, "dd if=/dev/zero of=/fill bs=1M count=200");
  ASSERT_OK(run);
  EXPECT_NE(run->info.status.exit_code, 0);
  Result<SandboxUsage> usage = node().GetUsage(info->id);
  ASSERT_OK(usage);
  EXPECT_EQ(usage->disk_limit_bytes, 64u << 20);
  EXPECT_LE(usage->disk_bytes, 70u << 20);
}

TEST_F(NodeTest, AMemoryLimitHitIsTold) {
  SandboxSpec spec = Spec();
  spec.resources.memory_bytes = 32u << 20;
  std::string id = MustCreate(spec);
  // A string that doubles until the limit.
  Result<RunResult> run = RunShell(node(), id, "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done");
  ASSERT_OK(run);
  EXPECT_TRUE(run->info.oom_killed || run->info.end_reason.find("OOM") != std::string::npos)
      << run->info.end_reason;
  Result<std::vector<SandboxEvent>> events = node().GetEvents(id);
  ASSERT_OK(events);
  bool told = false;
  for (const SandboxEvent& event : *events) {
    told = told || event.what == "OOM_KILL" || event.detail.find("OOM") != std::string::npos;
  }
  EXPECT_TRUE(told);
}

// --- pause, time to live, death -----------------------------------------------------------------

TEST_F(NodeTest, PauseAndUse) {
  std::string id = MustCreate();
  CommandInfo ticker =
      MustStart(id, "i=0; while :; do i=$((i+1)); echo $i > /tmp/i; sleep 0.01; done");
  Result<PauseInfo> paused = node().Pause(id);
  ASSERT_OK(paused);
  EXPECT_EQ(paused->info.state, SandboxState::kPaused);
  EXPECT_EQ(node().Get(id)->state, SandboxState::kPaused);
  EXPECT_OK(node().GetUsage(id));
  EXPECT_OK(node().GetEvents(id));
  EXPECT_OK(node().ListCommands(id, true));
  EXPECT_EQ(node().Get(id)->state, SandboxState::kPaused) << "looking must not resume it";
  EXPECT_EQ(MustRun(id, "echo on"), "on\n");
  EXPECT_EQ(node().Get(id)->state, SandboxState::kRunning);
  ASSERT_OK(node().Pause(id));
  ASSERT_OK(node().Pause(id));
  ASSERT_OK(node().Resume(id));
  ASSERT_OK(node().Resume(id));
  EXPECT_EQ(node().GetCommand(id, ticker.id)->status.state, InitCommandState::kRunning);
}

TEST_F(NodeTest, DeleteWhilePaused) {
  std::string id = MustCreate();
  CommandInfo command = MustStart(id, "sleep 1000");
  ASSERT_OK(node().Pause(id));
  Result<bool> deleted = node().Delete(id);
  ASSERT_OK(deleted);
  EXPECT_TRUE(*deleted);
  Result<CommandInfo> info = node().GetCommand(id, command.id);
  ASSERT_OK(info);
  EXPECT_EQ(info->end_reason, "SANDBOX_ENDED: DELETED");
}

TEST_F(NodeTest, TimeToLive) {
  SandboxSpec spec = Spec();
  spec.ttl_ms = 500;
  std::string id = MustCreate(spec);
  CommandInfo command = MustStart(id, "echo hi; sleep 1000");
  Collector collector;
  Follow(collector, command);
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->end_reason, "SANDBOX_ENDED: TTL");
  EXPECT_EQ(collector.out(), "hi\n");
  EXPECT_EQ(WaitEnded(id).end_reason, "TTL");
}

TEST_F(NodeTest, AnExtendedTimeToLiveEndsNothingEarlier) {
  constexpr int64_t kSecond = 1'000'000'000;
  UseFakeClock();
  const int64_t began = clock_.WallNanos();
  SandboxSpec spec = Spec();
  spec.ttl_ms = 1'000;
  std::string id = MustCreate(spec);
  ASSERT_OK(node().SetTimeout(id, 600'000, 0));
  spec.ttl_ms = 599'000;
  std::string witness = MustCreate(spec);
  clock_.Advance(599 * kSecond);
  // The witness's end says that the node has looked at this time.
  EXPECT_EQ(WaitEnded(witness).end_reason, "TTL");
  EXPECT_EQ(node().Get(id)->state, SandboxState::kRunning);
  clock_.Advance(kSecond);
  SandboxInfo ended = WaitEnded(id);
  EXPECT_EQ(ended.end_reason, "TTL");
  EXPECT_EQ(ended.ended_ns, began + 600 * kSecond);
}

TEST_F(NodeTest, IdleTimeToLiveCountsUseAndForegroundCommands) {
  SandboxSpec spec = Spec();
  spec.idle_ttl_ms = 400;
  std::string id = MustCreate(spec);
  // Idle time is monotonic time, which no clock of a test turns: the command must outlast it.
  MustRun(id, "sleep 1");
  EXPECT_EQ(node().Get(id)->state, SandboxState::kRunning);
  MustStart(id, "sleep 1000");  // in the background
  EXPECT_EQ(WaitEnded(id).end_reason, "IDLE_TTL");
}

TEST_F(NodeTest, TheSameKeyGivesTheSameSandbox) {
  SandboxSpec spec = Spec();
  spec.idempotency_key = "key";
  std::vector<std::thread> threads;
  std::vector<std::string> ids(4);
  for (std::string& id : ids) threads.emplace_back([&] { id = MustCreate(spec); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  Reopen();
  EXPECT_EQ(MustCreate(spec), ids[0]);
  spec.metadata["other"] = "1";
  EXPECT_EQ(node().Create(spec).status().code(), Code::kAlreadyExists);
}

TEST_F(NodeTest, WhenInitDiesEverybodyIsTold) {
  std::string id = MustCreate();
  CommandInfo command = MustStart(id, "echo last words; sleep 1000");
  Collector collector;
  Follow(collector, command);
  ASSERT_OK(collector.WaitBytes(11));
  Result<std::vector<SandboxEvent>> events = node().GetEvents(id);
  ASSERT_OK(events);
  // Its PID 1, from the host: the process in its cgroup whose parent is not in it.
  Result<CommandOutput> kill =
      RunCommand({"sh", "-c",
                  "for p in $(cat /sys/fs/cgroup/unified/esker-" + node_id_ + "/" + id +
                      "/cgroup.procs /sys/fs/cgroup/esker-" + node_id_ + "/" + id +
                      "/cgroup.procs 2>/dev/null | sort -n | head -1); do kill -9 $p; done"});
  ASSERT_OK(kill);
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->end_reason, "SANDBOX_ENDED: INIT_DIED");
  EXPECT_EQ(collector.out(), "last words\n");
  EXPECT_EQ(WaitEnded(id).end_reason, "INIT_DIED");
}

TEST_F(NodeTest, ManyAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        Result<SandboxInfo> info = node().Create(Spec());
        ASSERT_OK(info);
        Result<RunResult> run = RunShell(node(), info->id, "echo hi");
        if (run.ok() && run->out == "hi\n") ++good;
        EXPECT_OK(node().Delete(info->id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 40);
}

}  // namespace
}  // namespace esker::testing
