#include "base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace esker {

struct EventLoop::Impl {
  struct Watcher {
    int fd;
    FdCallback callback;
  };

  UniqueFd epoll;
  UniqueFd wakeup;
  std::unordered_map<int, std::shared_ptr<Watcher>> watchers;
  std::multimap<int64_t, std::pair<TimerId, Callback>> timers;
  std::unordered_map<TimerId, std::multimap<int64_t, std::pair<TimerId, Callback>>::iterator>
      timer_index;
  TimerId next_timer = 1;
  std::mutex mutex;  // guards posted and stopping
  std::deque<Callback> posted;
  bool stopping = false;
  std::atomic<std::thread::id> thread;

  void Wake() {
    uint64_t one = 1;
    ssize_t ignored = ::write(wakeup.get(), &one, sizeof(one));
    (void)ignored;  // a full counter already wakes the loop
  }

  bool RunPosted() {
    std::deque<Callback> batch;
    bool stop;
    {
      std::lock_guard lock(mutex);
      batch.swap(posted);
      stop = stopping;
    }
    for (Callback& callback : batch) callback();
    return stop;
  }

  int RunTimersAndGetTimeout() {
    for (;;) {
      if (timers.empty()) return -1;
      int64_t left = timers.begin()->first - Clock::System().MonotonicNanos();
      if (left > 0) {
        int64_t ms = (left + 999'999) / 1'000'000;
        return static_cast<int>(std::min<int64_t>(ms, 60'000));
      }
      auto [id, callback] = std::move(timers.begin()->second);
      timer_index.erase(id);
      timers.erase(timers.begin());
      callback();
    }
  }
};

EventLoop::EventLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EventLoop::~EventLoop() = default;

Result<std::unique_ptr<EventLoop>> EventLoop::Create() {
  auto impl = std::make_unique<Impl>();
  impl->epoll.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!impl->epoll.valid()) return ErrnoError("make epoll");
  impl->wakeup.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!impl->wakeup.valid()) return ErrnoError("make eventfd");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = impl->wakeup.get();
  if (::epoll_ctl(impl->epoll.get(), EPOLL_CTL_ADD, impl->wakeup.get(), &event) != 0) {
    return ErrnoError("watch eventfd");
  }
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(impl)));
}

Status EventLoop::Watch(int fd, uint32_t events, FdCallback callback) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoError("watch descriptor " + std::to_string(fd));
  }
  impl_->watchers[fd] = std::make_shared<Impl::Watcher>(Impl::Watcher{fd, std::move(callback)});
  return OkStatus();
}

Status EventLoop::Modify(int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return ErrnoError("rewatch descriptor " + std::to_string(fd));
  }
  return OkStatus();
}

void EventLoop::Unwatch(int fd) {
  if (impl_->watchers.erase(fd) != 0) {
    ::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

EventLoop::TimerId EventLoop::After(int64_t delay_ns, Callback callback) {
  TimerId id = impl_->next_timer++;
  int64_t due = Clock::System().MonotonicNanos() + std::max<int64_t>(0, delay_ns);
  impl_->timer_index[id] = impl_->timers.emplace(due, std::make_pair(id, std::move(callback)));
  return id;
}

void EventLoop::Cancel(TimerId id) {
  auto it = impl_->timer_index.find(id);
  if (it == impl_->timer_index.end()) return;
  impl_->timers.erase(it->second);
  impl_->timer_index.erase(it);
}

void EventLoop::Post(Callback callback) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->posted.push_back(std::move(callback));
  }
  impl_->Wake();
}

void EventLoop::Stop() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->Wake();
}

bool EventLoop::InLoopThread() const { return impl_->thread.load() == std::this_thread::get_id(); }

void EventLoop::Run() {
  impl_->thread = std::this_thread::get_id();
  epoll_event events[256];
  while (!impl_->RunPosted()) {
    int timeout = impl_->RunTimersAndGetTimeout();
    int n = ::epoll_wait(impl_->epoll.get(), events, 256, timeout);
    for (int i = 0; i < n; ++i) {
      int fd = events[i].data.fd;
      if (fd == impl_->wakeup.get()) {
        uint64_t count;
        ssize_t ignored = ::read(fd, &count, sizeof(count));
        (void)ignored;
        continue;
      }
      // A callback earlier in this batch may have unwatched this one (or closed and reused its
      // number: then the new watcher sees a spurious event, which level-triggered users tolerate).
      auto it = impl_->watchers.find(fd);
      if (it == impl_->watchers.end()) continue;
      std::shared_ptr<Impl::Watcher> watcher = it->second;
      watcher->callback(events[i].events);
    }
  }
  impl_->thread = std::thread::id();
}

}  // namespace esker
