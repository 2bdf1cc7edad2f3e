// The rules that tell the fault file system (fault_fs.cc) what to do wrong.
//
// A text file, one rule a line, read again whenever it was replaced:
//
//   OPERATION  PATTERN  FAULT [FAULT...] [p=PROBABILITY]
//
// OPERATION: read, write, open, lookup, list, create, link, unlink, sync, names; `modify` is all
// that change something, `any` is every one. PATTERN: fnmatch(3) on the path below the root,
// where `*` matches `/` too. FAULT:
//
//   delay=MS    waits before the operation; for `names`: how long a name that somebody else made
//               stays invisible here
//   hang        waits until the rules change
//   errno=NAME  EIO, ENOENT, ENOSPC, EROFS, ESTALE, EDQUOT, EACCES or a number
//   short       half of what was asked for, at least a byte
//   cut         read: as if the file ended in its middle; write: claims all, keeps half
//   flip        one bit of the data is wrong
//
// All rules that match apply, in their order; the first errno ends the operation.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace esker::testing {

enum class FaultOperation {
  kRead,
  kWrite,
  kOpen,
  kLookup,
  kList,
  kCreate,
  kLink,
  kUnlink,
  kSync,
  kNames
};

// What applies to one operation.
struct Faults {
  int delay_ms = 0;
  bool hang = false;
  int error = 0;
  bool make_short = false;
  bool cut = false;
  bool flip = false;
};

struct FaultRule {
  std::vector<FaultOperation> operations;
  std::string pattern;
  Faults faults;
  double probability = 1;
};

// INVALID_ARGUMENT names the line.
Result<std::vector<FaultRule>> ParseFaultRules(std::string_view text);

// The rules in a file. Thread-safe. A missing file has no rules; one that cannot be parsed fails
// every operation with ENOTRECOVERABLE, so that a test with a slip in it cannot pass.
class FaultRules {
 public:
  explicit FaultRules(std::string path) : path_(std::move(path)) {}
  Faults For(FaultOperation operation, std::string_view path);

 private:
  void Reload();  // mutex_ held

  const std::string path_;
  std::mutex mutex_;  // guards what follows
  std::vector<FaultRule> rules_;
  std::pair<uint64_t, int64_t> version_{0, 0};  // inode, change time
};

}  // namespace esker::testing
