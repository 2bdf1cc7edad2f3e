#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "base/config.h"
#include "base/digest.h"
#include "base/event_loop.h"
#include "base/failpoint.h"
#include "base/id.h"
#include "base/io.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/temp_dir.h"
#include "base/wire.h"
#include "base/worker_pool.h"

namespace esker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Status, KeepsCodeErrnoAndContext) {
  Status status = Status::FromErrno(ENOSPC, "write pack").Wrap("push image x");
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.error_number(), ENOSPC);
  EXPECT_EQ(status.message(), "push image x: write pack: No space left on device");
  EXPECT_TRUE(OkStatus().Wrap("nothing").ok());
}

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgumentError("odd");
  return n / 2;
}
Result<int> Quarter(int n) {
  ESKER_ASSIGN_OR_RETURN(int half, Half(n));
  return Half(half);
}

TEST(Result, PropagatesTheFirstFailure) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_FALSE(Result<int>(OkStatus()).ok()) << "an OK status is no value";
}

TEST(Digest, KnownAnswers) {
  // FIPS 180-4 example.
  EXPECT_EQ(Sha256::Of("abc").ToHex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // RFC 3720 B.4: 32 zero bytes.
  std::string zeros(32, '\0');
  EXPECT_EQ(Crc32c(zeros.data(), zeros.size()), 0x8A9136AAu);
  EXPECT_EQ(Crc32c("456789", 6, Crc32c("123", 3)), Crc32c("123456789", 9));
  EXPECT_FALSE(Digest::FromHex("xyz").ok());
  EXPECT_FALSE(Digest::FromHex(std::string(64, 'A')).ok()) << "upper case is another spelling";
}

TEST(Wire, HostileCountsAndShortBytes) {
  WireWriter writer;
  writer.Put<uint32_t>(0xffffffff);
  WireReader reader(writer.data());
  EXPECT_EQ(reader.GetCount(8), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.GetString(), "");
  EXPECT_EQ(reader.Finish("message").code(), Code::kDataLoss);

  WireWriter round;
  round.PutBytes("a\0b");
  round.Put<int64_t>(-5);
  WireReader back(round.data());
  EXPECT_EQ(back.GetString(), "a");
  EXPECT_EQ(back.Get<int64_t>(), -5);
  EXPECT_TRUE(back.Finish("message").ok());
}

TEST(Io, BeneathAndInRootNeverLeave) {
  auto dir = TempDir::Create();
  ASSERT_TRUE(dir.ok());
  ASSERT_EQ(symlink("/etc", (dir->path() + "/out").c_str()), 0);
  ASSERT_TRUE(MakeDirectories(dir->path() + "/etc").ok());
  ASSERT_TRUE(ReplaceFileDurably(dir->path() + "/etc/passwd", "inside").ok());
  auto root = OpenFile(dir->path(), O_PATH | O_DIRECTORY);
  ASSERT_TRUE(root.ok());
  EXPECT_EQ(OpenBeneath(root->get(), "out/passwd", O_RDONLY).status().code(),
            Code::kPermissionDenied);
  EXPECT_EQ(OpenBeneath(root->get(), "../x", O_RDONLY).status().code(), Code::kPermissionDenied);
  auto in_root = OpenInRoot(root->get(), "out/passwd", O_RDONLY);
  ASSERT_TRUE(in_root.ok()) << in_root.status().ToString();
  char text[6];
  ASSERT_EQ(*ReadFull(in_root->get(), text, 6), 6u);
  EXPECT_EQ(std::string(text, 6), "inside");
}

TEST(Io, RemoveTreeDoesNotFollowLinks) {
  auto keep = TempDir::Create();
  auto dir = TempDir::Create();
  ASSERT_TRUE(keep.ok() && dir.ok());
  ASSERT_TRUE(ReplaceFileDurably(keep->path() + "/precious", "x").ok());
  ASSERT_TRUE(MakeDirectories(dir->path() + "/a/b/c").ok());
  ASSERT_EQ(symlink(keep->path().c_str(), (dir->path() + "/a/link").c_str()), 0);
  ASSERT_TRUE(RemoveTree(dir->path() + "/a").ok());
  EXPECT_FALSE(PathExists(dir->path() + "/a"));
  EXPECT_TRUE(PathExists(keep->path() + "/precious"));
}

TEST(Config, UnknownKeyNamesTheNearest) {
  auto config = Config::Parse("[node]\nmax_sandboxs = 5\n", "esker.toml");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->GetInt("node.max_sandboxes", 3000), 3000);
  EXPECT_THAT(config->Finish().message(),
              HasSubstr("unknown key node.max_sandboxs; did you mean node.max_sandboxes?"));
}

TEST(Config, WrongTypeAndSyntax) {
  auto config = Config::Parse("listen = 5\n", "esker.toml");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->GetString("listen", "x"), "x");
  EXPECT_THAT(config->Finish().message(), HasSubstr("listen must be a string"));
  EXPECT_THAT(Config::Parse("a = [1,", "bad.toml").status().message(), HasSubstr("bad.toml:1:"));
}

TEST(Failpoint, ErrorOnTheNthHit) {
  ASSERT_TRUE(ArmFailPoints("disk=error:28@2").ok());
  EXPECT_TRUE(HitFailPoint("disk").ok());
  EXPECT_EQ(HitFailPoint("disk").error_number(), ENOSPC);
  EXPECT_TRUE(HitFailPoint("disk").ok()) << "fires once";
  EXPECT_THAT(HitFailPoints(), ElementsAre("disk"));
  ASSERT_TRUE(ArmFailPoints("").ok());
  EXPECT_FALSE(ArmFailPoints("disk=explode").ok());
}

