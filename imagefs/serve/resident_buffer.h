// ResidentBuffer: memory whose pages are present and stay so.
//
// Everything that goes through /dev/fuse must use one. The kernel copies a request or a reply page
// by page, and a page that is not present is faulted in; a fault in a process with a pending
// SIGKILL fails, and the kernel then ends that request with EIO instead of keeping it for the next
// server. docs/decisions/0003-blob-server-takeover.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"

namespace esker {

// Move-only; thread-compatible.
class ResidentBuffer {
 public:
  // `size` is rounded up to whole pages. Populated, and locked where the limits allow it.
  static Result<ResidentBuffer> Create(size_t size);
  ResidentBuffer() = default;
  ResidentBuffer(ResidentBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ResidentBuffer& operator=(ResidentBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~ResidentBuffer();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// A reply under construction: room for the FUSE header directly before `payload`, so that a reply
// is one contiguous write from resident memory.
class ReplyBuffer {
 public:
  static Result<ReplyBuffer> Create(size_t payload_size);
  std::span<uint8_t> payload() const {
    return {buffer_.data() + kHeadRoom, buffer_.size() - kHeadRoom};
  }
  // Where `header_size` bytes of header go.
  uint8_t* Head(size_t header_size) const { return buffer_.data() + kHeadRoom - header_size; }

 private:
  static constexpr size_t kHeadRoom = 4096;  // keeps the payload page-aligned
  ResidentBuffer buffer_;
};

}  // namespace esker
