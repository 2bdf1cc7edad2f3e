// BtrfsStoreTest: a store whose pool is btrfs on a loop device; fails if anything of it is left.
// Needs root, btrfs and loop devices.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/temp_dir.h"
#include "executor/upper_store.h"
#include "pool.h"

namespace esker {

using Names = std::vector<std::string>;
inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kPoolBytes = 512 * kMiB;

inline size_t CountLines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

inline size_t CountMounts() { return CountLines(*ReadFileToString("/proc/self/mountinfo")); }

inline size_t CountFds() { return ListDirectory("/proc/self/fd")->size(); }

// Loop devices whose backing file lies below `directory`.
inline size_t CountLoops(const std::string& directory) {
  size_t count = 0;
  const Names devices = ListDirectory("/sys/block").value();
  for (const std::string& name : devices) {
    auto backing = ReadFileToString("/sys/block/" + name + "/loop/backing_file");
    if (backing.ok() && backing->starts_with(directory + "/")) ++count;
  }
  return count;
}

class BtrfsStoreTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    support_ = CheckPoolSupport();
    if (!support_.ok()) return;
    // A mount table of our own, so that a failing test leaves nothing in the host's.
    ASSERT_EQ(unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  }

  void SetUp() override {
    if (!support_.ok()) GTEST_SKIP() << support_.ToString();
    mounts_before_ = CountMounts();
    fds_before_ = CountFds();
    auto temp = TempDir::Create();
    ASSERT_TRUE(temp.ok());
    temp_ = std::make_unique<TempDir>(std::move(temp).value());
    home_ = temp_->path() + "/uppers";
    Reopen();
  }

  void TearDown() override {
    if (!temp_) return;
    store_.reset();
    Status destroyed = UpperStore::Destroy(home_);
    EXPECT_TRUE(destroyed.ok()) << destroyed.ToString();
    EXPECT_EQ(CountLoops(temp_->path()), 0u);
    EXPECT_TRUE(temp_->Remove().ok());
    EXPECT_EQ(CountMounts(), mounts_before_);
    EXPECT_EQ(CountFds(), fds_before_);
  }

  void Reopen(uint64_t bytes = kPoolBytes) {
    store_.reset();
    auto store = UpperStore::Open({.directory = home_, .pool_bytes = bytes});
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(store).value();
    ASSERT_TRUE(store_->enforces_limit());
  }

  std::string Volume(const std::string& id) const { return home_ + "/pool/" + id; }
  static Status Write(const std::string& path, std::string_view data) {
    auto fd = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    return fd.ok() ? WriteFull(fd->get(), data.data(), data.size()) : fd.status();
  }
  static std::string Read(const std::string& path) {
    auto data = ReadFileToString(path);
    return data.ok() ? *data : data.status().ToString();
  }
  // An error as text, "" for none.
  static std::string Fill(const std::string& path, uint64_t bytes) {
    auto fd = OpenFile(path, O_WRONLY | O_CREAT, 0644);
    if (!fd.ok()) return fd.status().ToString();
    std::string block(kMiB, 'x');
    for (uint64_t done = 0; done < bytes; done += block.size()) {
      Status status = WriteFull(fd->get(), block.data(), block.size());
      if (!status.ok()) return strerror(status.error_number());
    }
    return "";
  }

  static inline Status support_;
  size_t mounts_before_ = 0, fds_before_ = 0;
  std::unique_ptr<TempDir> temp_;
  std::string home_;
  std::unique_ptr<UpperStore> store_;
};

}  // namespace esker
