// Directories that a layer has no entry for, although something lies below them.
//
// A tar may hold a/b/c and say nothing of a and a/b. Unpacked onto its lower layers it leaves those
// directories as they are; but an overlay shows the uppermost layer's attributes, and a layer is
// imported without knowing what will lie under it. So such directories are marked
// (trusted.esker.implicit, and a word in the super block), with root:root, 0755 and time 0 for
// want of better, and get their true attributes when the layers of an image are known. The mark
// stays, so that the same layer can be resolved again over other layers.
// docs/decisions/0005-implicit-directories.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"

namespace esker::erofs {

// Whether an image has marked directories, from its first block (4096 bytes) alone. Untrusted.
bool HasImplicitDirectories(std::span<const uint8_t> first_block);

// Works out what the marked directories of an image's layers look like in the merged view. Give it
// every layer that has any (Want), then all layers, lowest first (Resolve). Images are untrusted;
// DATA_LOSS says what is wrong. Memory: one node for each directory asked for and its parents.
// Not thread-safe.
class ImplicitDirectories {
 public:
  ImplicitDirectories();
  ~ImplicitDirectories();

  // RESOURCE_EXHAUSTED: more than a million such directories in one image.
  Status Want(std::span<const uint8_t> image);
  // The image with the right attributes; nothing if it has them already.
  Result<std::optional<std::string>> Resolve(std::span<const uint8_t> image);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace esker::erofs
