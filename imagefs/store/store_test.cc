#include "imagefs/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/failpoint.h"
#include "testing/store_fixture.h"

namespace esker {
namespace {

using testing::StoreTest;

PackId IdOf(std::string_view content) { return PackId{Sha256::Of(content)}; }

Status Publish(Store& store, std::string_view content, const PackId& id) {
  ESKER_ASSIGN_OR_RETURN(Store::Temporary temporary, store.NewTemporary());
  ESKER_RETURN_IF_ERROR(WriteFull(temporary.fd.get(), content.data(), content.size()));
  return store.PublishPack(std::move(temporary), id);
}

std::string ReadPack(const Store& store, const PackId& id) {
  Result<UniqueFd> fd = store.OpenPack(id);
  if (!fd.ok()) return fd.status().ToString();
  std::string content(1000, '\0');
  content.resize(*ReadFull(fd->get(), content.data(), content.size()));
  return content;
}

TEST_F(StoreTest, InitialiseIsIdempotentAndOpensOnlyStores) {
  ESKER_EXPECT_CODE(Store::Initialise(path()), Code::kOk);
  ESKER_EXPECT_CODE(Store::Open(dir_->path()).status(), Code::kFailedPrecondition);
  Status missing = Store::Open(dir_->path() + "/nothing").status();
  ESKER_EXPECT_CODE(missing, Code::kFailedPrecondition);
  EXPECT_NE(missing.message().find("/nothing"), std::string::npos);
  std::string other = dir_->path() + "/other";
  std::filesystem::create_directory(other);
  std::ofstream(other + "/precious") << "data";
  ESKER_EXPECT_CODE(Store::Initialise(other), Code::kFailedPrecondition);
}

TEST_F(StoreTest, AnotherVersionIsRefusedByName) {
  std::ofstream(path() + "/format") << "esker-store 2\n";
  Status status = Store::Open(path()).status();
  ESKER_EXPECT_CODE(status, Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("esker-store 2"), std::string::npos) << status.message();
  ESKER_EXPECT_CODE(Store::Initialise(path()), Code::kFailedPrecondition);
}

TEST_F(StoreTest, AHalfMadeStoreIsFinished) {
  std::string half = dir_->path() + "/half";
  ESKER_ASSERT_OK(ArmFailPoints("store.initialise.before_format=error:5"));
  EXPECT_FALSE(Store::Initialise(half).ok());
  ESKER_ASSERT_OK(ArmFailPoints(""));
  ESKER_ASSERT_OK(Store::Initialise(half));
  ESKER_EXPECT_CODE(Store::Open(half).status(), Code::kOk);
}

TEST_F(StoreTest, PublishesListsAndRemoves) {
  PackId id = IdOf("one");
  ESKER_EXPECT_CODE(store_->OpenPack(id).status(), Code::kNotFound);
  ESKER_ASSERT_OK(Publish(*store_, "one", id));
  ESKER_ASSERT_OK(Publish(*store_, "one", id));  // the same again is the same
  EXPECT_EQ(ReadPack(*store_, id), "one");
  ASSERT_EQ(store_->ListPacks()->size(), 1u);
  ESKER_ASSERT_OK(store_->RemovePack(id));
  ESKER_ASSERT_OK(store_->RemovePack(id));
  EXPECT_TRUE(store_->ListPacks()->empty());
}

TEST_F(StoreTest, ADamagedPackInPlaceIsNotSuccess) {
  ESKER_ASSERT_OK(Publish(*store_, "one", IdOf("two")));
  ESKER_EXPECT_CODE(Publish(*store_, "two", IdOf("two")), Code::kDataLoss);
}

TEST_F(StoreTest, ManyThreadsPublishTheSamePackAtOnce) {
  const std::string content(100'000, 'x');
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        if (Publish(*store_, content + std::to_string(round), IdOf(std::to_string(round))).ok()) {
          ++good;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 160);
  EXPECT_EQ(store_->ListPacks()->size(), 20u);
}

TEST_F(StoreTest, HostileNamesAreIgnoredOrRefused) {
  PackId id = IdOf("one");
  ESKER_ASSERT_OK(Publish(*store_, "one", id));
  const std::string packs = path() + "/packs";
  std::ofstream(packs + "/" + id.ToHex().substr(0, 2) + "/README") << "x";
  std::ofstream(packs + "/stray") << "x";
  std::filesystem::create_directory(packs + "/zz");
  std::ofstream(packs + "/zz/" + id.ToHex() + ".pack") << "x";
  EXPECT_EQ(store_->ListPacks()->size(), 1u);
  // A link or a fifo in the place of a pack is neither followed nor waited for.
  PackId link = IdOf("link"), fifo = IdOf("fifo");
  for (const PackId& bad : {link, fifo}) {
    std::filesystem::create_directories(packs + "/" + bad.ToHex().substr(0, 2));
  }
  auto place = [&](const PackId& p) {
    return packs + "/" + p.ToHex().substr(0, 2) + "/" + p.ToHex() + ".pack";
  };
  std::filesystem::create_symlink("/etc/passwd", place(link));
  ASSERT_EQ(::mkfifo(place(fifo).c_str(), 0600), 0);
  EXPECT_FALSE(store_->OpenPack(link).ok());
  ESKER_EXPECT_CODE(store_->OpenPack(fifo).status(), Code::kDataLoss);
}

TEST_F(StoreTest, ErrorsAreTypedNameTheStoreAndLeaveNothing) {
  for (const char* step : {"before_fsync", "before_link"}) {
    ESKER_ASSERT_OK(ArmFailPoints("store.publish." + std::string(step) + "=error:28"));
    Status full = Publish(*store_, "one", IdOf("one"));
    ESKER_EXPECT_CODE(full, Code::kResourceExhausted);
    EXPECT_EQ(full.error_number(), ENOSPC);
    EXPECT_TRUE(store_->ListPacks()->empty());
  }
  ESKER_ASSERT_OK(ArmFailPoints("store.publish.after_link=error:30"));
  Status read_only = Publish(*store_, "one", IdOf("one"));
  ESKER_EXPECT_CODE(read_only, Code::kFailedPrecondition);
  EXPECT_NE(read_only.message().find(path()), std::string::npos) << read_only.message();
  ESKER_ASSERT_OK(ArmFailPoints(""));
}

TEST_F(StoreTest, AKillAtEachStepLosesNothingAcknowledgedAndBlocksNobody) {
  expect_temporaries_ = true;
  const char* kSteps[] = {"store.publish.before_fsync",     "store.publish.before_link",
                          "store.publish.after_link",       "store.publish.after_dir_fsync",
                          "store.publish.before_unlink",    "store.record.before_link",
                          "store.record.after_link",        "store.record.after_dir_fsync",
                          "store.record.after_parent_fsync"};
  uint64_t number = 0;
  for (const char* step : kSteps) {
    const std::string content = step;
    ++number;
    pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool good = ArmFailPoints(content + "=kill").ok() &&
                  Publish(*store_, content, IdOf(content)).ok() &&
                  store_->PublishRecord("tags", "t", number, content).ok();
      ::_exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << step;
    // Whatever was visible is whole, and doing it again succeeds.
    if (store_->OpenPack(IdOf(content)).ok()) {
      EXPECT_EQ(ReadPack(*store_, IdOf(content)), content);
    }
    ESKER_ASSERT_OK(Publish(*store_, content, IdOf(content)));
    Status record = store_->PublishRecord("tags", "t", number, content);
    EXPECT_TRUE(record.ok() || record.code() == Code::kAlreadyExists) << record.ToString();
    EXPECT_EQ(store_->LatestRecord("tags", "t")->content, content);
  }
  ESKER_ASSERT_OK(store_->SweepTemporaries(3600));
  EXPECT_FALSE(ListDirectory(path() + "/tmp")->empty()) << "young temporaries must stay";
  ESKER_ASSERT_OK(store_->SweepTemporaries(0));
  EXPECT_TRUE(ListDirectory(path() + "/tmp")->empty());
}

TEST_F(StoreTest, RecordsAreNumberedAndTheLatestWins) {
  ESKER_EXPECT_CODE(store_->LatestRecord("tags", "a").status(), Code::kNotFound);
  const std::string name = "docker.io/library/a-b_c:1@x";
  for (uint64_t n : {1, 2, 10, 9}) {
    ESKER_ASSERT_OK(store_->PublishRecord("tags", name, n, "v" + std::to_string(n)));
  }
  ESKER_EXPECT_CODE(store_->PublishRecord("tags", name, 9, "late"), Code::kAlreadyExists);
  Result<Store::Record> latest = Reopen()->LatestRecord("tags", name);
  ASSERT_TRUE(latest.ok());
  EXPECT_EQ(latest->number, 10u);
  EXPECT_EQ(latest->content, "v10");
  ESKER_ASSERT_OK(store_->PublishRecord("tags", ".hidden", 1, std::string("\0\xff", 2)));
  EXPECT_EQ(*store_->ListRecordNames("tags"), (std::vector<std::string>{".hidden", name}));
  EXPECT_TRUE(store_->ListRecordNames("none")->empty());
  ESKER_ASSERT_OK(store_->RemoveRecords("tags", name));
  ESKER_ASSERT_OK(store_->RemoveRecords("tags", name));
  ESKER_EXPECT_CODE(store_->LatestRecord("tags", name).status(), Code::kNotFound);
  EXPECT_EQ(store_->ListRecordNames("tags")->size(), 1u);
}

TEST_F(StoreTest, BadRecordNamesAreRefused) {
  for (const char* name : {"", "a b", "a%2Fb", "\xff", "a\nb"}) {
    ESKER_EXPECT_CODE(store_->PublishRecord("tags", name, 1, ""), Code::kInvalidArgument);
  }
  ESKER_EXPECT_CODE(store_->PublishRecord("tags", std::string(256, 'a'), 1, ""),
                    Code::kInvalidArgument);
  ESKER_EXPECT_CODE(store_->PublishRecord("../x", "a", 1, ""), Code::kInvalidArgument);
  ESKER_ASSERT_OK(store_->PublishRecord("tags", "../../etc", 1, ""));  // a name, not a path
  EXPECT_EQ(ListDirectory(path() + "/records/tags")->size(), 1u);
}

TEST_F(StoreTest, ADamagedRecordIsDataLossAtEveryByte) {
  ESKER_ASSERT_OK(store_->PublishRecord("tags", "a", 1, "content"));
  const std::string file = path() + "/records/tags/a/1";
  const std::string good = *ReadFileToString(file);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x20);
    std::ofstream(file, std::ios::binary) << bad;
    ESKER_EXPECT_CODE(store_->LatestRecord("tags", "a").status(), Code::kDataLoss);
    std::ofstream(file, std::ios::binary) << good.substr(0, i);
    ESKER_EXPECT_CODE(store_->LatestRecord("tags", "a").status(), Code::kDataLoss);
  }
  // A true record under another's name is not its.
  std::filesystem::create_directory(path() + "/records/tags/b");
  std::ofstream(path() + "/records/tags/b/1", std::ios::binary) << good;
  ESKER_EXPECT_CODE(store_->LatestRecord("tags", "b").status(), Code::kDataLoss);
}

TEST_F(StoreTest, OneWriterWinsEachRecordNumber) {
  std::atomic<int> won = 0, lost = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t n = 1; n <= 20; ++n) {
        Status status = store_->PublishRecord("tags", "race", n, std::to_string(i));
        if (status.ok()) ++won;
        if (status.code() == Code::kAlreadyExists) ++lost;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(won, 20);
  EXPECT_EQ(lost, 100);
}

TEST_F(StoreTest, PublishingWhileTheNameIsRemovedSucceeds) {
  std::atomic<bool> stop = false;
  std::thread remover([&] {
    while (!stop) EXPECT_TRUE(store_->RemoveRecords("tags", "x").ok());
  });
  for (uint64_t n = 1; n <= 100; ++n) {
    Status status = store_->PublishRecord("tags", "x", n, "y");
    EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound) << status.ToString();
  }
  stop = true;
  remover.join();
}

TEST_F(StoreTest, AHigherEpochTakesTheStore) {
  Result<uint64_t> first = store_->ClaimOwnership("host-a");
  ASSERT_TRUE(first.ok());
  ESKER_EXPECT_CODE(store_->CheckOwnership(*first), Code::kOk);
  std::unique_ptr<Store> other = Reopen();
  Result<uint64_t> second = other->ClaimOwnership("host-b");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(*second, *first + 1);
  ESKER_EXPECT_CODE(other->CheckOwnership(*second), Code::kOk);
  Status lost = store_->CheckOwnership(*first);
  ESKER_EXPECT_CODE(lost, Code::kFailedPrecondition);
  EXPECT_NE(lost.message().find("host-b"), std::string::npos) << lost.message();
}

TEST_F(StoreTest, EpochsAreNeverClaimedTwice) {
  std::vector<std::vector<uint64_t>> claimed(4);
  std::vector<std::thread> threads;
  for (auto& mine : claimed) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) mine.push_back(*store_->ClaimOwnership("t"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> all;
  for (const auto& mine : claimed) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i + 1);
}

}  // namespace
}  // namespace esker
