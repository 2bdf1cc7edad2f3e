// esker image sync: many images, side by side. What is stored already is found by name and digest,
// so a sync that was killed goes on where it was when it is started again, without a state file.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/digest.h"
#include "output.h"
#include "push_image.h"
#include "sync_list.h"
#include "verbs.h"

namespace esker::cli {
namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(100);
constexpr auto kLongestPause = std::chrono::milliseconds(2000);
constexpr int kMaxTries = 20;

struct Arguments {
  std::string list, project, job;
  ArchiveOptions archive;
  int jobs = 4;
  int wait_seconds = 60;  // for a server that is away
};

// Layers that are on their way. Whoever needs one of them waits, and then finds it stored: no layer
// is read or sent twice.
class LayersUnderway {
 public:
  // Waits until nobody sends any of these, then takes those not known to be stored. All or nothing,
  // so nobody waits for another that waits.
  std::vector<std::string> Take(const std::vector<std::string>& diff_ids) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::none_of(diff_ids.begin(), diff_ids.end(),
                          [&](auto& id) { return underway_.contains(id); });
    });
    std::vector<std::string> mine;
    for (const std::string& id : diff_ids) {
      if (!stored_.contains(id) && underway_.insert(id).second) mine.push_back(id);
    }
    return mine;
  }
  void Give(const std::vector<std::string>& mine, bool stored) {
    std::lock_guard lock(mutex_);
    for (const std::string& id : mine) {
      underway_.erase(id);
      if (stored) stored_.insert(id);
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> underway_, stored_;
};

struct Failure {
  SyncLine line;
  Status status;
};

struct Totals {
  size_t pushed = 0, present = 0;
  uint64_t layers = 0, layers_reused = 0, bytes_read = 0, bytes_stored = 0;
  std::vector<Failure> failures;
  size_t finished() const { return pushed + present + failures.size(); }
};

class Sync {
 public:
  Sync(const GlobalOptions& options, const Arguments& args, std::vector<SyncLine> lines)
      : options_(options),
        args_(args),
        channel_(OpenChannel(options)),
        lines_(std::move(lines)),
        progress_(options.json) {}

  Totals Run() {
    std::vector<std::thread> workers;
    for (int i = 0; i < args_.jobs; ++i) workers.emplace_back([this] { Work(); });
    for (std::thread& worker : workers) worker.join();
    progress_.Finish();
    std::sort(totals_.failures.begin(), totals_.failures.end(),
              [](auto& a, auto& b) { return a.line.number < b.line.number; });
    return std::move(totals_);
  }

 private:
  void Work() {
    while (const SyncLine* line = Next()) {
      Status status = DoWithPatience(*line);
      std::lock_guard lock(mutex_);
      if (!status.ok()) totals_.failures.push_back({*line, std::move(status)});
      progress_.Show(std::to_string(totals_.finished()) + " of " + std::to_string(lines_.size()) +
                     " images: " + std::to_string(totals_.pushed) + " pushed, " +
                     std::to_string(totals_.present) + " there already, " +
                     std::to_string(totals_.failures.size()) + " failed; " +
                     HumanBytes(totals_.bytes_read) + " read, " + HumanBytes(totals_.bytes_stored) +
                     " stored");
    }
  }

  const SyncLine* Next() {
    std::lock_guard lock(mutex_);
    return next_ < lines_.size() ? &lines_[next_++] : nullptr;
  }

  // A server that restarts is waited for; what it had not acknowledged is done again.
  Status DoWithPatience(const SyncLine& line) {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(args_.wait_seconds);
    auto pause = kFirstPause;
    for (int tries = 1;; ++tries) {
      Status status = Do(line);
      const bool may_pass = status.code() == Code::kUnavailable ||
                            status.code() == Code::kCancelled || status.code() == Code::kAborted;
      if (!may_pass || tries == kMaxTries || std::chrono::steady_clock::now() + pause >= deadline) {
        return status;
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
  }

  Status Do(const SyncLine& line) {
    ESKER_ASSIGN_OR_RETURN(std::unique_ptr<PushSource> source,
                           PushSource::Open(line.source, args_.archive));
    ESKER_ASSIGN_OR_RETURN(bool present, IsPresent(line, *source));
    if (present) {
      std::lock_guard lock(mutex_);
      ++totals_.present;
      return OkStatus();
    }
    const std::vector<std::string> mine = underway_.Take(source->DiffIds());
    const PushTarget target = {line.name, args_.project, args_.job};
    Result<v1::PushEvent::Done> done =
        PushImage(options_, channel_, *source, target, [](auto&, uint64_t) {});
    underway_.Give(mine, done.ok());
    ESKER_RETURN_IF_ERROR(done.status());
    std::lock_guard lock(mutex_);
    ++totals_.pushed;
    totals_.layers += done->totals().layers();
    totals_.layers_reused += done->totals().layers_reused();
    totals_.bytes_read += done->totals().bytes_read();
    totals_.bytes_stored += done->totals().bytes_stored();
    return OkStatus();
  }

  // Whether the name is there already and means what the source holds.
  Result<bool> IsPresent(const SyncLine& line, PushSource& source) {
    v1::InspectImageRequest request;
    request.set_reference(line.name);
    request.set_project(args_.project);
    auto stub = v1::ImageService::NewStub(channel_);
    grpc::ClientContext context;
    Prepare(options_, &context);
    v1::Image image;
    Status status = FromGrpc(stub->Inspect(&context, request, &image), context);
    if (status.code() == Code::kNotFound) return false;
    ESKER_RETURN_IF_ERROR(status);
    if (!HasName(image, line.name)) return false;
    if (const std::string digest = source.ManifestDigest(); !digest.empty()) {
      auto origin = image.origin().find("oci");
      return origin != image.origin().end() && origin->second == digest;
    }
    if (image.layers_size() != 1 || image.origin().contains("oci")) return false;
    ESKER_ASSIGN_OR_RETURN(std::string digest, source.StreamDigest());
    return !digest.empty() && digest == image.layers(0).source_digest();
  }

  // The look-up falls back to shared names, but a name of a project is to be made beside those; and
  // without a project a caller of all projects means the shared one, not that of "default".
  bool HasName(const v1::Image& image, const std::string& name) const {
    if (args_.project.empty()) {
      return std::find(image.tags().begin(), image.tags().end(), name) != image.tags().end();
    }
    return std::any_of(image.names().begin(), image.names().end(), [&](const v1::ImageName& one) {
      return one.name() == name && one.project() == args_.project;
    });
  }

  const GlobalOptions& options_;
  const Arguments& args_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::vector<SyncLine> lines_;
  LayersUnderway underway_;

  std::mutex mutex_;  // guards what follows
  size_t next_ = 0;
  Totals totals_;
  ProgressLine progress_;
};

void Print(const GlobalOptions& options, const Totals& totals, size_t lines) {
  if (options.json) {
    nlohmann::json failed = nlohmann::json::array();
    for (const Failure& failure : totals.failures) {
      failed.push_back({{"line", failure.line.number},
                        {"source", failure.line.source},
                        {"name", failure.line.name},
                        {"error", CodeName(failure.status.code())},
                        {"message", failure.status.message()}});
    }
    PrintJson(nlohmann::json{{"lines", lines},
                             {"pushed", totals.pushed},
                             {"present", totals.present},
                             {"failed", std::move(failed)},
                             {"layers", totals.layers},
                             {"layers_reused", totals.layers_reused},
                             {"bytes_read", totals.bytes_read},
                             {"bytes_stored", totals.bytes_stored}});
    return;
  }
  std::printf("%zu images: %zu pushed, %zu there already, %zu failed; %s read, %s stored\n", lines,
              totals.pushed, totals.present, totals.failures.size(),
              HumanBytes(totals.bytes_read).c_str(), HumanBytes(totals.bytes_stored).c_str());
  for (const Failure& failure : totals.failures) {
    std::printf("line %zu: %s %s: %s: %s\n", failure.line.number, failure.line.source.c_str(),
                failure.line.name.c_str(), std::string(CodeName(failure.status.code())).c_str(),
                failure.status.message().c_str());
  }
}

Result<std::string> ReadList(const std::string& path) {
  std::ifstream file(path == "-" ? "/dev/stdin" : path, std::ios::binary);
  if (!file) return NotFoundError("cannot read the list " + path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

int RunSync(const GlobalOptions& options, const Arguments& args) {
  auto lines = [&]() -> Result<std::vector<SyncLine>> {
    ESKER_ASSIGN_OR_RETURN(std::string text, ReadList(args.list));
    return ParseSyncList(text);
  }();
  if (!lines.ok()) return ReportFailure(options, lines.status().Wrap(args.list));
  const size_t count = lines->size();
  const Totals totals = Sync(options, args, std::move(*lines)).Run();
  Print(options, totals, count);
  return totals.failures.empty() ? 0 : 1;
}

}  // namespace

void AddImageSync(CLI::App& image, GlobalOptions& options, Chosen& chosen) {
  auto args = std::make_shared<Arguments>();
  CLI::App* verb = image.add_subcommand("sync", "push the images of a list that are not there yet");
  verb->add_option(
          "list", args->list,
          std::string("file of lines `SOURCE NAME[:TAG]`, - for standard input; a source is ") +
              kPushSources)
      ->required();
  verb->add_option("--jobs", args->jobs, "images at once (default 4)")->check(CLI::Range(1, 64));
  verb->add_option("--wait", args->wait_seconds,
                   "seconds to wait for a server that is away (default 60)")
      ->check(CLI::Range(0, 86'400));
  AddArchiveOptions(verb, args->archive);
  verb->add_option("--project", args->project, "whose names they are");
  verb->add_option("--job", args->job, "the job that pushes them");
  verb->callback(
      [args, &options, &chosen] { chosen = [args, &options] { return RunSync(options, *args); }; });
}

}  // namespace esker::cli
