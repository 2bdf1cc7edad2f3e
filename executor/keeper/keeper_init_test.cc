// The keeper with the real esker-init: what a command in a finished container sees.
#include <gmock/gmock.h>
#include <unistd.h>

#include "testing/keeper_fixture.h"
#include "testing/test_node.h"

namespace esker::keeper {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class KeeperInitTest : public KeeperFixture {
 protected:
  std::string InitProgram() const override { return ESKER_INIT_BINARY; }
  void SetUp() override {
    KeeperFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    volume_ = NewVolume("v");
    Result<Box> box = Create(Spec("real", 9), volume_.get());
    ASSERT_TRUE(box.ok()) << box.status().ToString();
    box_ = std::make_unique<Box>(std::move(*box));
    box_->talk.reset();
    node_ = std::make_unique<TestNode>();
    Status connected = node_->Connect(SocketPath("real"));
    ASSERT_TRUE(connected.ok()) << connected.ToString();
  }
  void TearDown() override {
    node_.reset();
    box_.reset();
    volume_.reset();
    KeeperFixture::TearDown();
  }
  // Output of a shell command, both streams.
  std::string Sh(const std::string& command) {
    Result<TestNode::Outcome> outcome = node_->Sh(command + " 2>&1");
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    return outcome.ok() ? outcome->out : "";
  }

  UniqueFd volume_;
  std::unique_ptr<Box> box_;
  std::unique_ptr<TestNode> node_;
};

TEST_F(KeeperInitTest, CommandsAreConfined) {
  EXPECT_EQ(Sh("hostname; id -u"), "host-real\n0\n");
  std::string status = Sh("cat /proc/self/status");
  EXPECT_THAT(status, AllOf(HasSubstr("Seccomp:\t2"), HasSubstr("NoNewPrivs:\t0")));
  EXPECT_THAT(status, testing::Not(ContainsRegex("Cap(Eff|Prm|Bnd):\t000001ff")));
  EXPECT_THAT(Sh("mount -t tmpfs x /tmp"), HasSubstr("permission denied"));
  EXPECT_THAT(Sh("unshare -U true"), HasSubstr("not permitted"));
  EXPECT_THAT(Sh("cat /proc/1/environ"), HasSubstr("ermission denied"));
  EXPECT_THAT(Sh("kill -9 1; echo $?"), HasSubstr("0")) << "PID 1 does not mind";
  EXPECT_THAT(Sh("ls /proc/self/fd"), testing::Not(HasSubstr("5"))) << "nothing of init's is left";
}

TEST_F(KeeperInitTest, CommandsWork) {
  EXPECT_EQ(Sh("echo a > /tmp/f && cat /tmp/f && stat -c '%u %g' /tmp/f"), "a\n0 0\n");
  EXPECT_EQ(Sh("nproc"), std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) + "\n");
  InitCommandSpec spec;
  spec.command_id = "terminal";
  spec.shell = "tty; stty size";
  spec.env = {"PATH=/bin"};
  spec.pty = true;
  Result<InitClient::Started> started = node_->Start(spec);
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  EXPECT_THAT(TestNode::ReadUntil(started->pipes.out.get(), "24 80"),
              HasSubstr("/dev/pts/0\r\n24 80"));
  EXPECT_TRUE(node_->WaitExit("terminal").ok());
}

}  // namespace
}  // namespace esker::keeper
