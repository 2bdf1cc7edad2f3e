#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/temp_dir.h"
#include "executor/upper_store.h"

namespace esker {
namespace {

using Names = std::vector<std::string>;

class PlainStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto temp = TempDir::Create();
    ASSERT_TRUE(temp.ok()) << temp.status().ToString();
    temp_ = std::make_unique<TempDir>(std::move(temp).value());
    Reopen();
  }

  void Reopen() {
    store_.reset();
    auto store = UpperStore::Open({.directory = Home(), .kind = UpperKind::kPlain});
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(store).value();
  }

  std::string Home() const { return temp_->path() + "/uppers"; }
  std::string Volume(const std::string& id) const { return Home() + "/plain/" + id; }
  static void Write(const std::string& path, const std::string& data) {
    auto fd = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ASSERT_TRUE(fd.ok()) << fd.status().ToString();
    ASSERT_TRUE(WriteFull(fd->get(), data.data(), data.size()).ok());
  }
  static std::string Read(const std::string& path) {
    auto data = ReadFileToString(path);
    return data.ok() ? *data : data.status().ToString();
  }
  Names List() {
    auto names = store_->List();
    EXPECT_TRUE(names.ok());
    return *names;
  }

  std::unique_ptr<TempDir> temp_;
  std::unique_ptr<UpperStore> store_;
};

TEST_F(PlainStoreTest, SaysThatItHasNoLimit) {
  EXPECT_FALSE(store_->enforces_limit());
  EXPECT_EQ(store_->kind(), "plain: asked for");
  EXPECT_EQ(store_->Create("a", 1 << 20).status().code(), Code::kUnimplemented);
  EXPECT_EQ(List(), Names{});
  ASSERT_TRUE(store_->Create("a", 0).ok());
  EXPECT_EQ(store_->SetLimit("a", 1 << 20).code(), Code::kUnimplemented);
  EXPECT_TRUE(store_->SetLimit("a", 0).ok());
  EXPECT_EQ(store_->GetUsage("a").status().code(), Code::kUnimplemented);
}

TEST_F(PlainStoreTest, VolumeHasUpperAndWorkWhateverTheUmask) {
  mode_t old = umask(077);
  auto volume = store_->Create("sb-1", 0);
  umask(old);
  ASSERT_TRUE(volume.ok()) << volume.status().ToString();
  for (const char* name : {"upper", "work"}) {
    struct stat st = {};
    ASSERT_EQ(fstatat(volume->get(), name, &st, AT_SYMLINK_NOFOLLOW), 0);
    EXPECT_EQ(st.st_mode, S_IFDIR | 0755u);
    EXPECT_EQ(st.st_uid, geteuid());
  }
}

TEST_F(PlainStoreTest, CreateTwiceIsRefusedUnlessAdopted) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  Write(Volume("a") + "/upper/f", "kept");
  EXPECT_EQ(store_->Create("a", 0).status().code(), Code::kAlreadyExists);
  ASSERT_TRUE(store_->Create("a", 0, /*adopt=*/true).ok());
  EXPECT_EQ(Read(Volume("a") + "/upper/f"), "kept");
  ASSERT_TRUE(store_->Create("b", 0, /*adopt=*/true).ok());
  EXPECT_EQ(List(), (Names{"a", "b"}));
}

TEST_F(PlainStoreTest, DeleteIsIdempotentAndMissingOnesAreNamed) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  EXPECT_TRUE(store_->Delete("a").ok());
  EXPECT_TRUE(store_->Delete("a").ok());
  EXPECT_EQ(List(), Names{});
  Status missing = store_->OpenVolume("a").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_NE(missing.message().find("volume a"), std::string::npos) << missing.message();
  EXPECT_EQ(store_->Clone("a", "b", 0).status().code(), Code::kNotFound);
  EXPECT_EQ(store_->Snapshot("a", "b").status().code(), Code::kNotFound);
}

TEST_F(PlainStoreTest, IdsCannotLeaveTheStore) {
  for (const char* id : {"", ".", "..", "../x", "a/b", "/etc", ".new-a"}) {
    EXPECT_EQ(store_->Create(id, 0).status().code(), Code::kInvalidArgument) << id;
    EXPECT_EQ(store_->OpenVolume(id).status().code(), Code::kInvalidArgument) << id;
    EXPECT_EQ(store_->Delete(id).code(), Code::kInvalidArgument) << id;
  }
}

