// Privileged: commands in a real sandbox, from start to acknowledged end.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/io.h"
#include "testing/fixture.h"

namespace esker {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

class Commands : public InitTest {};

TEST_F(Commands, ArgvEnvironmentDirectoryAndUser) {
  InitCommandSpec spec = Spec({"sh", "-c", "pwd; id -u; id -g; id -G; echo $A:$HOME:$USER:$SHELL"});
  spec.env = {"A=b c"};
  spec.cwd = "/tmp";
  spec.user = "user";
  auto outcome = Run(spec);
  EXPECT_EQ(outcome.out, "/tmp\n1000\n1000\n1000 10 29\nb c:/home/user:user:/bin/ash\n");
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.status.exit_code, 0);
  EXPECT_GT(outcome.status.pid, 1);
  EXPECT_GE(outcome.status.ended_ns, outcome.status.started_ns);
  ExpectIdle();
}

TEST_F(Commands, WhatTheCallerSetIsNotReplaced) {
  InitCommandSpec spec = Spec({"sh", "-c", "echo $HOME:$PATH"});
  spec.env = {"HOME=/x", "PATH=/bin"};
  EXPECT_EQ(Run(spec).out, "/x:/bin\n");
}

TEST_F(Commands, Users) {
  EXPECT_EQ(Sh("id -u; id -G").out, "0\n0 10\n");
  EXPECT_EQ(Sh("id -u; id -G", "1001").out, "1001\n1001\n");
  EXPECT_EQ(Sh("id -u; id -G", "user:audio").out, "1000\n29\n");
  EXPECT_EQ(Sh("id -u; id -G; echo $HOME", "4242:77").out, "4242\n77\n/\n");
  auto unknown = Sh("true", "nobody-here");
  EXPECT_EQ(unknown.status.exit_code, 126);
  EXPECT_THAT(unknown.status.start_error, HasSubstr("nobody-here"));
}

TEST_F(Commands, CapabilitiesAndFilter) {
  auto root = Sh("grep -E '^(Cap...|Seccomp|NoNewPrivs):' /proc/self/status");
  EXPECT_EQ(root.out,
            "CapInh:\t0000000000000000\nCapPrm:\t00000000a00425fb\nCapEff:\t00000000a00425fb\n"
            "CapBnd:\t00000000a00425fb\nCapAmb:\t0000000000000000\n"
            "NoNewPrivs:\t0\nSeccomp:\t2\n");
  auto user = Sh("grep -E '^(CapPrm|CapBnd|CapAmb):' /proc/self/status", "user");
  EXPECT_EQ(user.out,
            "CapPrm:\t0000000000000000\nCapBnd:\t00000000a00425fb\nCapAmb:\t0000000000000000\n");
}

TEST_F(Commands, InitCannotBeReadTracedOrKilledFromInside) {
  auto outcome =
      Sh("kill -9 1; kill -TERM 1; cat /proc/1/mem; cat /proc/1/environ; ls /proc/1/fd; "
         "readlink /proc/1/exe; echo still here");
  EXPECT_EQ(outcome.out, "still here\n");
  EXPECT_EQ(Sh("echo again").out, "again\n");
}

TEST_F(Commands, CommandsDieBeforeInitWhenMemoryIsShort) {
  // Init's own score plus 200.
  auto outcome =
      Sh("cat /proc/1/oom_score_adj; while [ $(cat /proc/self/oom_score_adj) = "
         "$(cat /proc/1/oom_score_adj) ]; do :; done; cat /proc/self/oom_score_adj");
  int init = 0, command = 0;
  ASSERT_EQ(std::sscanf(outcome.out.c_str(), "%d\n%d", &init, &command), 2) << outcome.out;
  EXPECT_EQ(command, std::min(1000, init + 200));
}

TEST_F(Commands, NotFoundAndNotExecutable) {
  struct Case {
    std::string program;
    int code;
    std::string text;
  };
  ASSERT_EQ(Sh("echo x > /tmp/plain; echo 'not a program' > /tmp/odd; chmod 755 /tmp/odd; "
               "mkdir /tmp/d; echo '#!/no/such' > /tmp/script; chmod 755 /tmp/script")
                .status.exit_code,
            0);
  for (const Case& c :
       {Case{"no-such-program", 127, "No such file"}, Case{"/no/such/program", 127, "No such file"},
        Case{"/tmp/plain/x", 127, "Not a directory"}, Case{"/tmp/script", 127, "No such file"},
        Case{"/tmp/plain", 126, "Permission denied"}, Case{"/tmp/d", 126, "Permission denied"},
        Case{"/tmp/odd", 126, "Exec format"}, Case{"", 127, "No such file"}}) {
    auto outcome = Run(Spec({c.program}));
    EXPECT_EQ(outcome.status.exit_code, c.code) << c.program;
    EXPECT_EQ(outcome.status.state, InitCommandState::kExited);
    EXPECT_THAT(outcome.status.start_error, HasSubstr(c.text)) << c.program;
  }
  InitCommandSpec spec = Spec({"true"});
  spec.cwd = "/no/such/directory";
  EXPECT_THAT(Run(spec).status.start_error, HasSubstr("/no/such/directory"));
  EXPECT_EQ(Sh("exit 127").status.start_error, "");
  ExpectIdle();
}

