#include "user_namespaces.h"

#include <string>

#include "base/user_namespace.h"

namespace esker::keeper {
Result<int> UserNamespaces::Get(uint32_t range) {
  if (auto it = entries_.find(range); it != entries_.end()) {
    uses_.splice(uses_.begin(), uses_, it->second.use);
    return it->second.fd.get();
  }
  Result<UniqueFd> fd = MakeUserNamespace(FirstId(range), range_size_);
  if (!fd.ok()) return fd.status().Wrap("range " + std::to_string(range));
  if (entries_.size() >= capacity_) {
    entries_.erase(uses_.back());
    uses_.pop_back();
  }
  uses_.push_front(range);
  int number = fd->get();
  entries_.emplace(range, Entry{std::move(*fd), uses_.begin()});
  return number;
}

}  // namespace esker::keeper
