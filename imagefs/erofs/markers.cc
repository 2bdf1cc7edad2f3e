#include "markers.h"

namespace esker::erofs {

void MarkerIndex::Add(const PathParts& path, MarkerBits bits) {
  Id at = kRoot;
  for (std::string_view name : path) {
    auto& children = places_[at].children;
    auto it = children.lower_bound(name);
    if (it == children.end() || it->first != name) {
      it = children.emplace_hint(it, name, static_cast<Id>(places_.size()));
      places_.emplace_back();
    }
    at = it->second;
  }
  places_[at].bits |= bits;
}

MarkerIndex::Id MarkerIndex::Child(Id parent, std::string_view name) const {
  if (parent == kNone) return kNone;
  auto it = places_[parent].children.find(name);
  return it == places_[parent].children.end() ? kNone : it->second;
}

Status MarkerIndex::ForEachBelow(
    Id id, PathParts path,
    const std::function<Status(const PathParts&, uint8_t bits)>& visit) const {
  if (id == kNone) return OkStatus();
  struct Level {
    Id id;
    std::map<std::string, Id, std::less<>>::const_iterator next;
  };
  std::vector<Level> levels = {{id, places_[id].children.begin()}};
  while (!levels.empty()) {
    Level& level = levels.back();
    if (level.next == places_[level.id].children.end()) {
      levels.pop_back();
      if (!levels.empty()) path.pop_back();
      continue;
    }
    const Id child = level.next->second;
    path.push_back(level.next->first);
    ++level.next;
    ESKER_RETURN_IF_ERROR(visit(path, places_[child].bits));
    levels.push_back({child, places_[child].children.begin()});
  }
  return OkStatus();
}

}  // namespace esker::erofs
