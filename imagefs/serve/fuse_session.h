// FuseSession: the reading side. Threads take requests from the device and dispatch them to a flat,
// read-only set of files.
//
// Speaks the kernel's protocol itself (docs/decisions/0003-blob-server-takeover.md): a session can
// be continued by another process at any point, because nothing about it is kept in memory but the
// file set, which is a function of node ids.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "fuse_device.h"

namespace esker {

struct FuseFileAttributes {
  uint64_t node = 0;  // not 0, not 1 (the root)
  uint64_t size = 0;
};

struct FuseReadCall {
  uint64_t unique = 0;
  uint64_t node = 0;
  uint64_t offset = 0;
  uint32_t size = 0;  // at most kMaxFuseRead
};

// What the session serves. Methods are called from many threads.
class FuseFiles {
 public:
  virtual ~FuseFiles() = default;
  // NOT_FOUND becomes ENOENT, anything else EIO.
  virtual Result<FuseFileAttributes> Lookup(std::string_view name) = 0;
  virtual Result<FuseFileAttributes> Stat(uint64_t node) = 0;
  struct Name {
    std::string name;
    uint64_t node = 0;
  };
  virtual std::vector<Name> List() = 0;
  // Not OK: this server will not get on by itself and should be replaced.
  virtual Status Health() const { return OkStatus(); }
  // Answers `call` exactly once through `device`, now (`buffer` is the caller's and free to use
  // until return) or later from another thread.
  virtual void Read(const FuseReadCall& call, const FuseDevice& device,
                    const ReplyBuffer& buffer) = 0;
};

struct FuseSessionOptions {
  int fd = -1;             // not owned
  std::string state_file;  // the INIT request the kernel sent is kept here
  int threads = 8;
};

class FuseSession {
 public:
  FuseSession(const FuseSessionOptions& options, FuseFiles& files);
  ~FuseSession();  // Stop() and wait

  // Takes over what an earlier server left, then starts the threads.
  Status Start();
  // No further request is taken; those taken are finished by their threads. Requests given to
  // other threads by Read are not waited for.
  void Stop();
  // Waits until the kernel ended the session or Stop() was called.
  void Wait();
  bool ended() const { return running_.load() == 0; }
  const FuseDevice& device() const { return device_; }
  // Readable (an eventfd) once all threads have ended.
  int ended_fd() const { return ended_fd_.get(); }

 private:
  void RunThread();
  bool TakeRequest(const ResidentBuffer& buffer, size_t* size);
  void Dispatch(const uint8_t* request, size_t size, const ReplyBuffer& buffer);
  void HandleInit(uint64_t unique, std::span<const uint8_t> body, std::span<const uint8_t> whole);
  void HandleLookup(uint64_t unique, uint64_t parent, std::span<const uint8_t> body);
  void HandleGetattr(uint64_t unique, uint64_t node);
  void HandleOpen(uint64_t unique, uint64_t node, std::span<const uint8_t> body);
  void HandleRead(uint64_t unique, uint64_t node, std::span<const uint8_t> body,
                  const ReplyBuffer& buffer);
  void HandleReaddir(uint64_t unique, std::span<const uint8_t> body, const ReplyBuffer& buffer);
  void HandleStatfs(uint64_t unique);

  const FuseSessionOptions options_;
  FuseFiles& files_;
  const FuseDevice device_;
  UniqueFd ended_fd_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> running_{0};
  std::mutex join_mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace esker
