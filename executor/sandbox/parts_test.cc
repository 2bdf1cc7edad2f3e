// The node's parts that need neither root nor a sandbox.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <thread>

#include "base/io.h"
#include "base/socket.h"
#include "base/temp_dir.h"
#include "id_ranges.h"
#include "node_db.h"
#include "output_log.h"
#include "requests.h"
#include "stdin_queue.h"
#include "strand.h"

namespace esker {
namespace {

TEST(IdRangesTest, TheLowestFreeIsTakenAndNoneTwice) {
  IdRanges ranges(3);
  EXPECT_EQ(*ranges.Take(), 0u);
  EXPECT_TRUE(ranges.TakeNumber(1).ok());
  EXPECT_EQ(ranges.TakeNumber(1).code(), Code::kAlreadyExists);
  EXPECT_EQ(ranges.TakeNumber(3).code(), Code::kOutOfRange);
  EXPECT_EQ(*ranges.Take(), 2u);
  EXPECT_EQ(ranges.Take().status().code(), Code::kResourceExhausted);
  ranges.Free(1);
  ranges.Free(0);
  EXPECT_EQ(*ranges.Take(), 0u);
  EXPECT_EQ(*ranges.Take(), 1u);
}

TEST(StrandTest, OneAtATimeInOrderOfArrival) {
  WorkerPool pool(4, SIZE_MAX);
  Strand strand(pool);
  std::atomic<int> inside{0};
  std::vector<int> order;
  std::promise<void> done;
  {
    auto turn = strand.Enter(1000);
    ASSERT_TRUE(turn.ok());
    for (int i = 0; i < 100; ++i) {
      strand.Post([&, i] {
        EXPECT_EQ(++inside, 1);
        order.push_back(i);
        --inside;
        if (i == 99) done.set_value();
      });
    }
    EXPECT_TRUE(order.empty());
  }
  done.get_future().wait();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(StrandTest, ManyThreadsTakeTurns) {
  WorkerPool pool(2, SIZE_MAX);
  Strand strand(pool);
  int counter = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        auto turn = strand.Enter(10'000);
        ASSERT_TRUE(turn.ok());
        ++counter;
        strand.Post([&] { ++counter; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto last = strand.Enter(10'000);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(counter, 16'000);
}

TEST(StrandTest, AWaiterThatGivesUpIsPassedOver) {
  WorkerPool pool(1, SIZE_MAX);
  Strand strand(pool);
  auto turn = std::make_unique<Result<Strand::Turn>>(strand.Enter(1000));
  ASSERT_TRUE(turn->ok());
  EXPECT_EQ(strand.Enter(10).status().code(), Code::kDeadlineExceeded);
  turn.reset();
  EXPECT_TRUE(strand.Enter(1000).ok());
}

TEST(RequestsTest, OneDoesItTheOthersGetTheAnswer) {
  Requests requests;
  Digest asked = Sha256::Of("a");
  auto claim = requests.Begin({"r/x/k", "r/x/l"}, asked, 0);
  ASSERT_TRUE(claim.ok());
  EXPECT_FALSE(claim->answer);
  EXPECT_EQ(requests.Begin({"r/x/k"}, asked, 10).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(requests.Begin({"r/x/l"}, Sha256::Of("b"), 10).status().code(), Code::kAlreadyExists);
  std::thread other([&] {
    auto second = requests.Begin({"r/x/l"}, asked, 10'000);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(second->answer.value_or(""), "sb");
  });
  requests.Answer({"r/x/k", "r/x/l"}, "sb", 100);
  other.join();
  EXPECT_TRUE(requests.Expire(100).empty());
  EXPECT_EQ(requests.Expire(101).size(), 2u);
}

TEST(RequestsTest, AfterAFailureTheNextOneTries) {
  Requests requests;
  Digest asked = Sha256::Of("a");
  ASSERT_TRUE(requests.Begin({"k"}, asked, 0).ok());
  requests.GiveUp({"k"});
  EXPECT_FALSE(requests.Begin({"k"}, asked, 0)->begun_before);
  requests.GiveUp({"k"}, true);
  EXPECT_TRUE(requests.Begin({"k"}, asked, 0)->begun_before);
}

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<TempDir> dir = TempDir::Create();
    ASSERT_TRUE(dir.ok());
    dir_ = std::make_unique<TempDir>(std::move(*dir));
  }
  std::string Path(const std::string& name) { return dir_->path() + "/" + name; }
  std::unique_ptr<TempDir> dir_;
};

TEST_F(FilesTest, DatabaseKeepsAndScansInOrder) {
  {
    auto db = NodeDb::Open(Path("db"));
    ASSERT_TRUE(db.ok()) << db.status().ToString();
    DbBatch batch;
    batch.Put("a/2", "two");
    batch.Put("a/1", "one");
    batch.Put("b/1", "other");
    batch.Put("a/3", "three");
    batch.Delete("a/3");
    ASSERT_TRUE((*db)->Write(batch, NodeDb::Durability::kSynced).ok());
    EXPECT_EQ(NodeDb::Open(Path("db")).status().code(), Code::kFailedPrecondition);
    DbWriter writer(**db);
    std::promise<Status> done;
    writer.Submit([](DbBatch& b) { b.Put("a/4", "four"); },
                  [&](Status status) { done.set_value(status); });
    EXPECT_TRUE(done.get_future().get().ok());
  }
  auto db = NodeDb::Open(Path("db"));
  ASSERT_TRUE(db.ok());
  std::string all;
  EXPECT_TRUE((*db)
                  ->Scan("a/",
                         [&](std::string_view key, std::string_view value) {
                           all.append(key).append("=").append(value).append(" ");
                           return OkStatus();
                         })
                  .ok());
  EXPECT_EQ(all, "a/1=one a/2=two a/4=four ");
  EXPECT_FALSE((*db)->Get("a/3")->has_value());
}

struct Pipe {
  UniqueFd in, out;
  Pipe() {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    out.reset(fds[0]);
    in.reset(fds[1]);
  }
  void Write(const std::string& data) {
    ASSERT_TRUE(WriteFull(in.get(), data.data(), data.size()).ok());
  }
};

std::string Pattern(uint64_t offset, size_t size) {
  std::string text(size, 0);
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + (offset + i) % 23);
  return text;
}

TEST_F(FilesTest, OutputIsMovedAndReadByOffset) {
  auto log = OutputLog::Open(Path("log"), 1 << 20);
  ASSERT_TRUE(log.ok());
  Pipe pipe;
  EXPECT_EQ(*log->MoveFromPipe(pipe.out.get(), 100), OutputLog::Moved::kEmpty);
  pipe.Write("hello");
  EXPECT_EQ(*log->MoveFromPipe(pipe.out.get(), 3), OutputLog::Moved::kSome);
  EXPECT_EQ(log->size(), 3u);
  EXPECT_EQ(*log->MoveFromPipe(pipe.out.get(), 100), OutputLog::Moved::kSome);
  pipe.in.reset();
  EXPECT_EQ(*log->MoveFromPipe(pipe.out.get(), 100), OutputLog::Moved::kEnd);
  EXPECT_EQ(log->Read(1, 3)->data, "ell");
  EXPECT_EQ(log->Read(5, 3)->data, "");
}

TEST_F(FilesTest, AStreamThatSaysNothingHasNoFile) {
  std::string path = Path("sandbox/command.out");
  auto log = OutputLog::Open(path, 1 << 20);
  ASSERT_TRUE(log.ok()) << log.status().ToString();
  Pipe quiet;
  EXPECT_EQ(*log->MoveFromPipe(quiet.out.get(), 100), OutputLog::Moved::kEmpty);
  quiet.in.reset();
  EXPECT_EQ(*log->MoveFromPipe(quiet.out.get(), 100), OutputLog::Moved::kEnd);
  EXPECT_FALSE(PathExists(Path("sandbox")));
  EXPECT_EQ(OutputLog::OpenForReading(path).status().code(), Code::kNotFound);

  Pipe pipe;
  pipe.Write("late");
  EXPECT_EQ(*log->MoveFromPipe(pipe.out.get(), 100), OutputLog::Moved::kSome);
  EXPECT_EQ(*ReadFileToString(path), "late");
  EXPECT_EQ(OutputLog::Open(path, 1 << 20)->size(), 4u) << "the next process goes on behind it";
}

TEST_F(FilesTest, WithoutAPlaceForAFileOutputIsCountedAsLost) {
  auto log = OutputLog::Open(Path("gone/log"), 1 << 20);
  ASSERT_TRUE(log.ok());
  ASSERT_TRUE(ReplaceFileDurably(Path("gone"), "a file where the directory should be").ok());
  Pipe pipe;
  pipe.Write("nowhere to go");
  EXPECT_EQ(*log->MoveFromPipe(pipe.out.get(), 100), OutputLog::Moved::kSome);
  EXPECT_EQ(log->size(), 13u);
  EXPECT_EQ(log->Read(0, 100)->lost, 13u);
}

TEST_F(FilesTest, OnlyAWindowStaysAndIsFoundAgain) {
  constexpr uint64_t kKeep = 256 << 10;
  uint64_t total = 0, start = 0;
  {
    auto log = OutputLog::Open(Path("log"), kKeep);
    ASSERT_TRUE(log.ok());
    Pipe pipe;
    for (int i = 0; i < 100; ++i) {
      pipe.Write(Pattern(total, 50'000));
      total += 50'000;
      ASSERT_EQ(*log->MoveFromPipe(pipe.out.get(), 1 << 20), OutputLog::Moved::kSome);
      EXPECT_GE(log->size() - log->start(), std::min(total, kKeep));
      EXPECT_LE(log->size() - log->start(), kKeep + (192 << 10));
    }
    start = log->start();
    EXPECT_GT(start, 0u);
  }
  struct stat st;
  ASSERT_EQ(::stat(Path("log").c_str(), &st), 0);
  EXPECT_EQ(static_cast<uint64_t>(st.st_size), total);
  EXPECT_LE(st.st_blocks * 512, 512 << 10);
  auto log = OutputLog::OpenForReading(Path("log"));
  ASSERT_TRUE(log.ok());
  EXPECT_EQ(log->start(), start);
  auto piece = log->Read(10, 1000);
  ASSERT_TRUE(piece.ok());
  EXPECT_EQ(piece->offset, start);
  EXPECT_EQ(piece->lost, start - 10);
  EXPECT_EQ(piece->data, Pattern(start, 1000));
}

class StdinTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = EventLoop::Create();
    ASSERT_TRUE(loop.ok());
    loop_ = std::move(*loop);
  }
  std::unique_ptr<EventLoop> loop_;
};

TEST_F(StdinTest, WaitsForTheReaderAndAnswersInOrder) {
  Pipe pipe;
  ::fcntl(pipe.in.get(), F_SETPIPE_SZ, 4096);
  StdinQueue queue(*loop_);
  queue.Open(std::move(pipe.in), 0, false);
  std::vector<uint64_t> answers;
  auto done = [&](Result<uint64_t> result) { answers.push_back(result.ok() ? *result : 0); };
  queue.on_end = [&] { loop_->Stop(); };
  queue.Send(Pattern(0, 4000), false, 0, done);
  EXPECT_EQ(answers, std::vector<uint64_t>({4000}));
  queue.Send(Pattern(4000, 6000), false, 4000, done);
  queue.Send(Pattern(2000, 8000), true, 2000, done);  // a retry, with the end
  queue.Send(Pattern(4000, 6000), true, 4000, done);
  EXPECT_EQ(answers.size(), 1u);
  std::thread loop([&] { loop_->Run(); });
  std::string got;
  char buffer[4096];
  while (WaitReadable(pipe.out.get(), 10'000).ok()) {
    ssize_t n = ::read(pipe.out.get(), buffer, sizeof(buffer));
    if (n <= 0) break;
    got.append(buffer, static_cast<size_t>(n));
  }
  loop.join();
  EXPECT_EQ(got, Pattern(0, 10'000));
  EXPECT_EQ(answers, std::vector<uint64_t>({4000, 10'000, 10'000, 10'000}));
}

TEST_F(StdinTest, AReaderThatIsGoneIsAnError) {
  Pipe pipe;
  ::signal(SIGPIPE, SIG_IGN);
  StdinQueue queue(*loop_);
  queue.Open(std::move(pipe.in), 0, false);
  pipe.out.reset();
  Code code = Code::kOk;
  queue.Send("x", false, std::nullopt,
             [&](Result<uint64_t> result) { code = result.status().code(); });
  EXPECT_EQ(code, Code::kFailedPrecondition);
}

TEST_F(StdinTest, GapsAndTooMuchAreRefused) {
  Pipe pipe;
  StdinQueue queue(*loop_);
  queue.Open(std::move(pipe.in), 100, false);
  std::vector<Code> codes;
  auto done = [&](Result<uint64_t> result) { codes.push_back(result.status().code()); };
  queue.Send("x", false, 101, done);
  queue.Send("x", false, 99, done);  // known already
  queue.Send(std::string(StdinQueue::kMaxQueued, 'x'), false, std::nullopt, done);
  queue.Send("y", true, std::nullopt, done);
  EXPECT_EQ(codes, std::vector<Code>({Code::kOutOfRange, Code::kOk}));
  queue.Send(std::string(200'000, 'x'), false, std::nullopt, done);
  EXPECT_EQ(codes.back(), Code::kFailedPrecondition) << "after the end";
  queue.Close(CancelledError("over"));
}

}  // namespace
}  // namespace esker
