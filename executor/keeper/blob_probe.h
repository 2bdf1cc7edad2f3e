// BlobProbe: asks the blob file system again and again whether its server still gets on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/event_loop.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::keeper {

// The question is statfs(2) on the mountpoint, which the kernel passes to the server: an answer
// proves that requests are taken and answered. It is asked by a child, since it may hang. The
// server answers EIO when it lives but its fetch threads hang in the store.
class BlobProbe {
 public:
  enum class Finding {
    kSilent,  // no answer for kDeadlineNs
    kStuck,   // the server says so itself
  };
  static constexpr int64_t kIntervalNs = 1'000'000'000;
  static constexpr int64_t kDeadlineNs = 5'000'000'000;

  explicit BlobProbe(EventLoop& loop) : loop_(loop) {}

  // `found` is called on the loop, once per finding; Fresh() begins anew.
  Status Start(const std::string& directory, std::function<void(Finding)> found);
  // A new server was started.
  void Fresh();
  // Ends the child; it may take as long as the server's answer to be gone.
  void Stop();

 private:
  Status StartChild();
  void Heard();
  void Look();
  void Tell(Finding finding);

  EventLoop& loop_;
  std::string directory_;
  std::function<void(Finding)> found_;
  Process child_;
  UniqueFd answers_;
  int64_t heard_ns_ = 0;
  bool told_ = false;
  bool stopping_ = false;
};

}  // namespace esker::keeper
