#include "frame_compressor.h"

namespace esker {
namespace {

void CompressJob(std::string plain, FrameCompressor::Frame& frame) {
  frame.plain_bytes = static_cast<uint32_t>(plain.size());
  frame.packed = pack_format::Compress(std::move(plain));
}

}  // namespace

FrameCompressor::~FrameCompressor() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void FrameCompressor::Push(std::string plain) {
  auto job = std::make_shared<Job>();
  job->plain = std::move(plain);
  ++queue_size_;
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    // A pack of one frame, the usual small snapshot, is not worth a thread: Pop does it.
    if (jobs_.size() < 2 && threads_.empty()) return;
  }
  while (threads_.size() < kThreads) threads_.emplace_back([this] { Run(); });
  work_.notify_one();
}

std::optional<FrameCompressor::Frame> FrameCompressor::Pop(bool wait) {
  std::unique_lock lock(mutex_);
  if (jobs_.empty()) return std::nullopt;
  std::shared_ptr<Job> job = jobs_.front();
  if (!job->done && !wait) return std::nullopt;
  if (!job->taken) {
    job->taken = true;
    lock.unlock();
    CompressJob(std::move(job->plain), job->frame);
    lock.lock();
    job->done = true;
  }
  done_.wait(lock, [&] { return job->done; });
  jobs_.pop_front();
  --queue_size_;
  return std::move(job->frame);
}

void FrameCompressor::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::shared_ptr<Job> job;
    for (const std::shared_ptr<Job>& candidate : jobs_) {
      if (!candidate->taken) {
        job = candidate;
        break;
      }
    }
    if (stop_) return;
    if (job == nullptr) {
      work_.wait(lock);
      continue;
    }
    job->taken = true;
    lock.unlock();
    CompressJob(std::move(job->plain), job->frame);
    lock.lock();
    job->done = true;
    done_.notify_all();
  }
}

}  // namespace esker
