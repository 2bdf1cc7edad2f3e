// The keeper: parent of every PID 1, holder of mounts. Program esker-keeper; this is its client.
//
// The keeper is small, single-threaded (one epoll loop), long-lived, and parses nothing that comes
// from inside a sandbox. It lives in a mount namespace of its own: the blob file system, layer
// mounts and everything of a sandbox are never in the host's mount table. It outlives the server; a
// new server connects to its socket and finds everything again. It ends when told to and empty.
// Wire format: base/wire.h messages over SEQPACKET, versioned by Hello (docs/formats/keeper.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

struct KeeperOptions {
  std::string data_directory;   // node data: DATA/run/keeper.sock, DATA/run/blobs (mountpoint), ...
  std::string store_directory;  // for the blob server
  std::string cache_directory;
  std::string binary_directory;         // where esker-keeper, esker-imagefs and esker-init lie
  uint32_t first_host_id = 0x10000000;  // first host uid of the sandboxes' ranges
  uint32_t range_size = 65536;
};

struct KeeperLayer {
  std::string metadata_path;
  std::string data_blob;      // hex id of the data blob served through FUSE, "" when none
  std::string complete_path;  // when set: the complete data file, mounted without FUSE
};

struct ContainerSpec {
  std::string sandbox_id;
  std::vector<KeeperLayer> layers;  // topmost first, at least one
  uint32_t range = 0;  // number of the host id range: first_host_id + range * range_size
  std::string hostname;
  bool read_only = false;
  uint64_t shm_bytes = 64u << 20;
  uint32_t nofile_limit = 0;    // RLIMIT_NOFILE hard limit for the sandbox; 0: the node's own
  bool private_network = true;  // loopback only
};

struct ContainerHandle {
  std::string sandbox_id;
  ProcessIdentity init;  // PID 1 as seen from the host
  UniqueFd pidfd;
};

struct ContainerEnd {
  std::string sandbox_id;
  int wait_status = 0;  // of PID 1
};

// Thread-safe: requests are pipelined by id; each call blocks until its reply or the deadline.
class KeeperClient {
 public:
  // Connects, starting a keeper (new session, own cgroup, detached) if none runs. Checks versions.
  static Result<std::unique_ptr<KeeperClient>> ConnectOrStart(const KeeperOptions& options);
  // Only connects; UNAVAILABLE if no keeper runs.
  static Result<std::unique_ptr<KeeperClient>> Connect(const KeeperOptions& options);
  virtual ~KeeperClient() = default;

  // Builds the container and starts init in it. Descriptors stay the caller's:
  //   volume_fd   root of a detached mount with upper/ and work/ (from UpperStore), which becomes
  //               the sandbox's own; -1: tmpfs upper
  //   listen_fd   init's listening socket (fd 3 in init)
  //   cgroup_tasks, cgroup_unified  see CgroupEntryFds (fd 4 in init is the cgroup2 directory)
  // Returns when execve of init has happened. Errors name the step ("mount overlay: ...").
  virtual Result<ContainerHandle> Create(const ContainerSpec& spec, int volume_fd, int listen_fd,
                                         const std::vector<int>& cgroup_tasks,
                                         int cgroup_unified) = 0;
  // All containers that live, and the ends that nobody has acknowledged yet.
  struct Inventory {
    std::vector<ContainerHandle> live;
    std::vector<ContainerEnd> ended;
  };
  virtual Result<Inventory> List() = 0;
  virtual Status AcknowledgeEnd(const std::string& sandbox_id) = 0;
  // The same without waiting for an answer; also from within callbacks.
  virtual void AcknowledgeEndLater(const std::string& sandbox_id) = 0;
  // Called on an internal thread when a PID 1 ends. Set once, before Create.
  virtual void OnEnd(std::function<void(const ContainerEnd&)> callback) = 0;
  // Called once on an internal thread when the connection is lost. A keeper that died has taken all
  // its containers along. Set once, before Create.
  virtual void OnLost(std::function<void(const Status&)> callback) { (void)callback; }

  // Unmounts layers that no container uses (after garbage collection). Returns how many.
  virtual Result<uint32_t> DropIdleLayers() = 0;
  // Pid of the blob server (for tests and describe).
  virtual Result<pid_t> BlobServerPid() = 0;
  // Ends the blob server; the keeper starts a new one (after an upgrade of its binary) on the same
  // session. Reads wait meanwhile.
  virtual Status ReplaceBlobServer() {
    return UnimplementedError("this client cannot replace the blob server");
  }
  // The same, and from now on the server is started from `program` (an absolute path). The old one
  // goes on when the new one cannot be executed.
  virtual Status UpgradeBlobServer(const std::string& program) {
    (void)program;
    return UnimplementedError("this client cannot upgrade the blob server");
  }
  // Ends the keeper: FAILED_PRECONDITION while containers live. Returns when it is gone.
  virtual Status Shutdown() = 0;
};

}  // namespace esker
