#include "test_node.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <future>

#include "base/id.h"
#include "base/io.h"
#include "base/socket.h"

namespace esker {

TestNode::TestNode() : loop_(EventLoop::Create().value()) {
  thread_ = std::thread([this] { loop_->Run(); });
}

TestNode::~TestNode() {
  Disconnect();
  loop_->Stop();
  thread_.join();
}

template <typename T, typename F>
T TestNode::Await(F call) {
  auto promise = std::make_shared<std::promise<T>>();
  auto future = promise->get_future();
  loop_->Post(
      [call, promise] { call([promise](T value) { promise->set_value(std::move(value)); }); });
  if (future.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    return DeadlineExceededError("no answer from init within a minute");
  }
  return future.get();
}

Status TestNode::Connect(const std::string& path, int64_t deadline_ms) {
  Disconnect();
  {
    std::lock_guard lock(mutex_);
    ended_.clear();
    disconnected_ = false;
  }
  return Await<Status>([this, path, deadline_ms](std::function<void(Status)> done) {
    InitClient::Events events;
    events.on_exit = [this](const InitCommandStatus& status) {
      std::lock_guard lock(mutex_);
      ended_[status.command_id] = status;
      changed_.notify_all();
    };
    events.on_disconnect = [this](const Status&) {
      std::lock_guard lock(mutex_);
      disconnected_ = true;
      changed_.notify_all();
    };
    InitClient::Connect(
        *loop_, path, deadline_ms, events,
        [this, done](Result<std::unique_ptr<InitClient>> client, InitClient::Inventory inventory) {
          inventory_ = std::move(inventory);
          if (client.ok()) client_ = std::move(*client);
          done(client.ok() ? OkStatus() : client.status());
        });
  });
}

void TestNode::Disconnect() {
  (void)Await<Status>([this](std::function<void(Status)> done) {
    client_ = nullptr;
    done(OkStatus());
  });
}

Result<InitClient::Started> TestNode::Start(const InitCommandSpec& spec) {
  return Await<Result<InitClient::Started>>(
      [this, spec](auto done) { client_->Start(spec, done); });
}
Result<InitCommandPipes> TestNode::Handover(const std::string& id) {
  return Await<Result<InitCommandPipes>>([this, id](auto done) { client_->Handover(id, done); });
}
Status TestNode::Signal(const std::string& id, int signal, bool whole_tree) {
  return Await<Status>([=, this](auto done) { client_->Signal(id, signal, whole_tree, done); });
}
Status TestNode::CloseStdin(const std::string& id) {
  return Await<Status>([=, this](auto done) { client_->CloseStdin(id, done); });
}
Status TestNode::Resize(const std::string& id, uint16_t rows, uint16_t cols) {
  return Await<Status>([=, this](auto done) { client_->Resize(id, rows, cols, done); });
}
Status TestNode::Configure(const std::map<std::string, std::string>& settings) {
  return Await<Status>([=, this](auto done) { client_->Configure(settings, done); });
}
void TestNode::Acknowledge(const std::string& id) {
  loop_->Post([=, this] { client_->Acknowledge(id); });
}
Result<InitFileResult> TestNode::File(const InitFileRequest& request, int stream) {
  return Await<Result<InitFileResult>>(
      [=, this](auto done) { client_->File(request, stream, done); });
}

Result<InitCommandStatus> TestNode::WaitExit(const std::string& id, int timeout_ms) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                         [&] { return ended_.count(id) != 0; })) {
    return DeadlineExceededError("command " + id + " did not end");
  }
  return ended_[id];
}

bool TestNode::WaitDisconnect(int timeout_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [&] { return disconnected_; });
}

std::string TestNode::ReadAll(int fd, int timeout_ms) { return ReadUntil(fd, "", timeout_ms); }

std::string TestNode::ReadUntil(int fd, const std::string& text, int timeout_ms) {
  std::string out;
  char buffer[65536];
  while (text.empty() || out.find(text) == std::string::npos) {
    if (!WaitReadable(fd, timeout_ms).ok()) return out + "<TIMEOUT>";
    ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n <= 0) break;  // a terminal ends with EIO
    out.append(buffer, static_cast<size_t>(n));
  }
  return out;
}

Result<TestNode::Outcome> TestNode::Run(const InitCommandSpec& spec, const std::string& input) {
  ESKER_ASSIGN_OR_RETURN(InitClient::Started started, Start(spec));
  Outcome outcome;
  outcome.status = started.status;
  if (!started.status.start_error.empty()) {
    Acknowledge(spec.command_id);
    return outcome;
  }
  std::thread feeder([&] {
    if (!spec.want_stdin) return;
    (void)WriteFull(started.pipes.in.get(), input.data(), input.size());
    (void)CloseStdin(spec.command_id);
    started.pipes.in.reset();
  });
  std::thread errors([&] { outcome.err = ReadAll(started.pipes.err.get()); });
  outcome.out = ReadAll(started.pipes.out.get());
  errors.join();
  feeder.join();
  ESKER_ASSIGN_OR_RETURN(outcome.status, WaitExit(spec.command_id));
  Acknowledge(spec.command_id);
  return outcome;
}

Result<TestNode::Outcome> TestNode::Sh(const std::string& shell, const std::string& user) {
  InitCommandSpec spec;
  spec.command_id = RandomId();
  spec.shell = shell;
  spec.user = user;
  return Run(spec);
}

}  // namespace esker
