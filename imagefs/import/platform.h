// Which image of a multi-platform index runs where. Private to import.
// https://github.com/opencontainers/image-spec/blob/main/image-index.md
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace esker::import_internal {

struct Platform {
  std::string os, architecture, variant;  // variant "" where it is the architecture's usual one
  std::string ToString() const;
  // Nothing is known of it.
  bool empty() const { return os.empty() && architecture.empty(); }
};

// "os/architecture[/variant]"; INVALID_ARGUMENT otherwise.
Result<Platform> ParsePlatform(std::string_view text);
// Usual variants become "" (amd64/v1, arm64/v8), other spellings one (x86_64, aarch64).
Platform Normalise(Platform platform);

// How well an image for `offered` runs where `wanted` is asked for: 0 not at all, higher is better.
// Both normalised. An older variant of 32-bit ARM runs on a newer one; a wanted platform without a
// variant takes any, but for amd64, where v2 and v3 need newer processors.
int PlatformRank(const Platform& wanted, const Platform& offered);

}  // namespace esker::import_internal