TEST_F(PlainStoreTest, SnapshotKeepsWhatFilesAre) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  std::string upper = Volume("a") + "/upper";
  Write(upper + "/f", "data");
  ASSERT_EQ(setxattr((upper + "/f").c_str(), "user.k", "v", 1, 0), 0);
  ASSERT_EQ(mkdir((upper + "/d").c_str(), 0711), 0);
  ASSERT_EQ(link((upper + "/f").c_str(), (upper + "/d/hard").c_str()), 0);
  ASSERT_EQ(symlink("/nowhere", (upper + "/soft").c_str()), 0);
  ASSERT_EQ(mkfifo((upper + "/fifo").c_str(), 0600), 0);
  timespec times[2] = {{1, 2}, {-3, 456}};
  ASSERT_EQ(utimensat(AT_FDCWD, (upper + "/d").c_str(), times, 0), 0);
  constexpr off_t kHole = 64 << 20;
  ASSERT_EQ(truncate((upper + "/f").c_str(), kHole), 0);
  ASSERT_EQ(chmod((upper + "/f").c_str(), 04751), 0);  // last: writing clears the set-id bit

  auto snapshot = store_->Snapshot("a", "s");
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
  struct stat f = {}, hard = {}, st = {};
  ASSERT_EQ(fstatat(snapshot->get(), "upper/f", &f, 0), 0);
  ASSERT_EQ(fstatat(snapshot->get(), "upper/d/hard", &hard, 0), 0);
  EXPECT_EQ(f.st_ino, hard.st_ino);
  EXPECT_EQ(f.st_nlink, 2u);
  EXPECT_EQ(f.st_mode, S_IFREG | 04751u);
  EXPECT_EQ(f.st_size, kHole);
  EXPECT_LT(f.st_blocks, 1000);
  ASSERT_EQ(fstatat(snapshot->get(), "upper/d", &st, 0), 0);
  EXPECT_EQ(st.st_mode, S_IFDIR | 0711u);
  EXPECT_EQ(st.st_mtim.tv_sec, -3);
  EXPECT_EQ(st.st_mtim.tv_nsec, 456);
  ASSERT_EQ(fstatat(snapshot->get(), "upper/fifo", &st, 0), 0);
  EXPECT_TRUE(S_ISFIFO(st.st_mode));
  char target[32] = {};
  EXPECT_EQ(readlinkat(snapshot->get(), "upper/soft", target, sizeof(target)), 8);
  EXPECT_STREQ(target, "/nowhere");
  char value[8] = {};
  EXPECT_EQ(getxattr((Volume("s") + "/upper/f").c_str(), "user.k", value, sizeof(value)), 1);
  EXPECT_EQ(Read(Volume("s") + "/upper/f").substr(0, 5), std::string("data\0", 5));
}

TEST_F(PlainStoreTest, CloneIsIsolatedAndStartsWithEmptyWork) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  Write(Volume("a") + "/upper/f", "old");
  ASSERT_EQ(mkdir((Volume("a") + "/work/incompat").c_str(), 0700), 0);
  ASSERT_TRUE(store_->Clone("a", "b", 0).ok());
  Write(Volume("b") + "/upper/f", "new");
  EXPECT_EQ(Read(Volume("a") + "/upper/f"), "old");
  EXPECT_EQ(*ListDirectory(Volume("b") + "/work"), Names{});
  EXPECT_EQ(store_->Clone("a", "b", 0).status().code(), Code::kAlreadyExists);
}

TEST_F(PlainStoreTest, TooDeepATreeIsATypedErrorAndLeavesNothing) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  auto at = OpenFile(Volume("a") + "/upper", O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < 600; ++i) {
    ASSERT_EQ(mkdirat(at->get(), "d", 0700), 0);
    at = OpenFileAt(at->get(), "d", O_RDONLY | O_DIRECTORY);
    ASSERT_TRUE(at.ok());
  }
  EXPECT_EQ(store_->Snapshot("a", "s").status().code(), Code::kResourceExhausted);
  EXPECT_EQ(*ListDirectory(Home() + "/plain"), Names{"a"});
}

TEST_F(PlainStoreTest, SpaceIsThatOfTheHost) {
  auto space = store_->Space();
  ASSERT_TRUE(space.ok());
  EXPECT_GT(space->total, 0u);
  EXPECT_LE(space->available, space->total);
}

TEST_F(PlainStoreTest, OneOpenerAtATime) {
  auto second = UpperStore::Open({.directory = Home(), .kind = UpperKind::kPlain});
  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(UpperStore::Destroy(Home()).code(), Code::kFailedPrecondition);
}

TEST_F(PlainStoreTest, ReopenKeepsVolumesAndRemovesHalfMadeOnes) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  ASSERT_EQ(mkdir((Home() + "/plain/.new-b").c_str(), 0700), 0);
  ASSERT_EQ(mkdir((Home() + "/plain/.gone-c").c_str(), 0700), 0);
  Reopen();
  EXPECT_EQ(*ListDirectory(Home() + "/plain"), Names{"a"});
}

TEST_F(PlainStoreTest, KindStaysWhatItWas) {
  store_.reset();
  auto btrfs = UpperStore::Open({.directory = Home(), .kind = UpperKind::kBtrfs});
  EXPECT_EQ(btrfs.status().code(), Code::kFailedPrecondition) << btrfs.status().ToString();
  auto automatic = UpperStore::Open({.directory = Home()});
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ((*automatic)->kind(), "plain: it was made so");
}

TEST_F(PlainStoreTest, ClosedStoreRefusesAndDestroyLeavesNothing) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  ASSERT_TRUE(store_->Close().ok());
  EXPECT_EQ(store_->Create("b", 0).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(store_->List().status().code(), Code::kFailedPrecondition);
  store_.reset();
  EXPECT_TRUE(UpperStore::Destroy(Home()).ok());
  EXPECT_FALSE(PathExists(Home()));
  EXPECT_TRUE(UpperStore::Destroy(Home()).ok());
}

TEST(UpperStoreTest, DirectoryMustBeAbsolute) {
  EXPECT_EQ(UpperStore::Open({.directory = "uppers"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(UpperStore::Open({}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace esker
