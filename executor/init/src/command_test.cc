// Privileged: commands in a real sandbox, from start to acknowledged end.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "testing/fixture.h"

namespace esker {
namespace {

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
}

TEST_F(Commands, ShellAndExitCode) {
  auto outcome = Sh("echo out; echo err >&2; exit 7");
  EXPECT_EQ(outcome.out, "out\n");
  EXPECT_EQ(outcome.err, "err\n");
  EXPECT_EQ(outcome.status.exit_code, 7);
}

}  // namespace
}  // namespace esker
