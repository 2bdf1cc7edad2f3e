// Small tars, OCI images made of them, and sources to push them from.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "imagefs/import.h"

namespace esker::testing {

// A ustar archive of regular files (path, content), with its end.
std::string MakeTar(const std::vector<std::pair<std::string, std::string>>& files);

// An image whose layers are these tars, uncompressed, lowest first.
OciImage MakeOciImage(const std::string& label, const std::vector<std::string>& tars);

class StringSource final : public ByteSource {
 public:
  explicit StringSource(std::string text) : text_(std::move(text)) {}
  Result<size_t> Read(void* buffer, size_t size) override;

 private:
  std::string text_;
  size_t at_ = 0;
};

}  // namespace esker::testing
