// A real keeper in a temporary data directory, and containers with the test's own PID 1.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/temp_dir.h"
#include "executor/cgroup.h"
#include "executor/keeper_client.h"

namespace esker::keeper {

class KeeperFixture : public testing::Test {
 protected:
  // A container and the test's connection to its PID 1.
  struct Box {
    ContainerHandle handle;
    UniqueFd talk;
  };

  void SetUp() override;
  // Ends everything and fails if a process, mount, cgroup or descriptor is left.
  void TearDown() override;

  // What runs as PID 1.
  virtual std::string InitProgram() const { return ESKER_TEST_INIT; }
  // More for the layer's tree, which lies at `root` before it is packed.
  virtual void AddFilesToImage(const std::string& root) { (void)root; }
  std::string SocketPath(const std::string& id) const { return temp_->path() + "/sockets/" + id; }
  ContainerSpec Spec(const std::string& id, uint32_t range = 0);
  // A directory with upper/ and work/.
  UniqueFd NewVolume(const std::string& name);
  Result<Box> Create(const ContainerSpec& spec, int volume_fd = -1);
  // What PID 1 answers to one line (testing/test_init.c).
  std::string Ask(Box& box, const std::string& line);
  void Kill(Box& box);
  // Waits until the keeper says that it ended.
  int AwaitEnd(const std::string& id);

  KeeperOptions options_;
  std::unique_ptr<TempDir> temp_;
  std::unique_ptr<CgroupRoot> cgroups_;
  std::unique_ptr<KeeperClient> client_;
  KeeperLayer layer_;

 private:
  void MakeLayer();
  size_t fds_before_ = 0;
};

}  // namespace esker::keeper
