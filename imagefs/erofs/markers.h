// The whiteouts and opaque markers of a layer, by path.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace esker::erofs {

// A path's components, without empty ones, "." and "..".
using PathParts = std::vector<std::string_view>;

enum MarkerBits : uint8_t { kMarkedHidden = 1, kMarkedOpaque = 2 };

// Markers act on lower layers in whatever order entries come, so they are remembered, also while
// the layer has no directory for them. A trie: a walk along a path costs as much as the path is
// long, however many markers there are.
class MarkerIndex {
 public:
  using Id = uint32_t;
  static constexpr Id kRoot = 0;
  static constexpr Id kNone = UINT32_MAX;

  MarkerIndex() : places_(1) {}

  void Add(const PathParts& path, MarkerBits bits);
  // One step down a path; kNone where no marker is there or below, and from kNone.
  Id Child(Id parent, std::string_view name) const;
  // MarkerBits, 0 for kNone.
  uint8_t At(Id id) const { return id == kNone ? 0 : places_[id].bits; }
  // Every marker below `id` (whose path is `path`), but not at it; what lies above comes first.
  // Stops at the first failure. `visit` must not add markers.
  Status ForEachBelow(Id id, PathParts path,
                      const std::function<Status(const PathParts&, uint8_t bits)>& visit) const;

 private:
  struct Place {
    uint8_t bits = 0;
    std::map<std::string, Id, std::less<>> children;
  };
  std::deque<Place> places_;  // ids are positions
};

}  // namespace esker::erofs