TEST_F(Commands, BytesAndEndOfInput) {
  std::string input;
  for (int i = 0; i < 300'000; ++i) input += static_cast<char>(i * 7 + i / 256);
  InitCommandSpec spec = Spec({"cat"});
  spec.want_stdin = true;
  auto outcome = Run(spec, input);
  EXPECT_EQ(outcome.out.size(), input.size());
  EXPECT_TRUE(outcome.out == input);
  EXPECT_EQ(Sh("cat | wc -c").out, "0\n") << "no stdin wanted is an empty one";
  ExpectIdle();
}

TEST_F(Commands, SignalsGoToTheLeaderOnly) {
  InitCommandSpec spec =
      Spec({"sh", "-c", "trap 'echo got; exit 3' USR1; echo up; while :; do sleep 0.01; done"});
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  EXPECT_EQ(TestNode::ReadUntil(started->pipes.out.get(), "up"), "up\n");
  EXPECT_TRUE(node_->Signal(spec.command_id, SIGUSR1).ok());
  auto status = node_->WaitExit(spec.command_id);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->exit_code, 3);
  EXPECT_EQ(status->signal, 0);
  EXPECT_EQ(node_->Signal(spec.command_id, SIGUSR1).code(), Code::kFailedPrecondition);
  node_->Acknowledge(spec.command_id);
  EXPECT_EQ(node_->Signal(spec.command_id, SIGUSR1).code(), Code::kNotFound);

  InitCommandSpec sleeper = Spec({"sleep", "1000"});
  ASSERT_TRUE(node_->Start(sleeper).ok());
  EXPECT_EQ(node_->Signal(sleeper.command_id, 999).code(), Code::kInvalidArgument);
  EXPECT_TRUE(node_->Signal(sleeper.command_id, SIGTERM).ok());
  status = node_->WaitExit(sleeper.command_id);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->exit_code, 128 + SIGTERM);
  EXPECT_EQ(status->signal, SIGTERM);
  node_->Acknowledge(sleeper.command_id);
  ExpectIdle();
}

TEST_F(Commands, ATimeOutKillsTheWholeTreeInTime) {
  InitCommandSpec spec = Spec({});
  // A grandchild in a session of its own, whose parent is gone, that ignores signals.
  spec.shell =
      "trap '' TERM INT HUP; (setsid sh -c 'trap \"\" TERM; while :; do :; done' & ); "
      "echo up; sleep 1000";
  spec.timeout_ms = 300;
  auto before = steady_clock::now();
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok());
  EXPECT_EQ(TestNode::ReadUntil(started->pipes.out.get(), "up"), "up\n");
  auto status = node_->WaitExit(spec.command_id);
  auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - before).count();
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(status->timed_out);
  EXPECT_EQ(status->signal, SIGKILL);
  EXPECT_GE(took, 300);
  EXPECT_LT(took, 400);
  EXPECT_EQ(TestNode::ReadAll(started->pipes.out.get()), "") << "nobody holds the pipe any more";
  EXPECT_EQ(sandbox_->CountCommandCgroups(), 0u);
  node_->Acknowledge(spec.command_id);
  ExpectIdle();
}

TEST_F(Commands, ACommandThatEndsInTimeIsNotKilledLater) {
  InitCommandSpec spec = Spec({});
  spec.shell = "(sleep 0.6; echo late) & exit 0";
  spec.timeout_ms = 200;
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok());
  auto status = node_->WaitExit(spec.command_id);
  ASSERT_TRUE(status.ok());
  EXPECT_FALSE(status->timed_out);
  // The background job keeps the pipe open and goes on past the time-out of its leader.
  EXPECT_EQ(TestNode::ReadAll(started->pipes.out.get()), "late\n");
  node_->Acknowledge(spec.command_id);
}

TEST_F(Commands, BackgroundChildrenLiveUntilKilledAndThenNothingIsLeft) {
  InitCommandSpec spec = Spec({});
  spec.shell = "sleep 1000 & sleep 1000 & echo started";
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok());
  auto status = node_->WaitExit(spec.command_id);
  ASSERT_TRUE(status.ok()) << "ends with its leader, although children hold the pipes";
  EXPECT_EQ(status->exit_code, 0);
  node_->Acknowledge(spec.command_id);
  Settle();
  EXPECT_EQ(sandbox_->CountCommandCgroups(), 1u);
  EXPECT_EQ(sandbox_->CountChildren(), 2u);
  EXPECT_TRUE(node_->Signal(spec.command_id, SIGKILL, /*whole_tree=*/true).ok());
  EXPECT_TRUE(Eventually([&] { return sandbox_->CountCommandCgroups() == 0; }));
  EXPECT_EQ(node_->Signal(spec.command_id, SIGKILL, true).code(), Code::kNotFound);
  ExpectIdle();
}

