// EventLoop: epoll with timers and posted functions; one thread runs it, any thread may post.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"

namespace esker {

// Callbacks run on the thread that is in Run(). Watch/Unwatch/timers may be called only from that
// thread (or before Run starts); Post and Stop from any. A callback may unwatch itself or others.
class EventLoop {
 public:
  using Callback = std::function<void()>;
  using FdCallback = std::function<void(uint32_t epoll_events)>;
  using TimerId = uint64_t;

  static Result<std::unique_ptr<EventLoop>> Create();
  ~EventLoop();

  // One watch per descriptor; `events` are EPOLLIN etc. (level-triggered). The caller keeps the
  // descriptor open until Unwatch.
  Status Watch(int fd, uint32_t events, FdCallback callback);
  Status Modify(int fd, uint32_t events);
  void Unwatch(int fd);

  // Runs once after delay_ns (monotonic). Cancelling a fired or unknown timer is harmless.
  TimerId After(int64_t delay_ns, Callback callback);
  void Cancel(TimerId id);

  void Post(Callback callback);
  // Until Stop(); what was posted before Stop is still run.
  void Run();
  void Stop();
  bool InLoopThread() const;

 private:
  struct Impl;
  explicit EventLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace esker
