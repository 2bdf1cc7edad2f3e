// snapshotter_crash_driver STORE DATABASE STORY: runs the story's steps in order; prints one line
// for each acknowledged step, and at the end the failure points that were passed. An unknown story
// has no steps: the index is opened.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/failpoint.h"
#include "base/io.h"
#include "crash_story.h"

namespace esker::testing {
namespace {

// Unbuffered: a line is out before the next step can kill us.
Status Say(const std::string& line) {
  return WriteFull(STDOUT_FILENO, (line + "\n").data(), line.size() + 1);
}

Status Run(const std::string& store_path, const std::string& database, const std::string& story) {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, Store::Open(store_path));
  IndexOptions options;
  options.db_directory = database;
  options.claimant = "crash driver";
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Index> index, Index::Open(*store, options));
  index->EnableGc();
  for (const Step& step : StoryByName(story)) {
    ESKER_RETURN_IF_ERROR(step.run(*store, *index).Wrap("step " + step.name));
    ESKER_RETURN_IF_ERROR(Say("done " + step.name));
  }
  for (const std::string& point : HitFailPoints()) ESKER_RETURN_IF_ERROR(Say("point " + point));
  return OkStatus();
}

}  // namespace
}  // namespace esker::testing

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  esker::Status status = esker::testing::Run(argv[1], argv[2], argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
