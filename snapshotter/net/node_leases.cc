#include "net/node_leases.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "net/convert.h"

namespace esker::index_net {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kUnknownLeaseNs = 6'000'000'000;  // until the index has said how long it is
constexpr int64_t kRenewalsPerLease = 6;
constexpr int64_t kRetryNs = 1'000'000'000;
constexpr auto kLeastPause = std::chrono::milliseconds(50);
constexpr IndexChannel::Deadline kRenewDeadline{10'000};

int64_t Now() { return Clock::System().MonotonicNanos(); }

}  // namespace

class NodeLeases::ImageLease final : public Lease {
 public:
  ImageLease(NodeLeases& leases, const ImageId& image) : leases_(leases), image_(image) {}
  ~ImageLease() override { leases_.Release(image_); }

 private:
  NodeLeases& leases_;
  const ImageId image_;
};

NodeLeases::NodeLeases(IndexChannel& channel, std::string node, uint64_t epoch)
    : channel_(channel), node_(std::move(node)), epoch_(epoch), lease_ns_(kUnknownLeaseNs) {
  thread_ = std::thread([this] { Run(); });
}

NodeLeases::~NodeLeases() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Holder NodeLeases::NextCall() {
  std::lock_guard lock(mutex_);
  return Holder{node_, epoch_, ++sequence_};
}

// --- images --------------------------------------------------------------------------------------

bool NodeLeases::SurelyHeldLocked(const Held& held) const {
  return held.confirmed && heard_ns_ != 0 && Now() - heard_ns_ < lease_ns_;
}

Result<std::unique_ptr<Lease>> NodeLeases::LeaseImage(const ImageId& image,
                                                      const std::string& purpose) {
  pb::LeaseImageRequest request;
  {
    std::lock_guard lock(mutex_);
    Held& held = images_[image];
    // Counted before the index is asked, so that every renewal after the call lists it.
    ++held.count;
    if (!complete_ || SurelyHeldLocked(held)) {
      held.granted = true;
      return std::unique_ptr<Lease>(std::make_unique<ImageLease>(*this, image));
    }
    ToProto(Holder{node_, epoch_, ++sequence_}, request.mutable_holder());
  }
  auto lease = std::make_unique<ImageLease>(*this, image);
  request.set_image(BytesOf(image));
  request.set_purpose(purpose);
  pb::LeaseImageResponse response;
  ESKER_RETURN_IF_ERROR(channel_.Repeat(&IndexChannel::Stub::LeaseImage, request, &response));
  std::lock_guard lock(mutex_);
  images_[image].granted = images_[image].confirmed = true;
  return std::unique_ptr<Lease>(std::move(lease));
}

void NodeLeases::Release(const ImageId& image) {
  std::lock_guard lock(mutex_);
  auto held = images_.find(image);
  if (held == images_.end() || --held->second.count > 0) return;
  images_.erase(held);
  changed_ = true;
  wake_.notify_all();
}

void NodeLeases::Complete() {
  std::lock_guard lock(mutex_);
  complete_ = true;
  changed_ = true;
  wake_.notify_all();
}

void NodeLeases::AddImport(const std::string& session) {
  std::lock_guard lock(mutex_);
  imports_.insert(session);
}

void NodeLeases::EndImport(const std::string& session) {
  std::lock_guard lock(mutex_);
  imports_.erase(session);
  changed_ = true;
  wake_.notify_all();
}

// --- renewal -------------------------------------------------------------------------------------

void NodeLeases::Run() {
  std::unique_lock lock(mutex_);
  int64_t pause_ns = 0;
  for (;;) {
    wake_.wait_for(lock, std::chrono::nanoseconds(pause_ns), [&] { return stopping_ || changed_; });
    if (stopping_) return;
    changed_ = false;
    lock.unlock();
    Status status = Renew();
    Note(status);
    lock.lock();
    // Many changes at once are told in few calls.
    wake_.wait_for(lock, kLeastPause, [&] { return stopping_; });
    pause_ns = std::max<int64_t>(lease_ns_ / kRenewalsPerLease, kNsPerMs);
    if (!status.ok()) pause_ns = std::min(pause_ns, kRetryNs);
  }
}

Status NodeLeases::Renew() {
  pb::RenewRequest request;
  const int64_t begun = Now();
  {
    std::lock_guard lock(mutex_);
    ToProto(Holder{node_, epoch_, ++sequence_}, request.mutable_holder());
    request.set_complete(complete_);
    for (const auto& [image, held] : images_) request.add_images(BytesOf(image));
    for (const std::string& session : imports_) request.add_sessions(session);
  }
  pb::RenewResponse response;
  ESKER_RETURN_IF_ERROR(
      channel_.Once(&IndexChannel::Stub::Renew, request, &response, kRenewDeadline));
  ESKER_ASSIGN_OR_RETURN(std::vector<ImageId> lost, ImagesFrom(response.lost_images()));
  ESKER_ASSIGN_OR_RETURN(std::vector<ImageId> asked, ImagesFrom(request.images()));
  std::lock_guard lock(mutex_);
  heard_ns_ = begun;
  lease_ns_ = std::max<int64_t>(response.lease_ms(), 1) * kNsPerMs;
  const std::set<ImageId> gone(lost.begin(), lost.end());
  for (const ImageId& image : asked) {
    auto held = images_.find(image);
    if (held == images_.end()) continue;
    const bool confirmed = !gone.contains(image);
    if (!confirmed && held->second.granted && !held->second.told) {
      LogError("lease_lost", {{"image", image.ToHex()},
                              {"why", "it was deleted, and the index had let go of our lease"}});
    }
    held->second.told = !confirmed && held->second.granted;
    held->second.confirmed = confirmed;
  }
  return OkStatus();
}

void NodeLeases::Note(const Status& status) {
  std::lock_guard lock(mutex_);
  if (status.ok() && !reachable_) LogInfo("index_reached", {});
  if (!status.ok() && reachable_) {
    LogWarning("index_not_reached", {{"why", status.ToString()}});
  }
  reachable_ = status.ok();
}

}  // namespace esker::index_net
