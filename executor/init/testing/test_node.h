// The node's side in tests: an event loop on a thread of its own, and calls that block.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/event_loop.h"
#include "executor/init_client.h"

namespace esker {

class TestNode {
 public:
  TestNode();
  ~TestNode();

  // Connects anew; what the old connection had is dropped first.
  Status Connect(const std::string& socket_path, int64_t deadline_ms = 10'000);
  void Disconnect();
  const InitClient::Inventory& inventory() const { return inventory_; }

  Result<InitClient::Started> Start(const InitCommandSpec& spec);
  Result<InitCommandPipes> Handover(const std::string& id);
  Status Signal(const std::string& id, int signal, bool whole_tree = false);
  Status CloseStdin(const std::string& id);
  Status Resize(const std::string& id, uint16_t rows, uint16_t cols);
  Status Configure(const std::map<std::string, std::string>& settings);
  void Acknowledge(const std::string& id);
  Result<InitFileResult> File(const InitFileRequest& request, int stream = -1);
  // Waits for the exit event.
  Result<InitCommandStatus> WaitExit(const std::string& id, int timeout_ms = 10'000);
  bool WaitDisconnect(int timeout_ms = 10'000);

  // Starts, collects all output until the end of both streams, waits for the exit, acknowledges.
  struct Outcome {
    InitCommandStatus status;
    std::string out, err;
  };
  Result<Outcome> Run(const InitCommandSpec& spec, const std::string& input = "");
  // sh -c `shell` under a new id.
  Result<Outcome> Sh(const std::string& shell, const std::string& user = "");

  static std::string ReadAll(int fd, int timeout_ms = 10'000);
  // Until `text` was seen; returns all that came.
  static std::string ReadUntil(int fd, const std::string& text, int timeout_ms = 10'000);

 private:
  template <typename T, typename F>
  T Await(F call);

  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
  std::unique_ptr<InitClient> client_;  // on the loop's thread only
  InitClient::Inventory inventory_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::map<std::string, InitCommandStatus> ended_;
  bool disconnected_ = false;
};

}  // namespace esker