TEST(Socket, CarriesDescriptorsAndReplacesStaleFiles) {
  auto dir = TempDir::Create();
  ASSERT_TRUE(dir.ok());
  std::string path = dir->path() + "/" + std::string(60, 'd');
  ASSERT_TRUE(MakeDirectories(path).ok());
  path += "/" + std::string(20, 's');  // longer than sun_path
  { ASSERT_TRUE(ListenSeqpacket(path).ok()); }
  auto listener = ListenSeqpacket(path);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  EXPECT_EQ(ListenSeqpacket(path).status().error_number(), EADDRINUSE);

  auto pair = SeqpacketPair();
  ASSERT_TRUE(pair.ok());
  ASSERT_TRUE(SendMessage(pair->first.get(), "hello", {listener->get()}).ok());
  auto message = ReceiveMessage(pair->second.get());
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->data, "hello");
  ASSERT_EQ(message->fds.size(), 1u);
  EXPECT_EQ(fcntl(message->fds[0].get(), F_GETFD), FD_CLOEXEC);
  pair->first.reset();
  EXPECT_EQ(ReceiveMessage(pair->second.get()).status().error_number(), ECONNRESET);
}

TEST(Process, SpawnKillAndIdentity) {
  auto sleeper = Process::Spawn({.argv = {"sleep", "1000"}});
  ASSERT_TRUE(sleeper.ok()) << sleeper.status().ToString();
  auto identity = sleeper->identity();
  ASSERT_TRUE(identity.ok());
  EXPECT_TRUE(Process::Open(*identity).ok());
  EXPECT_EQ(sleeper->WaitExit(0).code(), Code::kDeadlineExceeded);
  ASSERT_TRUE(sleeper->Kill(SIGKILL).ok());
  ASSERT_TRUE(sleeper->WaitExit(5000).ok());
  EXPECT_EQ(WTERMSIG(*sleeper->Reap()), SIGKILL);
  EXPECT_TRUE(sleeper->Kill(SIGKILL).ok()) << "killing the dead is fine";
  EXPECT_EQ(Process::Open(*identity).status().code(), Code::kNotFound);
  EXPECT_EQ(Process::Spawn({.argv = {"/no/such/program"}}).status().code(), Code::kNotFound);
}

TEST(Process, PassesDescriptorsByNumberOnly) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  auto child = Process::Spawn(
      {.argv = {"sh", "-c", "echo here >&7; exit 7"}, .pass_fds = {{write_end.get(), 7}}});
  ASSERT_TRUE(child.ok()) << child.status().ToString();
  EXPECT_EQ(WEXITSTATUS(*child->Reap()), 7);
  write_end.reset();
  char text[16];
  EXPECT_EQ(std::string(text, *ReadFull(read_end.get(), text, sizeof(text))), "here\n");
  // Not passed, so closed at exec.
  auto output = RunCommand({"sh", "-c", "test -e /proc/self/fd/" + std::to_string(read_end.get())});
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->exit_code, 1);
}

TEST(EventLoop, PostsTimersAndDescriptors) {
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop.ok());
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  std::vector<std::string> order;
  ASSERT_TRUE((*loop)
                  ->Watch(read_end.get(), EPOLLIN,
                          [&](uint32_t) {
                            order.push_back("fd");
                            (*loop)->Unwatch(read_end.get());
                            (*loop)->After(1'000'000, [&] {
                              order.push_back("timer");
                              (*loop)->Stop();
                            });
                          })
                  .ok());
  auto cancelled = (*loop)->After(0, [&] { order.push_back("never"); });
  (*loop)->Cancel(cancelled);
  std::thread poster([&] {
    (*loop)->Post([&] {
      order.push_back("post");
      ASSERT_EQ(write(write_end.get(), "x", 1), 1);
    });
  });
  (*loop)->Run();
  poster.join();
  EXPECT_THAT(order, ElementsAre("post", "fd", "timer"));
}

TEST(WorkerPool, RefusesBeyondItsBoundAndDrains) {
  std::atomic<int> ran{0};
  {
    WorkerPool pool(1, 2);
    std::atomic<bool> go{false};
    std::atomic<bool> started{false};
    ASSERT_TRUE(pool.Submit([&] {
                      started = true;
                      started.notify_all();
                      go.wait(false);
                      ++ran;
                    })
                    .ok());
    started.wait(false);
    EXPECT_TRUE(pool.Submit([&] { ++ran; }).ok());
    EXPECT_TRUE(pool.Submit([&] { ++ran; }).ok());
    EXPECT_EQ(pool.Submit([&] { ++ran; }).code(), Code::kResourceExhausted);
    go = true;
    go.notify_all();
  }
  EXPECT_EQ(ran, 3);
}

TEST(Id, AlphabetAndUniqueness) {
  EXPECT_NE(RandomId(), RandomId());
  EXPECT_TRUE(CheckIdentifier("id", RandomId("sb")).ok());
  EXPECT_FALSE(CheckIdentifier("id", "../x").ok());
  EXPECT_FALSE(CheckIdentifier("id", "").ok());
}

}  // namespace
}  // namespace esker
