// Random trees and tree comparison for tests.
#pragma once

#include <cstdint>
#include <string>

#include "imagefs/erofs.h"

namespace esker::erofs {

struct RandomTreeOptions {
  int operations = 200;
  bool holes = true;
  bool wide_times = true;  // also before 1901 and after 2038
  uint64_t device_blocks = 256;
};
// The same seed gives the same tree. Names, times, owners, extents and attributes are drawn from
// ranges that include the awkward ends.
Tree RandomTree(uint32_t seed, const RandomTreeOptions& options);

// Empty when both trees have the same names, nodes and hard links; else what differs first.
std::string FirstDifference(const Tree& a, const Tree& b);

}  // namespace esker::erofs
