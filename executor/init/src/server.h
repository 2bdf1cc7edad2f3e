// The one loop of esker-init: the node's connection, children, commands and file calls.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/wire.h"
#include "commands.h"
#include "protocol.h"

namespace esker {

class Server : private CommandObserver {
 public:
  // `listen_fd` and `context.cgroup_fd` stay open as long as the process.
  Server(int listen_fd, const LaunchContext& context, size_t max_commands);
  // OK never; only the setting up can fail.
  Status Run();

 private:
  // What an epoll event is about; the serial says which command, file call or connection, so that
  // an event of something that is gone finds nothing.
  enum class Source : uint8_t { kListen, kConnection, kChildren, kProgress, kCgroup, kWorker };
  struct Message {
    std::string data;
    std::vector<UniqueFd> fds;
  };
  struct Worker {
    uint32_t request = 0;
    pid_t pid = 0;
    UniqueFd socket;
    bool answered = false;  // its result was passed on
  };

  Status SetUp();
  void Dispatch(uint64_t token, uint32_t events);
  bool Watch(int fd, uint32_t events, Source source, uint64_t serial);

  // Connection.
  void Accept();
  void DropConnection();
  void ReadRequests();
  void HandleRequest(std::string_view bytes, std::vector<UniqueFd> fds);
  void Send(std::string data, std::vector<UniqueFd> fds = {});
  void Flush();
  void UpdateInterest();
  void Reply(uint32_t request, const Status& status, WireWriter body = {},
             std::vector<UniqueFd> fds = {});
  bool Backlogged() const { return !outgoing_.empty(); }

  // Requests; they read what is theirs and reply.
  void OnHello(uint32_t request, WireReader& reader);
  void OnStart(uint32_t request, WireReader& reader);
  void OnHandover(uint32_t request, WireReader& reader);
  void OnCommandCall(init_protocol::Type type, uint32_t request, WireReader& reader);
  void OnFile(uint32_t request, WireReader& reader, std::vector<UniqueFd>& fds);
  void OnConfigure(uint32_t request, WireReader& reader);
  void SendInventory(uint32_t request);

  // Children.
  void Reap();
  void OnWorker(uint64_t serial);
  void EndWorker(uint64_t serial, const Status& status);
  void KillWorkers();

  void OnStarted(Command& command) override;
  void OnEnded(Command& command) override;
  void WatchCommand(int fd, CommandObserver::Watch what, uint64_t serial) override;
  void Unwatch(int fd) override;

  const int listen_fd_;
  const LaunchContext& context_;
  CommandTable commands_;
  UniqueFd epoll_, children_;
  UniqueFd connection_;
  uint64_t connection_serial_ = 0;
  bool greeted_ = false;
  uint32_t interest_ = 0;
  std::deque<Message> outgoing_;  // bounded: nothing is read while it is not empty
  uint64_t next_worker_ = 1;
  std::unordered_map<uint64_t, Worker> workers_;
};

}  // namespace esker