TEST_F(Commands, StartingTwiceStartsOnce) {
  InitCommandSpec spec = Spec({"sh", "-c", "echo once >> /tmp/log; echo up; sleep 1000"});
  // At once, so that both may have to wait for execve.
  Result<InitClient::Started> second = InternalError("not run");
  std::thread other_caller([&] { second = node_->Start(spec); });
  auto first = node_->Start(spec);
  other_caller.join();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->status.pid, second->status.pid);
  EXPECT_TRUE(second->pipes.out.valid());
  InitCommandSpec other = spec;
  other.argv = {"true"};
  EXPECT_EQ(node_->Start(other).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(TestNode::ReadUntil(first->pipes.out.get(), "up"), "up\n");
  EXPECT_TRUE(node_->Signal(spec.command_id, SIGKILL, true).ok());
  EXPECT_TRUE(node_->WaitExit(spec.command_id).ok());
  auto ended = node_->Start(spec);
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->status.state, InitCommandState::kExited);
  EXPECT_EQ(ended->status.exit_code, 137);
  EXPECT_EQ(Sh("cat /tmp/log").out, "once\n");
  node_->Acknowledge(spec.command_id);
  ExpectIdle();
}

TEST_F(Commands, BadRequests) {
  InitCommandSpec spec = Spec({"true"});
  spec.command_id = "../x";
  EXPECT_EQ(node_->Start(spec).status().code(), Code::kInvalidArgument);
  spec.command_id = "x";
  spec.argv.clear();
  EXPECT_EQ(node_->Start(spec).status().code(), Code::kInvalidArgument);
  spec.argv = {std::string(200'000, 'a')};
  EXPECT_EQ(node_->Start(spec).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(node_->Handover("never").status().code(), Code::kNotFound);
  EXPECT_EQ(node_->CloseStdin("never").code(), Code::kNotFound);
  EXPECT_EQ(node_->Configure({{"hostname", "x"}}).code(), Code::kUnimplemented);
  EXPECT_EQ(Sh("echo fine").out, "fine\n");
}

TEST_F(Commands, TerminalWithJobControlAndResize) {
  InitCommandSpec spec = Spec({"sh", "-i"});
  spec.pty = true;
  spec.rows = 30;
  spec.cols = 100;
  spec.user = "user";
  spec.env = {"PS1=> "};
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  ASSERT_TRUE(started->pipes.in.valid() && started->pipes.out.valid());
  EXPECT_FALSE(started->pipes.err.valid());
  int terminal = started->pipes.out.get();
  auto type = [&](const std::string& text) {
    EXPECT_TRUE(WriteFull(started->pipes.in.get(), text.data(), text.size()).ok());
  };
  auto expect = [&](const std::string& text) {
    EXPECT_THAT(TestNode::ReadUntil(terminal, text), HasSubstr(text));
  };
  auto sleep_in_foreground = [&] {
    return Eventually([&] {
      pid_t group = ::tcgetpgrp(terminal);
      auto name = ReadFileToString("/proc/" + std::to_string(group) + "/comm");
      return name.ok() && *name == "sleep\n";
    });
  };
  type("stty size; tty; echo a''b\n");
  std::string first = TestNode::ReadUntil(terminal, "ab\r\n");
  EXPECT_THAT(first, HasSubstr("30 100"));
  EXPECT_THAT(first, HasSubstr("/dev/pts/0"));
  EXPECT_THAT(first, Not(HasSubstr("can't access tty")));
  EXPECT_TRUE(node_->Resize(spec.command_id, 50, 132).ok());
  type("stty size\n");
  expect("50 132");
  // Ctrl-C ends the job in the foreground, not the shell.
  type("sleep 1000; echo st''atus $?\n");
  EXPECT_TRUE(sleep_in_foreground());
  type("\x03");
  type("echo a''live\n");
  expect("alive");
  // Ctrl-Z, list, end in the background.
  type("sleep 1000\n");
  EXPECT_TRUE(sleep_in_foreground());
  type("\x1a");
  expect("Stopped");
  type("kill -9 %1; wait; echo su''spended\n");
  expect("suspended");
  EXPECT_EQ(node_->CloseStdin(spec.command_id).code(), Code::kFailedPrecondition);
  type("exit 5\nexit 5\n");  // twice: the first time this shell only warns of stopped jobs
  auto status = node_->WaitExit(spec.command_id);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->exit_code, 5);
  EXPECT_EQ(node_->Resize("never", 1, 1).code(), Code::kNotFound);
  node_->Acknowledge(spec.command_id);
  EXPECT_TRUE(Eventually([&] { return sandbox_->CountProcesses() == 1; }));
  ExpectIdle();
}

TEST_F(Commands, ManyComeAndGoAndNothingIsLeft) {
  uint64_t before = 0;
  for (int i = 0; i < 2000; ++i) {
    if (i == 200) before = sandbox_->AnonymousBytes();
    ASSERT_EQ(Run(Spec({"true"})).status.exit_code, 0);
  }
  ExpectIdle();
  EXPECT_LE(sandbox_->AnonymousBytes(), before + 16 * 1024);
}

}  // namespace
}  // namespace esker
