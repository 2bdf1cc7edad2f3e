// TempDir: a directory that goes away with its owner.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace esker {

// Made under $TMPDIR (or /var/tmp) unless a parent is given; mode 0700. Move-only.
class TempDir {
 public:
  static Result<TempDir> Create(const std::string& parent = "");
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDir& operator=(TempDir&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  // Best effort; use Remove() to learn what failed.
  ~TempDir();
  const std::string& path() const { return path_; }
  Status Remove();

 private:
  explicit TempDir(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace esker
