// FaultFsMount: the fault file system (fault_fs.cc) over a directory, for tests. Needs root and
// /dev/fuse.
#pragma once

#include <memory>
#include <string>

#include "base/process.h"
#include "base/status.h"

namespace esker::testing {

class FaultFsMount {
 public:
  // Shows `backing` at `mountpoint` (made if missing). `rules_file` is written by SetRules.
  static Result<std::unique_ptr<FaultFsMount>> Start(const std::string& backing,
                                                     const std::string& mountpoint,
                                                     const std::string& rules_file);
  ~FaultFsMount();
  FaultFsMount(const FaultFsMount&) = delete;
  FaultFsMount& operator=(const FaultFsMount&) = delete;

  const std::string& path() const { return mountpoint_; }
  // In force for every operation that begins after the return; ends all that hang. fault_rules.h.
  Status SetRules(const std::string& rules);
  // Unmounts and waits for the end of the process.
  Status Stop();

 private:
  FaultFsMount() = default;
  std::string mountpoint_, rules_file_;
  Process process_;
};

}  // namespace esker::testing
