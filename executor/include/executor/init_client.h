// Talking to esker-init, PID 1 of every sandbox.
//
// init listens on a socket that the node bound outside the sandbox (fd 3), so a restarted node
// connects again and nothing inside can reach it. init starts commands, each in a child cgroup of
// the delegated cgroup2 directory (fd 4), kills them whole, enforces their time-outs with the node
// down, keeps their exit results until acknowledged, and keeps duplicates of their pipe ends to
// hand over to the next node process. Everything that init says is checked, but init itself is
// trusted code in an untrusted place: a lie from it can harm only its own sandbox. Wire format:
// base/wire.h over SEQPACKET, versioned (docs/formats/init.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

struct InitCommandSpec {
  std::string command_id;  // unique in the sandbox; same id + same spec again: no second start
  std::vector<std::string> argv;  // argv[0] searched in PATH of env; empty: `shell` is used
  std::string shell;              // run as <bash or sh> -c shell
  std::vector<std::string> env;   // the whole environment, "NAME=value"
  std::string cwd;                // "" = the user's home, or "/" without one
  std::string user;  // "", "name", "uid", "name:group", "uid:gid"; from the image's passwd
  bool want_stdin = false;
  bool pty = false;
  uint16_t rows = 24, cols = 80;
  int64_t timeout_ms = 0;  // 0: none
};

struct InitCommandPipes {
  UniqueFd in;   // write end, or the pty master (pty: in is a dup of out)
  UniqueFd out;  // read end, or the pty master
  UniqueFd err;  // read end; empty with a pty
};

enum class InitCommandState : uint8_t { kRunning = 0, kExited = 1 };

struct InitCommandStatus {
  std::string command_id;
  InitCommandState state = InitCommandState::kRunning;
  int32_t pid = 0;        // inside the sandbox
  int32_t exit_code = 0;  // 0..255; 128 + signal when killed by one; 126/127 as a shell has it
  int32_t signal = 0;
  bool timed_out = false;
  std::string start_error;  // "" or why it could not be executed (with exit_code 126 or 127)
  int64_t started_ns = 0, ended_ns = 0;  // wall clock
};

enum class InitFileOp : uint8_t {
  kRead,
  kWrite,
  kStat,
  kList,
  kMakeDir,
  kRemove,
  kRename,
};
struct InitFileRequest {
  InitFileOp op = InitFileOp::kStat;
  std::string user;           // as in InitCommandSpec
  std::string path, to_path;  // absolute, or relative to the user's home
  uint32_t mode = 0;          // for kWrite (new files, 0 = 0666 & ~umask) and kMakeDir
  bool parents = true;        // make missing parents, owned by the user
  bool recursive = false;     // kRemove
  uint64_t offset = 0;        // kRead
  uint64_t length = UINT64_MAX;
  uint32_t depth = 1;       // kList
  uint32_t limit = 10'000;  // kList: at most so many entries
};
struct InitFileInfo {
  std::string name, path;  // bytes
  uint8_t type = 0;        // 'f','d','l','c','b','p','s' as a character
  uint32_t mode = 0, uid = 0, gid = 0;
  std::string user, group;  // from the image's passwd and group, or ""
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  std::string link_target;
};
struct InitFileResult {
  int32_t error_number = 0;  // 0 = done
  std::string error_path;    // what failed
  std::vector<InitFileInfo>
      entries;  // kStat: one; kList: many; kWrite/kMakeDir/kRename: the result
  bool truncated = false;
  uint64_t bytes = 0;  // kRead/kWrite: moved
};

// One connection to one init. All methods must be called on the event loop's thread; callbacks run
// there too, each exactly once (with UNAVAILABLE if the connection is lost first, also by
// destroying the client; `on_disconnect` is not called for that). A callback may destroy the
// client.
class InitClient {
 public:
  struct Events {
    // Once for each command whose end was not told by Start's own reply (it tells only of commands
    // that could not be executed); also, after Connect's `done`, for those that ended while we were
    // away.
    std::function<void(const InitCommandStatus&)> on_exit;
    std::function<void(const Status&)> on_disconnect;
  };
  struct Inventory {
    uint32_t protocol = 0;
    std::vector<InitCommandStatus> commands;  // running and ended-unacknowledged
  };

  // Connects to the socket path and says hello. `deadline_ms` covers init's start.
  static void Connect(EventLoop& loop, const std::string& socket_path, int64_t deadline_ms,
                      Events events,
                      std::function<void(Result<std::unique_ptr<InitClient>>, Inventory)> done);
  virtual ~InitClient() = default;

  struct Started {
    InitCommandStatus status;
    InitCommandPipes pipes;  // empty if it could not be executed
  };
  virtual void Start(const InitCommandSpec& spec, std::function<void(Result<Started>)> done) = 0;
  // The pipe ends of a command that an earlier connection started.
  virtual void Handover(const std::string& command_id,
                        std::function<void(Result<InitCommandPipes>)> done) = 0;
  // signal to the command's leader; whole_tree: SIGKILL to everything it started (its cgroup).
  virtual void Signal(const std::string& command_id, int signal, bool whole_tree,
                      std::function<void(Status)> done) = 0;
  virtual void CloseStdin(const std::string& command_id, std::function<void(Status)> done) = 0;
  virtual void Resize(const std::string& command_id, uint16_t rows, uint16_t cols,
                      std::function<void(Status)> done) = 0;
  // The result is recorded on the node: init may forget the command and close its pipe duplicates.
  virtual void Acknowledge(const std::string& command_id) = 0;

  // A file call in a child of init with the user's credentials. kRead: `stream` is the write end of
  // a pipe that the child fills with the plain bytes. kWrite: `stream` is the read end of a pipe
  // that carries frames (u32 LE length, at most 8 MiB, then the bytes); a frame of length 0
  // commits; end of file without it means the upload was abandoned: error ECANCELED, what was there
  // before stays (the child writes to a temporary name beside the target and renames at the
  // commit). The client duplicates `stream` into the message; the caller may close its own at once.
  virtual void File(const InitFileRequest& request, int stream,
                    std::function<void(Result<InitFileResult>)> done) = 0;

  // Sets up identity before user code: host name is set by the keeper; init writes /etc/hostname,
  // hosts, resolv.conf into its own tmpfs binds if asked. Reserved; sent once after create.
  virtual void Configure(const std::map<std::string, std::string>& settings,
                         std::function<void(Status)> done) = 0;
};

}  // namespace esker
