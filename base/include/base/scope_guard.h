// ScopeGuard: runs a function at the end of a scope unless dismissed.
#pragma once

#include <utility>

namespace esker {

template <typename F>
class [[nodiscard]] ScopeGuard {
 public:
  explicit ScopeGuard(F f) : f_(std::move(f)) {}
  ScopeGuard(ScopeGuard&& other) noexcept
      : f_(std::move(other.f_)), armed_(std::exchange(other.armed_, false)) {}
  ~ScopeGuard() {
    if (armed_) f_();
  }
  void Dismiss() { armed_ = false; }

 private:
  F f_;
  bool armed_ = true;
};

}  // namespace esker
