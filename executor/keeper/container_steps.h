// The steps of building a container, and how the child reports one that failed.
#pragma once

#include <cstdint>
#include <string>

namespace esker::keeper {

enum class Step : uint32_t {
  kNone,
  kJoinCgroup,
  kOomScore,
  kOpenFilter,
  kNetwork,
  kCloneLayer,
  kMapLayer,
  kMapUpper,
  kEnterTemplate,
  kUnshare,
  kUpperTmpfs,
  kOpenUpper,
  kCapabilities,
  kOverlay,
  kProveWritable,
  kEnterRoot,
  kMountPoint,
  kProc,
  kMaskProc,
  kDev,
  kPts,
  kShm,
  kMqueue,
  kSys,
  kHostname,
  kNofile,
  kDescriptors,
  kUserNamespace,
  kUser,
  kParentDeath,
  kExec,  // written just before execve; what ends after it without an error is init
  kCount,
};

// "mount overlay" and so on: what was being done.
const char* StepName(Step step);

// One record on the report pipe (written at once, smaller than PIPE_BUF). The pipe closing after
// {kExec, 0} means that init runs.
struct Report {
  Step step = Step::kNone;
  int32_t error = 0;      // errno; 0 only in the record before execve
  char detail[248] = {};  // what or why, "" if there is nothing to add; zero-terminated
};

}  // namespace esker::keeper
