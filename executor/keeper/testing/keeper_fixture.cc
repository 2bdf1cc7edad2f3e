#include "keeper_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/io.h"
#include "base/socket.h"
#include "imagefs/store.h"

namespace esker::keeper {
namespace {

// Lines of the host's mount table that have `text`; other tests mount at the same time.
std::vector<std::string> MountsNaming(const std::string& text) {
  Result<std::string> table = ReadFileToString("/proc/self/mountinfo");
  EXPECT_TRUE(table.ok());
  std::vector<std::string> lines;
  std::istringstream in(*table);
  for (std::string line; std::getline(in, line);) {
    if (line.find(text) != line.npos) lines.push_back(line);
  }
  return lines;
}

size_t OpenDescriptors() { return ListDirectory("/proc/self/fd")->size(); }

// Processes that have `text` in their command line.
std::vector<std::string> ProcessesNaming(const std::string& text) {
  std::vector<std::string> found;
  Result<std::vector<std::string>> processes = ListDirectory("/proc");
  EXPECT_TRUE(processes.ok());
  for (const std::string& pid : *processes) {
    if (pid[0] < '0' || pid[0] > '9') continue;
    Result<std::string> line = ReadFileToString("/proc/" + pid + "/cmdline");
    if (line.ok() && line->find(text) != line->npos) found.push_back(pid + " " + *line);
  }
  return found;
}

}  // namespace

void KeeperFixture::SetUp() {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: it makes namespaces and mounts";
  fds_before_ = OpenDescriptors();
  Result<TempDir> temp = TempDir::Create();
  ASSERT_TRUE(temp.ok()) << temp.status().ToString();
  temp_ = std::make_unique<TempDir>(std::move(*temp));
  std::string root = temp_->path();
  for (const char* name : {"/data", "/cache", "/bin", "/volumes", "/sockets"}) {
    ASSERT_TRUE(MakeDirectories(root + name).ok());
  }
  ASSERT_TRUE(Store::Initialise(root + "/store").ok());
  std::string programs = ESKER_PROGRAMS;
  ASSERT_EQ(symlink((programs + "/esker-keeper").c_str(), (root + "/bin/esker-keeper").c_str()), 0);
  ASSERT_EQ(symlink((programs + "/esker-imagefs").c_str(), (root + "/bin/esker-imagefs").c_str()),
            0);
  ASSERT_EQ(symlink(InitProgram().c_str(), (root + "/bin/esker-init").c_str()), 0);
  options_.data_directory = root + "/data";
  options_.store_directory = root + "/store";
  options_.cache_directory = root + "/cache";
  options_.binary_directory = root + "/bin";
  Result<std::unique_ptr<CgroupRoot>> cgroups =
      CgroupRoot::Open("esker-keeper-test-" + std::to_string(getpid()));
  ASSERT_TRUE(cgroups.ok()) << cgroups.status().ToString();
  cgroups_ = std::move(*cgroups);
  MakeLayer();
  Result<std::unique_ptr<KeeperClient>> client = KeeperClient::ConnectOrStart(options_);
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  client_ = std::move(*client);
}

void KeeperFixture::MakeLayer() {
  std::string root = temp_->path() + "/image";
  for (const char* name : {"/etc", "/bin", "/tmp", "/home/user"}) {
    ASSERT_TRUE(MakeDirectories(root + name, 0755).ok());
  }
  // A static busybox, and its applets as hard links.
  Result<CommandOutput> busybox = RunCommand(
      {"sh", "-c",
       "cd '" + root + "/bin' && cp $(command -v busybox) busybox && ./busybox --install ."});
  ASSERT_TRUE(busybox.ok() && PathExists(root + "/bin/busybox")) << "install busybox-static";
  Result<UniqueFd> marker = OpenFile(root + "/marker", O_CREAT | O_WRONLY | O_TRUNC, 0644);
  ASSERT_TRUE(marker.ok());
  std::string text = "the image's own root\n";
  ASSERT_TRUE(WriteFull(marker->get(), text.data(), text.size()).ok());
  ASSERT_EQ(chown((root + "/home/user").c_str(), 1000, 1000), 0);
  AddFilesToImage(root);
  layer_.metadata_path = temp_->path() + "/layer.erofs";
  layer_.complete_path = temp_->path() + "/layer.data";
  Result<CommandOutput> made =
      RunCommand({"mkfs.erofs", "--quiet", "--chunksize=4096", "--blobdev=" + layer_.complete_path,
                  layer_.metadata_path, root});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  ASSERT_EQ(made->exit_code, 0) << made->out;
}

ContainerSpec KeeperFixture::Spec(const std::string& id, uint32_t range) {
  ContainerSpec spec;
  spec.sandbox_id = id;
  spec.layers = {layer_};
  spec.range = range;
  spec.hostname = "host-" + id;
  return spec;
}

UniqueFd KeeperFixture::NewVolume(const std::string& name) {
  std::string path = temp_->path() + "/volumes/" + name;
  EXPECT_TRUE(MakeDirectories(path + "/upper", 0755).ok());
  EXPECT_TRUE(MakeDirectories(path + "/work", 0755).ok());
  UniqueFd fd(open_tree(AT_FDCWD, path.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  EXPECT_TRUE(fd.valid()) << errno;
  return fd;
}

Result<KeeperFixture::Box> KeeperFixture::Create(const ContainerSpec& spec, int volume_fd) {
  uint32_t owner = options_.first_host_id + spec.range * options_.range_size;
  ESKER_RETURN_IF_ERROR(cgroups_->Create(spec.sandbox_id, CgroupLimits(), owner, owner));
  ESKER_ASSIGN_OR_RETURN(CgroupEntryFds entry, cgroups_->OpenEntry(spec.sandbox_id));
  std::vector<int> tasks;
  for (const UniqueFd& fd : entry.tasks) tasks.push_back(fd.get());
  std::string path = SocketPath(spec.sandbox_id);
  ESKER_ASSIGN_OR_RETURN(UniqueFd listen, ListenSeqpacket(path));
  Box box;
  ESKER_ASSIGN_OR_RETURN(
      box.handle, client_->Create(spec, volume_fd, listen.get(), tasks, entry.unified.get()));
  ESKER_ASSIGN_OR_RETURN(box.talk, ConnectSeqpacket(path));
  return box;
}

std::string KeeperFixture::Ask(Box& box, const std::string& line) {
  Status sent = SendMessage(box.talk.get(), line);
  EXPECT_TRUE(sent.ok()) << sent.ToString();
  EXPECT_TRUE(WaitReadable(box.talk.get(), 60'000).ok()) << line;
  Result<SocketMessage> reply = ReceiveMessage(box.talk.get());
  EXPECT_TRUE(reply.ok()) << reply.status().ToString();
  return reply.ok() ? reply->data : "";
}

void KeeperFixture::Kill(Box& box) {
  Process init = Process::FromPidfd(box.handle.init.pid, std::move(box.handle.pidfd));
  ASSERT_TRUE(init.Kill(SIGKILL).ok());
  ASSERT_TRUE(init.WaitExit(10'000).ok());
  AwaitEnd(box.handle.sandbox_id);
}

int KeeperFixture::AwaitEnd(const std::string& id) {
  int64_t deadline = Clock::System().MonotonicNanos() + 10'000'000'000;
  while (Clock::System().MonotonicNanos() < deadline) {
    Result<KeeperClient::Inventory> inventory = client_->List();
    EXPECT_TRUE(inventory.ok()) << inventory.status().ToString();
    if (!inventory.ok()) return -1;
    for (const ContainerEnd& end : inventory->ended) {
      if (end.sandbox_id != id) continue;
      EXPECT_TRUE(client_->AcknowledgeEnd(id).ok());
      return end.wait_status;
    }
    std::this_thread::yield();
  }
  ADD_FAILURE() << "the end of " << id << " was not reported";
  return -1;
}

void KeeperFixture::TearDown() {
  if (client_ != nullptr) {
    Result<KeeperClient::Inventory> inventory = client_->List();
    if (inventory.ok()) {
      for (ContainerHandle& handle : inventory->live) {
        Box box;
        box.handle = std::move(handle);
        Kill(box);
      }
    }
    Status ended = client_->Shutdown();
    EXPECT_TRUE(ended.ok()) << ended.ToString();
    client_.reset();
  }
  if (cgroups_ != nullptr) {
    Result<std::vector<std::string>> ids = cgroups_->List();
    EXPECT_TRUE(ids.ok());
    for (const std::string& id : *ids) {
      Status removed = cgroups_->Remove(id);
      EXPECT_TRUE(removed.ok()) << removed.ToString();
    }
    Status closed = cgroups_->Close();
    EXPECT_TRUE(closed.ok()) << closed.ToString();
    cgroups_.reset();
  }
  if (temp_ == nullptr) return;
  if (HasFailure()) {
    Result<std::string> log = ReadFileToString(options_.data_directory + "/run/keeper.log");
    if (log.ok()) fprintf(stderr, "--- keeper.log\n%s---\n", log->c_str());
  }
  EXPECT_TRUE(ProcessesNaming(temp_->path()).empty())
      << testing::PrintToString(ProcessesNaming(temp_->path()));
  EXPECT_TRUE(MountsNaming(temp_->path()).empty())
      << testing::PrintToString(MountsNaming(temp_->path()));
  Status removed = temp_->Remove();
  EXPECT_TRUE(removed.ok()) << removed.ToString();
  temp_.reset();
  EXPECT_EQ(OpenDescriptors(), fds_before_);
}

}  // namespace esker::keeper
