// Reads a layer's metadata image inode by inode, without making a tree of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "imagefs/erofs.h"

namespace esker::erofs {

// Thread-compatible.
class LayerReader {
 public:
  // Validates the whole image (DATA_LOSS says what is wrong). The bytes must outlive the reader and
  // not change.
  static Result<LayerReader> Open(std::span<const uint8_t> image);
  LayerReader(LayerReader&&) noexcept;
  LayerReader& operator=(LayerReader&&) noexcept;
  ~LayerReader();

  uint64_t root() const;
  uint64_t data_device_bytes() const;
  struct Info {
    FileType type = FileType::kRegular;
    uint32_t link_count = 0;
  };
  // A node and what it holds: attributes, a regular file's extents, a link's target.
  Result<Node> Read(uint64_t nid, Info* info) const;
  // A directory's names in byte order, without "." and "..". The name lives as long as the call.
  using Visit = std::function<Status(std::string_view name, uint64_t nid)>;
  Status ForEachChild(uint64_t directory, const Visit& visit) const;

 private:
  struct Impl;
  explicit LayerReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace esker::erofs
