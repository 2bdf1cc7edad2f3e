// Kills a process that works on a store at every failure point it passes, each time it passes it,
// and checks what the next one finds: everything that was acknowledged, the interrupted step either
// done or not begun, and nothing that garbage collection cannot take away.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <sstream>

#include "base/process.h"
#include "testing/crash_story.h"
#include "testing/index_fixture.h"

namespace esker::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;

struct Outcome {
  int status = 0;  // as from waitpid
  size_t steps_done = 0;
  std::vector<std::string> points;
  std::string errors;
  bool killed() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
  bool succeeded() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

// Where the start after a crash is killed in its turn.
constexpr const char* kSecondKills[] = {
    "store.owner.after_link",         "index.reconcile.packs",     "index.reconcile.names",
    "index.image_state.after_record", "store.record.after_link@2", "index.register.chunks",
    "index.tag.after_record"};

class CrashTest : public ::testing::TestWithParam<std::string> {
 protected:
  struct Place {
    // A killed process loses nothing that the kernel has: memory will do, and saves the fsyncs.
    TempDir directory = Must(TempDir::Create(PathExists("/dev/shm") ? "/dev/shm" : ""));
    std::string store() const { return directory.path() + "/store"; }
    std::string database() const { return directory.path() + "/index"; }
  };

  Outcome RunDriver(const Place& place, const std::string& failpoints,
                    const std::string& story = GetParam()) {
    Must(Store::Initialise(place.store()));
    const std::string out_path = place.directory.path() + "/out";
    UniqueFd out = Must(OpenFile(out_path, O_WRONLY | O_CREAT | O_TRUNC));
    UniqueFd err = Must(OpenFile(place.directory.path() + "/err", O_WRONLY | O_CREAT | O_TRUNC));
    SpawnOptions options;
    options.argv = {ESKER_CRASH_DRIVER, place.store(), place.database(), story};
    options.env = {"ESKER_FAILPOINTS=" + failpoints, "TMPDIR=" + place.directory.path()};
    options.stdout_fd = out.get();
    options.stderr_fd = err.get();
    Process process = Must(Process::Spawn(options));
    Must(process.WaitExit(60'000));
    Outcome outcome;
    outcome.status = Must(process.Reap());
    outcome.errors = Must(ReadFileToString(place.directory.path() + "/err"));
    std::istringstream lines(Must(ReadFileToString(out_path)));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("done ")) ++outcome.steps_done;
      if (line.starts_with("point ")) outcome.points.push_back(line.substr(6));
    }
    return outcome;
  }

  // What a user sees after each number of steps, without any crash.
  std::vector<std::string> ExpectedStates() {
    Place place;
    Must(Store::Initialise(place.store()));
    auto store = Must(Store::Open(place.store()));
    auto index = Must(Index::Open(*store, {.db_directory = place.database(), .claimant = "plain"}));
    index->EnableGc();
    std::vector<std::string> states = {Must(Describe(*store, *index))};
    for (const Step& step : StoryByName(GetParam())) {
      Must(step.run(*store, *index).Wrap(step.name));
      states.push_back(Must(Describe(*store, *index)));
    }
    return states;
  }

  void CheckWhatIsLeft(const Place& place, const std::string& before, const std::string& after) {
    auto store = Must(Store::Open(place.store()));
    auto index =
        Must(Index::Open(*store, {.db_directory = place.database(), .claimant = "checker"}));
    index->EnableGc();
    std::string state = Must(Describe(*store, *index));
    EXPECT_THAT(state, AnyOf(Eq(before), Eq(after)));
    ASSERT_TRUE(index->Rebuild(nullptr).ok());
    EXPECT_EQ(Must(Describe(*store, *index)), state) << "a rebuilt index says something else";
    Must(index->CollectGarbage({}));
    EXPECT_EQ(Must(Describe(*store, *index)), state) << "garbage collection took something";

    for (const ImageRecord& image : Must(index->ListImages())) {
      EXPECT_OK(index->DeleteImage(image.id, true));
    }
    Must(index->CollectGarbage({}));
    EXPECT_TRUE(Must(store->ListPacks()).empty());
    EXPECT_TRUE(Must(store->ListRecordNames("tags")).empty());
    EXPECT_TRUE(Must(store->ListRecordNames("images")).empty());
    EXPECT_TRUE(Must(ListDirectory(place.store() + "/tmp")).empty());
  }
};

TEST_P(CrashTest, KilledAtEveryFailurePoint) {
  const std::vector<std::string> states = ExpectedStates();
  std::vector<std::string> points;
  {
    Place place;
    Outcome whole = RunDriver(place, "record");
    ASSERT_TRUE(whole.succeeded()) << whole.errors;
    ASSERT_EQ(whole.steps_done + 1, states.size());
    points = whole.points;
  }
  ASSERT_GE(points.size(), 10u);
  size_t kills = 0;
  for (const std::string& point : points) {
    for (int hit = 1;; ++hit) {
      SCOPED_TRACE(point + ", hit " + std::to_string(hit));
      Place place;
      Outcome outcome = RunDriver(place, point + "=kill@" + std::to_string(hit));
      if (outcome.succeeded()) break;  // it is not passed that often
      ASSERT_TRUE(outcome.killed()) << outcome.errors;
      std::string second = kSecondKills[kills++ % std::size(kSecondKills)];
      size_t at = std::min(second.find('@'), second.size());
      second.insert(at, "=kill");
      RunDriver(place, second, "only open");  // killed, if it comes by that point
      size_t done = outcome.steps_done;
      CheckWhatIsLeft(place, states[done], states[std::min(done + 1, states.size() - 1)]);
      if (HasFatalFailure()) return;
    }
  }
  RecordProperty("kills", static_cast<int>(kills));
  std::printf("%zu points, %zu kills\n", points.size(), kills);
}

INSTANTIATE_TEST_SUITE_P(Stories, CrashTest, ::testing::Values("index", "push"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace esker::testing
