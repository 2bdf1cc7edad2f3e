// A node that is closed, or killed at any step, and opened again.
#include <fcntl.h>
#include <signal.h>

#include <sstream>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/process.h"
#include "base/socket.h"
#include "executor/node.h"
#include "node_test_base.h"

namespace esker::testing {
namespace {

class AdoptionTest : public NodeTest {
 protected:
  struct Victim {
    Process process;
    std::string line;  // what it said; "" if it died before
  };
  // Runs the helper until it has spoken or died.
  Victim RunVictim(std::vector<std::string> arguments, const std::string& failpoints = "") {
    rig_->Close();
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    UniqueFd read_end(fds[0]), write_end(fds[1]);
    SpawnOptions spawn;
    spawn.argv = {ESKER_CRASH_HELPER, directory(), node_id_};
    spawn.argv.insert(spawn.argv.end(), arguments.begin(), arguments.end());
    spawn.stdout_fd = write_end.get();
    if (!failpoints.empty()) spawn.env = {"ESKER_FAILPOINTS=" + failpoints};
    Result<Process> process = Process::Spawn(spawn);
    EXPECT_TRUE(process.ok()) << process.status().ToString();
    write_end.reset();
    Victim victim;
    if (process.ok()) victim.process = std::move(*process);
    char c;
    while (WaitReadable(read_end.get(), 60'000).ok() && ::read(read_end.get(), &c, 1) == 1 &&
           c != '\n') {
      victim.line += c;
    }
    return victim;
  }
  void KillVictim(Victim& victim) {
    EXPECT_OK(victim.process.Kill(SIGKILL));
    EXPECT_OK(victim.process.Reap());
  }
  // Its cgroup2 directory, which init removes when the command has ended.
  std::string CommandCgroup(const CommandInfo& command) const {
    std::string below = "/esker-" + node_id_ + "/" + command.sandbox_id + "/c-" + command.id;
    std::string hybrid = "/sys/fs/cgroup/unified";
    return (PathExists(hybrid) ? hybrid : "/sys/fs/cgroup") + below;
  }
  // "ready A B" -> {"A", "B"}
  static std::vector<std::string> Words(const std::string& line) {
    std::vector<std::string> words;
    size_t at = 0;
    while (at < line.size()) {
      size_t space = std::min(line.find(' ', at), line.size());
      words.push_back(line.substr(at, space - at));
      at = space + 1;
    }
    if (!words.empty()) words.erase(words.begin());
    return words;
  }
};

TEST_F(AdoptionTest, CommandsGoOnOverAReopenAndLoseNothing) {
  std::string id = MustCreate();
  CommandInfo command =
      MustStart(id, "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; done; exit 7");
  CommandInfo ended = MustStart(id, "echo gone; exit 4");
  Collector first;
  Follow(first, ended);
  ASSERT_OK(first.WaitExit());
  first.Drop();
  for (int i = 0; i < 3; ++i) Reopen();
  Collector collector;
  Follow(collector, command);
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status.exit_code, 7);
  std::string expected;
  for (int i = 1; i <= 3000; ++i) expected += "line " + std::to_string(i) + "\n";
  EXPECT_EQ(collector.out(), expected);
  EXPECT_EQ(node().GetCommand(id, ended.id)->status.exit_code, 4);
  Collector again;
  Follow(again, ended);
  ASSERT_OK(again.WaitExit());
  EXPECT_EQ(again.out(), "gone\n");
}

TEST_F(AdoptionTest, ASigkilledNodeIsAdopted) {
  Victim victim =
      RunVictim({"run", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i; done; exit 9"});
  std::vector<std::string> words = Words(victim.line);
  ASSERT_EQ(words.size(), 2u) << victim.line;
  KillVictim(victim);
  ASSERT_OK(rig_->Open());
  Result<CommandInfo> command = node().GetCommand(words[0], words[1]);
  ASSERT_OK(command);
  Collector collector;
  Follow(collector, *command);
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status.exit_code, 9);
  std::string expected;
  for (int i = 1; i <= 20000; ++i) expected += "line " + std::to_string(i) + "\n";
  EXPECT_EQ(collector.out().size(), expected.size());
  EXPECT_TRUE(collector.out() == expected);
  // The same key and the same request find what there is.
  SandboxSpec spec = Spec();
  spec.idempotency_key = "crash";
  EXPECT_EQ(MustCreate(spec), words[0]);
}

TEST_F(AdoptionTest, WhatEndedMeanwhileIsReported) {
  std::string id = MustCreate();
  CommandInfo command =
      MustStart(id, "trap 'kill $!; echo after; exit 2' USR1; sleep 1000 & echo before; wait");
  Collector until_closed;
  Follow(until_closed, command);
  ASSERT_OK(until_closed.WaitBytes(7));
  until_closed.Drop();
  rig_->Close();
  // It ends with no node there: at a signal from the host to the shell (and its child, which it
  // would kill anyway).
  std::string cgroup = CommandCgroup(command);
  Result<std::string> processes = ReadFileToString(cgroup + "/cgroup.procs");
  ASSERT_OK(processes);
  std::istringstream pids(*processes);
  for (pid_t pid; pids >> pid;) ::kill(pid, SIGUSR1);
  ASSERT_TRUE(Eventually([&] { return !PathExists(cgroup); }));
  ASSERT_OK(rig_->Open());
  Collector collector;
  Follow(collector, command);
  Result<CommandInfo> exit = collector.WaitExit();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status.exit_code, 2);
  EXPECT_EQ(collector.out(), "before\nafter\n");
}

TEST_F(AdoptionTest, ADeadSandboxIsReportedAndItsRemainsGo) {
  std::string id = MustCreate();
  rig_->Close();
  Result<CommandOutput> kill =
      RunCommand({"sh", "-c",
                  "for p in $(cat /sys/fs/cgroup/unified/esker-" + node_id_ + "/" + id +
                      "/cgroup.procs /sys/fs/cgroup/esker-" + node_id_ + "/" + id +
                      "/cgroup.procs 2>/dev/null | sort -n | head -1); do kill -9 $p; done"});
  ASSERT_OK(kill);
  ASSERT_OK(rig_->Open());
  EXPECT_EQ(WaitEnded(id).end_reason, "INIT_DIED");
  EXPECT_EQ(node().GetStats().sandboxes, 0u);
}

TEST_F(AdoptionTest, TimeToLiveRunsOutWithTheNodeDown) {
  UseFakeClock();
  SandboxSpec spec = Spec();
  spec.ttl_ms = 60'000;
  std::string id = MustCreate(spec);
  rig_->Close();
  clock_.Advance(60'000'000'000);
  ASSERT_OK(rig_->Open());
  EXPECT_EQ(WaitEnded(id).end_reason, "TTL");
}

TEST_F(AdoptionTest, APausedOneStaysPausedAndResumes) {
  std::string id = MustCreate();
  CommandInfo command = MustStart(id, "echo one; sleep 0.3; echo two");
  ASSERT_OK(node().Pause(id));
  Reopen();
  EXPECT_EQ(node().Get(id)->state, SandboxState::kPaused);
  EXPECT_EQ(MustRun(id, "echo up"), "up\n");
  Collector collector;
  Follow(collector, command);
  ASSERT_OK(collector.WaitExit());
  EXPECT_EQ(collector.out(), "one\ntwo\n");
  ASSERT_OK(node().Pause(id));
  Reopen();
  Result<bool> deleted = node().Delete(id);
  ASSERT_OK(deleted);
}

// Killed at each durable step of a creation: afterwards there is a sandbox that works under the
// key, and exactly one.
TEST_F(AdoptionTest, KilledAtEachStepOfACreation) {
  for (const char* point : {"node.create.recorded", "node.create.built", "node.create.running"}) {
    SCOPED_TRACE(point);
    Victim victim = RunVictim({"create"}, std::string(point) + "=kill");
    EXPECT_EQ(victim.line, "");
    EXPECT_OK(victim.process.Reap());
    ASSERT_OK(rig_->Open());
    SandboxSpec spec = Spec();
    spec.idempotency_key = "crash";
    std::string id = MustCreate(spec);
    EXPECT_EQ(MustRun(id, "echo works"), "works\n");
    EXPECT_EQ(node().List(false, "", 100, nullptr).size(), 1u);
    ASSERT_OK(node().Delete(id));
    // The key names the ended one for a day; the next round needs its own.
    ASSERT_OK(rig_->Drain());
    ASSERT_OK(RemoveTree(directory() + "/node"));
    ASSERT_OK(rig_->Open());
  }
}

TEST_F(AdoptionTest, KilledAtEachStepOfADeletion) {
  for (const char* point : {"node.delete.ending", "node.delete.torn_down", "node.delete.ended"}) {
    SCOPED_TRACE(point);
    std::string id = MustCreate();
    Victim victim = RunVictim({"delete", id}, std::string(point) + "=kill");
    EXPECT_EQ(victim.line, "");
    EXPECT_OK(victim.process.Reap());
    ASSERT_OK(rig_->Open());
    EXPECT_EQ(WaitEnded(id).end_reason, "DELETED");
  }
}

TEST_F(AdoptionTest, KilledAtEachStepOfPauseAndResume) {
  std::string id = MustCreate();
  for (const char* step :
       {"pause node.pause.frozen", "pause node.pause.recorded", "resume node.resume.recorded"}) {
    SCOPED_TRACE(step);
    std::string text = step;
    size_t space = text.find(' ');
    Victim victim = RunVictim({text.substr(0, space), id}, text.substr(space + 1) + "=kill");
    EXPECT_EQ(victim.line, "");
    EXPECT_OK(victim.process.Reap());
    ASSERT_OK(rig_->Open());
    if (text.starts_with("resume")) {
      EXPECT_EQ(node().Get(id)->state, SandboxState::kRunning);
    }
  }
  EXPECT_EQ(MustRun(id, "echo works"), "works\n");
}

TEST_F(AdoptionTest, KilledAtEachStepOfASnapshot) {
  std::string id = MustCreate();
  MustRun(id, "echo kept > /kept");
  for (const char* point : {"node.snapshot.intent", "node.snapshot.cloned",
                            "node.snapshot.committed", "node.snapshot.recorded"}) {
    SCOPED_TRACE(point);
    std::string request = point;
    Victim victim = RunVictim({"snapshot", id, request}, std::string(point) + "=kill");
    EXPECT_EQ(victim.line, "");
    EXPECT_OK(victim.process.Reap());
    ASSERT_OK(rig_->Open());
    EXPECT_EQ(MustRun(id, "cat /kept"), "kept\n") << "it goes on";
    Result<SnapshotInfo> snapshot = node().Snapshot(id, request, "");
    ASSERT_OK(snapshot);
    Result<std::vector<ImageRecord>> images = rig_->index().ListImages();
    ASSERT_OK(images);
    int of_request = 0;
    for (const ImageRecord& image : *images) {
      auto origin = image.manifest.origin.find("request");
      of_request += origin != image.manifest.origin.end() && origin->second == request;
    }
    EXPECT_EQ(of_request, 1);
    SandboxSpec spec = Spec();
    spec.image = snapshot->image.ToHex();
    std::string child = MustCreate(spec);
    EXPECT_EQ(MustRun(child, "cat /kept"), "kept\n");
    ASSERT_OK(node().Delete(child));
  }
}

TEST_F(AdoptionTest, KilledAroundTheStartOfACommand) {
  for (const char* point : {"node.command.recorded", "node.command.started"}) {
    SCOPED_TRACE(point);
    Victim victim =
        RunVictim({"run", "echo x >> /tmp/count; echo done"}, std::string(point) + "=kill");
    EXPECT_EQ(victim.line, "");
    EXPECT_OK(victim.process.Reap());
    ASSERT_OK(rig_->Open());
    SandboxSpec spec = Spec();
    spec.idempotency_key = "crash";
    std::string id = MustCreate(spec);
    CommandSpec command;
    command.shell = "echo x >> /tmp/count; echo done";
    command.background = true;
    command.request_id = "crash";
    Collector collector;
    Follow(collector, MustStart(id, command));
    ASSERT_OK(collector.WaitExit());
    EXPECT_EQ(collector.out(), "done\n");
    EXPECT_EQ(MustRun(id, "cat /tmp/count"), "x\n") << "started once, no more";
    ASSERT_OK(rig_->Drain());
    ASSERT_OK(RemoveTree(directory() + "/node"));
    ASSERT_OK(rig_->Open());
  }
}

TEST_F(AdoptionTest, ASecondNodeOnTheSameDirectoryIsRefused) {
  NodeOptions options = rig_->options;
  Result<std::unique_ptr<Node>> second = Node::Open(rig_->store(), rig_->index(), options);
  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition) << second.status().ToString();
}

TEST_F(AdoptionTest, ALostKeeperEndsWhatItHeld) {
  std::string id = MustCreate();
  rig_->Close();
  Result<CommandOutput> kill =
      RunCommand({"sh", "-c", "pkill -9 -f -- 'esker-keeper --data " + directory() + "/node '"});
  ASSERT_OK(kill);
  ASSERT_OK(rig_->Open());
  EXPECT_EQ(WaitEnded(id).end_reason, "NODE_RESTART");
  EXPECT_EQ(MustRun(MustCreate(), "echo works"), "works\n");
}

TEST_F(AdoptionTest, AKeeperThatDiesIsReplaced) {
  std::string id = MustCreate();
  CommandInfo command = MustStart(id, "echo hi; sleep 1000");
  Collector collector;
  Follow(collector, command);
  ASSERT_OK(collector.WaitBytes(3));
  pid_t keeper = node().GetStats().keeper_pid;
  ASSERT_GT(keeper, 0);
  ASSERT_EQ(::kill(keeper, SIGKILL), 0);
  ASSERT_OK(collector.WaitExit());
  SandboxInfo ended = WaitEnded(id);
  EXPECT_TRUE(ended.end_reason == "NODE_RESTART" || ended.end_reason == "INIT_DIED")
      << ended.end_reason;
  Result<SandboxInfo> next = node().Create(Spec());
  (void)Eventually([&] { return next.ok() || (next = node().Create(Spec())).ok(); });
  ASSERT_OK(next);
  EXPECT_EQ(MustRun(next->id, "echo works"), "works\n");
}

}  // namespace
}  // namespace esker::testing
