// LeakCheck: fails a test that leaves anything in the kernel or on disk.
//
// Looks only at what carries the test's mark (its directory, its cgroup names), so that tests may
// run side by side on one machine.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/temp_dir.h"

namespace esker::testing {

class LeakCheck {
 public:
  // Notes this process's open descriptors. `directory`: everything of the test lies below it.
  explicit LeakCheck(std::string directory);

  // Cgroups with this in their path count too.
  void AddCgroup(const std::string& name) { cgroups_.push_back(name); }

  // What is left, one line each: mounts below or from the directory, loop devices on its files,
  // processes that name it, sit in one of the cgroups or run below it, the cgroups, descriptors
  // opened since. Waits for what ends asynchronously.
  std::vector<std::string> Remains(int timeout_ms = 10'000) const;

 private:
  std::vector<std::string> LookOnce() const;
  void LookAtMounts(std::vector<std::string>& out) const;
  void LookAtLoopDevices(std::vector<std::string>& out) const;
  void LookAtProcesses(std::vector<std::string>& out) const;
  void LookAtCgroups(std::vector<std::string>& out) const;
  void LookAtDescriptors(std::vector<std::string>& out) const;

  std::string directory_;
  std::vector<std::string> cgroups_;
  std::set<std::string> descriptors_;
};

// A fixture with a directory of its own that is checked, and removed, at the end. A derived
// TearDown lets go of everything, then calls this one.
class LeakCheckedTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  const std::string& directory() const { return directory_->path(); }
  LeakCheck& leaks() { return *leaks_; }

 private:
  std::unique_ptr<TempDir> directory_;
  std::unique_ptr<LeakCheck> leaks_;
};

}  // namespace esker::testing
