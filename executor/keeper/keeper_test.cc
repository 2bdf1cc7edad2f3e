// Real containers, looked at from inside by the test's own PID 1.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "base/io.h"
#include "base/socket.h"
#include "testing/keeper_fixture.h"

namespace esker::keeper {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class KeeperTest : public KeeperFixture {};

TEST_F(KeeperTest, InitIsRootOfItsOwnNamespacesAndOfNothingElse) {
  Result<Box> box = Create(Spec("one", 3));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  std::string ids = Ask(*box, "ids");
  EXPECT_THAT(ids, HasSubstr("pid=1 uid=0 gid=0 groups=0 sid=1 pdeathsig=9"));
  EXPECT_THAT(ids, HasSubstr("\nfd0 fd1 fd2 fd3 fd4 fd5 fd6 \n")) << "fd6 is the connection";
  EXPECT_THAT(ids, ContainsRegex("CapEff:\t000001ff"));
  EXPECT_THAT(ids, ContainsRegex("CapAmb:\t0000000000000000"));
  EXPECT_THAT(ids, HasSubstr("NoNewPrivs:\t0"));
  EXPECT_THAT(Ask(*box, "read /proc/self/uid_map"), ContainsRegex("^ *0 +268632064 +65536\n$"));
  EXPECT_THAT(Ask(*box, "read /proc/self/gid_map"), ContainsRegex("^ *0 +268632064 +65536\n$"));
  EXPECT_EQ(Ask(*box, "read /proc/sys/kernel/hostname"), "host-one\n");
  EXPECT_EQ(Ask(*box, "read /proc/self/oom_score_adj"), "200\n");
  EXPECT_THAT(Ask(*box, "read /proc/self/cgroup"), Not(HasSubstr("esker-keeper-test")));
  EXPECT_EQ(Ask(*box, "read /marker"), "the image's own root\n");
  EXPECT_THAT(Ask(*box, "stat /home/user"), HasSubstr(" 1000 1000"));
  EXPECT_EQ(Ask(*box, "stat /"), "40755 0 0");
}

TEST_F(KeeperTest, TheNetworkIsLoopbackAndUp) {
  Result<Box> box = Create(Spec("net"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  EXPECT_EQ(Ask(*box, "lo"), "up");
  EXPECT_EQ(Ask(*box, "port"), "bind=done\nping=done\n") << "opened by sysctl";
  std::string devices = Ask(*box, "read /proc/net/dev");
  EXPECT_EQ(std::count(devices.begin(), devices.end(), ':'), 1) << devices;
}

TEST_F(KeeperTest, NothingOfTheHostIsMounted) {
  Result<Box> box = Create(Spec("mounts"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  std::string table = Ask(*box, "read /proc/self/mountinfo");
  EXPECT_THAT(table, Not(HasSubstr(temp_->path())));
  EXPECT_THAT(table, Not(HasSubstr("- cgroup")));
  EXPECT_THAT(table, Not(HasSubstr("ext4")));
  EXPECT_THAT(table, AllOf(HasSubstr(" / / "), HasSubstr(" /proc "), HasSubstr(" /dev "),
                           HasSubstr(" /dev/pts "), HasSubstr(" /dev/shm "),
                           HasSubstr(" /dev/mqueue "), HasSubstr(" /sys ")));
  EXPECT_THAT(Ask(*box, "list /proc"), Not(HasSubstr("\n2\n"))) << "only PID 1 lives in it";
}

TEST_F(KeeperTest, ProcSysAndDevAreCovered) {
  Result<Box> box = Create(Spec("covers"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  EXPECT_EQ(Ask(*box, "read /proc/kallsyms"), std::string(1, '\0'));
  EXPECT_EQ(Ask(*box, "read /proc/keys"), std::string(1, '\0'));
  EXPECT_EQ(Ask(*box, "read /proc/kpagecgroup"), std::string(1, '\0'));
  EXPECT_THAT(Ask(*box, "write /proc/sys/kernel/hostname"), HasSubstr("error"));
  EXPECT_THAT(Ask(*box, "read /proc/self/mountinfo"), HasSubstr("/sys /proc/sys ro,"));
  EXPECT_EQ(Ask(*box, "write /dev/x"), "error " + std::to_string(EROFS));
  EXPECT_EQ(Ask(*box, "write /sys/x"), "error " + std::to_string(EROFS));
  EXPECT_EQ(Ask(*box, "write /dev/null"), "ok");
  EXPECT_EQ(Ask(*box, "write /dev/shm/x"), "ok");
  EXPECT_EQ(Ask(*box, "stat /dev/null"), "20666 0 0");
  EXPECT_EQ(Ask(*box, "link /dev/ptmx"), "pts/ptmx");
  EXPECT_EQ(Ask(*box, "list /sys/fs/cgroup"), std::string(1, '\0'));
  EXPECT_THAT(Ask(*box, "read /sys/devices/system/cpu/online"), ContainsRegex("^0"));
}

TEST_F(KeeperTest, NoWayLeadsOut) {
  Result<Box> box = Create(Spec("escape"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  std::string eperm = "=" + std::to_string(EPERM) + "\n";
  std::string escape = Ask(*box, "escape");
  EXPECT_THAT(escape, HasSubstr("chroot=done\nown-root=1\n"));
  EXPECT_THAT(escape, HasSubstr("setns" + eperm));
  EXPECT_THAT(escape, HasSubstr("umount" + eperm));
  EXPECT_THAT(escape, HasSubstr("umount-proc" + eperm));
  EXPECT_THAT(escape, HasSubstr("mount" + eperm));
  EXPECT_THAT(escape, Not(HasSubstr("open_tree=done")));
  std::string locked = "=" + std::to_string(EINVAL) + "\n";
  EXPECT_THAT(escape, HasSubstr("newns=done\nnewns-umount" + locked));
  EXPECT_THAT(escape, HasSubstr("newns-umount-proc" + locked));
  EXPECT_THAT(escape, HasSubstr("fd4=own-root"));
  EXPECT_THAT(escape, Not(HasSubstr("newuser-umount=done")));
}

TEST_F(KeeperTest, InitCannotBeReadTracedOrKilled) {
  Result<Box> box = Create(Spec("guard"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  std::string look = Ask(*box, "child-look");
  EXPECT_THAT(look, Not(HasSubstr("done"))) << look;
  EXPECT_THAT(look, HasSubstr("alive"));
  EXPECT_EQ(Ask(*box, "read /marker"), "the image's own root\n");
  Result<std::string> host = ReadFileToString("/proc/self/mountinfo");
  ASSERT_TRUE(host.ok());
  EXPECT_THAT(*host, Not(HasSubstr(temp_->path()))) << "the host sees none of a sandbox's mounts";
}

TEST_F(KeeperTest, TheFilterCanBeInstalledWithoutNoNewPrivileges) {
  Result<Box> box = Create(Spec("filter"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  std::string outcome = Ask(*box, "filter");
  EXPECT_THAT(outcome, HasSubstr("install=done"));
  EXPECT_THAT(outcome, HasSubstr("mount=" + std::to_string(EPERM)));
  EXPECT_THAT(outcome, HasSubstr("newuser=" + std::to_string(EPERM)));
  EXPECT_THAT(outcome, HasSubstr("keyctl=" + std::to_string(ENOSYS)));
  EXPECT_THAT(outcome, HasSubstr("io_uring=" + std::to_string(ENOSYS)));
  EXPECT_THAT(outcome, HasSubstr("getpid=done"));
}

TEST_F(KeeperTest, FilesOfAVolumeAreOwnedFromZeroAndSurviveTheContainer) {
  for (int life = 0; life < 2; ++life) {
    UniqueFd volume = NewVolume("v");
    Result<Box> box = Create(Spec("volume", 5), volume.get());
    ASSERT_TRUE(box.ok()) << box.status().ToString();
    std::string name = "/tmp/life" + std::to_string(life);
    EXPECT_EQ(Ask(*box, "write " + name), "ok");
    EXPECT_EQ(Ask(*box, "stat " + name), "100644 0 0");
    EXPECT_EQ(Ask(*box, "stat /tmp/life0"), "100644 0 0");
    Kill(*box);
  }
  UniqueFd volume = NewVolume("v");
  struct stat st = {};
  ASSERT_EQ(fstatat(volume.get(), "upper/tmp/life1", &st, 0), 0);
  EXPECT_EQ(st.st_uid, 0u);
  EXPECT_EQ(st.st_gid, 0u);
  // The mount points were not made in the upper: a snapshot has only what the sandbox changed.
  EXPECT_NE(fstatat(volume.get(), "upper/proc", &st, 0), 0);
}

TEST_F(KeeperTest, ReadOnlyRoot) {
  ContainerSpec spec = Spec("ro");
  spec.read_only = true;
  Result<Box> box = Create(spec);
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  EXPECT_EQ(Ask(*box, "write /x"), "error " + std::to_string(EROFS));
  EXPECT_EQ(Ask(*box, "read /marker"), "the image's own root\n");
  EXPECT_EQ(Ask(*box, "write /dev/shm/x"), "ok");
}

TEST_F(KeeperTest, OpenFilesAreLimited) {
  ContainerSpec spec = Spec("files");
  spec.nofile_limit = 321;
  Result<Box> box = Create(spec);
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  EXPECT_THAT(Ask(*box, "read /proc/self/limits"), ContainsRegex("Max open files +321 +321"));
}

TEST_F(KeeperTest, EndsAreReportedKeptAndAcknowledged) {
  std::atomic<int> reported = -1;
  client_->OnEnd([&](const ContainerEnd& end) { reported = end.wait_status; });
  Result<Box> box = Create(Spec("mortal"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  Result<std::pair<UniqueFd, UniqueFd>> any = SeqpacketPair();
  ASSERT_TRUE(any.ok());
  auto again = [&] { return client_->Create(Spec("mortal"), -1, any->first.get(), {}, -1); };
  EXPECT_EQ(again().status().code(), Code::kAlreadyExists);
  EXPECT_EQ(client_->AcknowledgeEnd("mortal").code(), Code::kFailedPrecondition);
  EXPECT_EQ(client_->Shutdown().code(), Code::kFailedPrecondition);
  // PID 1 ends without a reply, so this is not Ask().
  std::string line = "exit 7";
  ASSERT_EQ(write(box->talk.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  Process init = Process::FromPidfd(box->handle.init.pid, std::move(box->handle.pidfd));
  ASSERT_TRUE(init.WaitExit(10'000).ok());
  int status = AwaitEnd("mortal");
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  while (reported < 0) std::this_thread::yield();  // the test's own time limit bounds it
  EXPECT_EQ(reported, status);
  EXPECT_TRUE(client_->AcknowledgeEnd("mortal").ok()) << "twice is fine";
  EXPECT_TRUE(client_->List()->ended.empty());
}

TEST_F(KeeperTest, OutlivesItsClientAndIsFoundAgain) {
  Result<Box> box = Create(Spec("stays"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  client_.reset();
  Result<std::unique_ptr<KeeperClient>> again = KeeperClient::ConnectOrStart(options_);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  client_ = std::move(*again);
  Result<KeeperClient::Inventory> inventory = client_->List();
  ASSERT_TRUE(inventory.ok()) << inventory.status().ToString();
  ASSERT_EQ(inventory->live.size(), 1u);
  EXPECT_EQ(inventory->live[0].sandbox_id, "stays");
  EXPECT_EQ(inventory->live[0].init, box->handle.init);
  EXPECT_EQ(Ask(*box, "read /marker"), "the image's own root\n");

  KeeperOptions other = options_;
  other.range_size = 1000;
  Result<std::unique_ptr<KeeperClient>> refused = KeeperClient::ConnectOrStart(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("host id range"));
}

TEST_F(KeeperTest, ManyStartersGetOneKeeper) {
  KeeperOptions options = options_;
  options.data_directory = temp_->path() + "/other";
  std::vector<std::thread> threads;
  std::vector<Result<std::unique_ptr<KeeperClient>>> clients;
  for (int i = 0; i < 4; ++i) clients.emplace_back(InternalError("not made"));
  for (auto& client : clients) {
    threads.emplace_back([&] { client = KeeperClient::ConnectOrStart(options); });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<pid_t> servers;
  for (auto& client : clients) {
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    Result<pid_t> pid = (*client)->BlobServerPid();
    ASSERT_TRUE(pid.ok()) << pid.status().ToString();
    servers.insert(*pid);
  }
  EXPECT_EQ(servers.size(), 1u);
  EXPECT_TRUE((*clients[0])->Shutdown().ok());
}

TEST_F(KeeperTest, AStartThatFailsSaysWhy) {
  KeeperOptions options = options_;
  options.data_directory = temp_->path() + "/other";
  options.binary_directory = temp_->path() + "/few";
  ASSERT_TRUE(MakeDirectories(options.binary_directory).ok());
  Status missing = KeeperClient::ConnectOrStart(options).status();
  EXPECT_THAT(missing.message(), HasSubstr("few/esker-keeper"));
  ASSERT_EQ(symlink((options_.binary_directory + "/esker-keeper").c_str(),
                    (options.binary_directory + "/esker-keeper").c_str()),
            0);
  Status half = KeeperClient::ConnectOrStart(options).status();
  EXPECT_EQ(half.code(), Code::kFailedPrecondition);
  EXPECT_THAT(half.message(), HasSubstr("few/esker-imagefs"));
  EXPECT_EQ(KeeperClient::Connect(options).status().code(), Code::kUnavailable);
}

TEST_F(KeeperTest, AFailedStepIsNamedAndLeavesNothing) {
  UniqueFd volume = NewVolume("broken");
  ASSERT_EQ(unlinkat(volume.get(), "work", AT_REMOVEDIR), 0);
  Result<Box> box = Create(Spec("broken"), volume.get());
  ASSERT_FALSE(box.ok());
  EXPECT_EQ(box.status().error_number(), ENOENT);
  EXPECT_EQ(box.status().message(),
            "container broken: open the upper volume (work): No such file or directory");
  ContainerSpec spec = Spec("broken");
  spec.layers[0].metadata_path += ".missing";
  Status missing = Create(spec).status();
  EXPECT_THAT(missing.message(), HasSubstr("mount layer " + spec.layers[0].metadata_path));
  EXPECT_TRUE(client_->List()->live.empty());
  EXPECT_TRUE(cgroups_->Remove("broken").ok()) << "no process is left in the cgroup";
}

TEST_F(KeeperTest, LinksOfTheImageAreNotFollowed) {
  UniqueFd volume = NewVolume("links");
  ASSERT_EQ(symlinkat("/tmp", volume.get(), "upper/proc"), 0);
  Result<Box> box = Create(Spec("links"), volume.get());
  ASSERT_FALSE(box.ok());
  EXPECT_THAT(box.status().message(), HasSubstr("find a mount point (proc)"));
}

TEST_F(KeeperTest, FiftyAtOnce) {
  constexpr int kCount = 50;
  std::vector<Result<Box>> boxes;
  for (int i = 0; i < kCount; ++i) boxes.emplace_back(InternalError("not made"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 10; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < kCount; i += 10) {
        boxes[i] = Create(Spec("many-" + std::to_string(i), static_cast<uint32_t>(i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> identities;
  for (Result<Box>& box : boxes) {
    ASSERT_TRUE(box.ok()) << box.status().ToString();
    identities.insert(box->handle.init.pidfd_inode);
    EXPECT_EQ(Ask(*box, "read /marker"), "the image's own root\n");
  }
  EXPECT_EQ(identities.size(), size_t{kCount});
  EXPECT_EQ(client_->List()->live.size(), size_t{kCount});
  EXPECT_EQ(*client_->DropIdleLayers(), 0u) << "all of them use the one layer";
  for (Result<Box>& box : boxes) Kill(*box);
  EXPECT_EQ(*client_->DropIdleLayers(), 1u);
}

TEST_F(KeeperTest, TheBlobServerIsStartedAgain) {
  Result<pid_t> first = client_->BlobServerPid();
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  Result<Process> server = Process::Open(*first);
  ASSERT_TRUE(server.ok());
  ASSERT_TRUE(server->Kill(SIGKILL).ok());
  ASSERT_TRUE(server->WaitExit(10'000).ok());
  Result<pid_t> second = client_->BlobServerPid();
  while (!second.ok() || *second == *first) second = client_->BlobServerPid();
  ASSERT_TRUE(client_->ReplaceBlobServer().ok());
  Result<pid_t> third = client_->BlobServerPid();
  while (!third.ok() || *third == *second) third = client_->BlobServerPid();
}

// A layer whose blob server does not answer holds up its own container and nothing else.
TEST_F(KeeperTest, AStuckBlobServerHoldsUpOnlyThoseThatNeedIt) {
  Result<pid_t> pid = client_->BlobServerPid();
  ASSERT_TRUE(pid.ok());
  Result<Process> server = Process::Open(*pid);
  ASSERT_TRUE(server.ok() && server->Kill(SIGSTOP).ok());
  Result<Box> stuck = InternalError("not made");
  std::atomic<bool> answered = false;
  std::thread waiting([&] {
    ContainerSpec spec = Spec("stuck");
    spec.layers[0].complete_path.clear();
    spec.layers[0].data_blob = std::string(64, 'd');
    stuck = Create(spec);
    answered = true;
  });
  for (int i = 0; i < 5; ++i) {
    Result<Box> other = Create(Spec("other-" + std::to_string(i)));
    EXPECT_TRUE(other.ok()) << other.status().ToString();
  }
  EXPECT_FALSE(answered);
  ASSERT_TRUE(server->Kill(SIGCONT).ok());
  waiting.join();
  ASSERT_FALSE(stuck.ok()) << "there is no such blob";
  EXPECT_THAT(stuck.status().message(), HasSubstr("mount layer"));
}

TEST_F(KeeperTest, AKilledKeeperTakesEverythingAlong) {
  Result<Box> box = Create(Spec("orphan"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  Result<pid_t> server = client_->BlobServerPid();
  ASSERT_TRUE(server.ok());
  Result<Process> blob_server = Process::Open(*server);
  ASSERT_TRUE(blob_server.ok());
  std::atomic<bool> lost = false;
  client_->OnLost([&](const Status&) { lost = true; });
  Result<std::string> status = ReadFileToString("/proc/" + std::to_string(*server) + "/status");
  ASSERT_TRUE(status.ok());
  pid_t keeper = std::atoi(status->c_str() + status->find("PPid:") + 5);
  Result<Process> process = Process::Open(keeper);
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE(process->Kill(SIGKILL).ok());
  Process init = Process::FromPidfd(box->handle.init.pid, std::move(box->handle.pidfd));
  EXPECT_TRUE(init.WaitExit(10'000).ok());
  EXPECT_TRUE(blob_server->WaitExit(10'000).ok());
  while (!lost) std::this_thread::yield();
  EXPECT_EQ(client_->List().status().code(), Code::kUnavailable);
  // A new keeper starts from nothing.
  Result<std::unique_ptr<KeeperClient>> again = KeeperClient::ConnectOrStart(options_);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  client_ = std::move(*again);
  EXPECT_TRUE(client_->List()->live.empty());
  EXPECT_TRUE(Create(Spec("orphan")).ok());
}

}  // namespace
}  // namespace esker::keeper
