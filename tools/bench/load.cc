// esker-load: puts a server under load and says what its callers see.
//
//   esker-load --address ADDRESS --image IMAGE [--key KEY]
//              [--what cycle|exec|snapshot|fork|fill|each|empty]
//              [--in-flight N] [--seconds S | --cycles M] [--count CHILDREN] [--channels C]
//              [--command "WORDS"]
//
// cycle: create, a command (`true`), delete. exec: the command in one sandbox. snapshot: change one
// file of one sandbox, snapshot it. fork: --count children of one sandbox, then their deletion.
// fill: create sandboxes that stay (without a time to live). each: the command once in every
// sandbox there is. empty: delete them all. Prints one JSON object: cycles per second, percentiles
// of the whole cycle and of each step in microseconds, failures by code. One thread and one
// completion queue: what is measured is the server.
#include <getopt.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "esker/v1/command.grpc.pb.h"
#include "esker/v1/sandbox.grpc.pb.h"

namespace esker::load {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
using Done = std::function<void(bool ok)>;

constexpr int64_t kTtlMs = 600'000, kNoEnd = -1;

struct Options {
  std::string address, image, key;
  std::string what = "cycle";
  int in_flight = 1;
  double seconds = 5;
  int64_t cycles = 0;  // 0: as many as fit into `seconds`
  uint32_t count = 1;
  int channels = 4;
  std::vector<std::string> command = {"true"};
};

int64_t MicrosSince(SteadyTime start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                               start)
      .count();
}

std::string RequestId() {
  static std::mt19937_64 random{std::random_device{}()};
  char text[48];
  std::snprintf(text, sizeof(text), "load-%016llx%016llx",
                static_cast<unsigned long long>(random()),
                static_cast<unsigned long long>(random()));
  return text;
}

std::string JsonString(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

// What was seen, by step.
class Figures {
 public:
  void Add(const std::string& step, int64_t micros) { steps_[step].push_back(micros); }
  void AddFailure(const std::string& step, const grpc::Status& status) {
    Failure& failure = failures_[step + " " + std::to_string(status.error_code())];
    if (failure.count++ == 0) failure.first_message = status.error_message();
  }
  bool failed() const { return !failures_.empty(); }

  void Print(const Options& options, int64_t cycles, double seconds) {
    std::printf("{\"what\": %s, \"in_flight\": %d, \"cycles\": %lld, \"seconds\": %.3f, ",
                JsonString(options.what).c_str(), options.in_flight, static_cast<long long>(cycles),
                seconds);
    std::printf("\"per_second\": %.2f, \"steps\": {",
                seconds > 0 ? static_cast<double>(cycles) / seconds : 0.0);
    const char* comma = "";
    for (auto& [step, micros] : steps_) {
      std::sort(micros.begin(), micros.end());
      std::printf("%s%s: {\"count\": %zu, \"p50_us\": %lld, \"p90_us\": %lld, \"p99_us\": %lld}",
                  comma, JsonString(step).c_str(), micros.size(), At(micros, 50), At(micros, 90),
                  At(micros, 99));
      comma = ", ";
    }
    std::printf("}, \"failures\": {");
    comma = "";
    for (auto& [what, failure] : failures_) {
      std::printf("%s%s: {\"count\": %lld, \"first\": %s}", comma, JsonString(what).c_str(),
                  static_cast<long long>(failure.count), JsonString(failure.first_message).c_str());
      comma = ", ";
    }
    std::printf("}}\n");
  }

 private:
  struct Failure {
    int64_t count = 0;
    std::string first_message;
  };
  static long long At(const std::vector<int64_t>& sorted, size_t percent) {
    return sorted[std::min(sorted.size() - 1, sorted.size() * percent / 100)];
  }
  std::map<std::string, std::vector<int64_t>> steps_;
  std::map<std::string, Failure> failures_;
};

// The connection: channels in turn, one completion queue, and the loop that runs what it reports.
class Client {
 public:
  explicit Client(const Options& options) : options_(options) {
    for (int i = 0; i < std::max(1, options.channels); ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection for each
      auto channel =
          grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
      sandboxes_.push_back(v1::SandboxService::NewStub(channel));
      commands_.push_back(v1::CommandService::NewStub(channel));
    }
  }
  ~Client() {
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) delete static_cast<Done*>(tag);
  }

  v1::SandboxService::Stub& sandboxes() { return *sandboxes_[turn_++ % sandboxes_.size()]; }
  v1::CommandService::Stub& commands() { return *commands_[turn_++ % commands_.size()]; }
  grpc::CompletionQueue* queue() { return &queue_; }

  std::unique_ptr<grpc::ClientContext> NewContext() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_wait_for_ready(true);
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    if (!options_.key.empty()) context->AddMetadata("authorization", "Bearer " + options_.key);
    return context;
  }
  // The tag that runs `done` once.
  static void* Tag(Done done) { return new Done(std::move(done)); }

  // Runs what completes until `finished` says so.
  void RunUntil(const std::function<bool()>& finished) {
    void* tag;
    bool ok;
    while (!finished() && queue_.Next(&tag, &ok)) {
      std::unique_ptr<Done> done(static_cast<Done*>(tag));
      (*done)(ok);
    }
  }

 private:
  const Options& options_;
  std::vector<std::unique_ptr<v1::SandboxService::Stub>> sandboxes_;
  std::vector<std::unique_ptr<v1::CommandService::Stub>> commands_;
  grpc::CompletionQueue queue_;
  size_t turn_ = 0;
};

// One worker: one cycle after the other, one call at a time.
class Worker {
 public:
  using Next = std::function<void(const grpc::Status&)>;

  Worker(Client& client, Figures& figures) : client_(client), figures_(figures) {}

  void Create(const std::string& image, int64_t ttl_ms, Next next) {
    auto call = std::make_shared<Unary<v1::Sandbox>>(client_.NewContext());
    v1::CreateSandboxRequest request;
    request.set_request_id(RequestId());
    request.set_image(image);
    request.set_ttl_ms(ttl_ms);
    call->reader = client_.sandboxes().AsyncCreate(call->context.get(), request, client_.queue());
    Finish("create", call, [this, call, next = std::move(next)](const grpc::Status& status) {
      if (status.ok()) sandbox_ = call->response.id();
      next(status);
    });
  }

  // One page of the sandboxes that live; `ids` gets them, `token` what to go on from, empty at the
  // end.
  void List(std::string* token, std::vector<std::string>* ids, Next next) {
    auto call = std::make_shared<Unary<v1::ListSandboxesResponse>>(client_.NewContext());
    v1::ListSandboxesRequest request;
    request.set_page_size(1000);
    request.set_page_token(*token);
    call->reader = client_.sandboxes().AsyncList(call->context.get(), request, client_.queue());
    Finish("list", call, [call, token, ids, next = std::move(next)](const grpc::Status& status) {
      *token = call->response.next_page_token();
      for (const auto& sandbox : call->response.sandboxes()) ids->push_back(sandbox.id());
      next(status);
    });
  }

  void Delete(const std::string& id, Next next) {
    auto call = std::make_shared<Unary<v1::DeleteSandboxResponse>>(client_.NewContext());
    v1::DeleteSandboxRequest request;
    request.set_request_id(RequestId());
    request.set_id(id);
    call->reader = client_.sandboxes().AsyncDelete(call->context.get(), request, client_.queue());
    Finish("delete", call, std::move(next));
  }

  void Snapshot(const std::string& id, Next next) {
    auto call = std::make_shared<Unary<v1::SnapshotSandboxResponse>>(client_.NewContext());
    v1::SnapshotSandboxRequest request;
    request.set_request_id(RequestId());
    request.set_id(id);
    request.set_keep(v1::KEEP_FILES);
    call->reader = client_.sandboxes().AsyncSnapshot(call->context.get(), request, client_.queue());
    Finish("snapshot", call, [this, call, next = std::move(next)](const grpc::Status& status) {
      if (status.ok()) figures_.Add("frozen", call->response.frozen_us());
      next(status);
    });
  }

  // Children are left in children().
  void Fork(const std::string& id, uint32_t count, Next next) {
    auto call = std::make_shared<Unary<v1::ForkSandboxResponse>>(client_.NewContext());
    v1::ForkSandboxRequest request;
    request.set_request_id(RequestId());
    request.set_id(id);
    request.set_count(count);
    request.set_keep(v1::KEEP_FILES);
    call->reader = client_.sandboxes().AsyncFork(call->context.get(), request, client_.queue());
    Finish("fork", call, [this, call, next = std::move(next)](grpc::Status status) {
      for (const auto& child : call->response.children()) {
        if (child.has_sandbox()) {
          children_.push_back(child.sandbox().id());
        } else {
          status = grpc::Status(static_cast<grpc::StatusCode>(child.error_code()),
                                child.error_message());
          figures_.AddFailure("fork child", status);
        }
      }
      next(status);
    });
  }

  // Runs a command and waits for its end.
  void Exec(const std::string& step, const std::string& id, const std::vector<std::string>& argv,
            Next next) {
    auto run = std::make_shared<RunCall>();
    run->context = client_.NewContext();
    run->step = step;
    run->next = std::move(next);
    v1::StartCommandRequest request;
    request.set_request_id(RequestId());
    request.set_sandbox_id(id);
    for (const std::string& word : argv) request.add_argv(word);
    run->start = std::chrono::steady_clock::now();
    run->reader = client_.commands().AsyncRun(run->context.get(), request, client_.queue(),
                                              Client::Tag([this, run](bool ok) {
                                                if (ok) return ReadEvent(run);
                                                FinishRun(run);
                                              }));
  }

  const std::string& sandbox() const { return sandbox_; }
  std::vector<std::string>& children() { return children_; }

 private:
  template <typename Response>
  struct Unary {
    explicit Unary(std::unique_ptr<grpc::ClientContext> c) : context(std::move(c)) {}
    SteadyTime start = std::chrono::steady_clock::now();
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
    Response response;
    grpc::Status status;
  };
  struct RunCall {
    SteadyTime start;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncReader<v1::CommandEvent>> reader;
    v1::CommandEvent event;
    v1::Exit exit;
    bool exited = false;
    grpc::Status status;
    std::string step;
    Next next;
  };

  template <typename Response>
  void Finish(const std::string& step, std::shared_ptr<Unary<Response>> call, Next next) {
    auto tag = Client::Tag([this, step, call, next = std::move(next)](bool) {
      Note(step, call->start, call->status);
      next(call->status);
    });
    call->reader->Finish(&call->response, &call->status, tag);
  }

  void ReadEvent(const std::shared_ptr<RunCall>& run) {
    run->reader->Read(&run->event, Client::Tag([this, run](bool ok) {
      if (!ok) return FinishRun(run);
      if (run->event.has_exited()) {
        run->exited = true;
        run->exit = run->event.exited().exit();
      }
      ReadEvent(run);
    }));
  }
  void FinishRun(const std::shared_ptr<RunCall>& run) {
    run->reader->Finish(&run->status, Client::Tag([this, run](bool) {
      if (run->status.ok() && !run->exited) {
        run->status = grpc::Status(grpc::StatusCode::INTERNAL, "the stream ended before the exit");
      }
      if (run->status.ok() && run->exit.exit_code() != 0) {
        run->status = grpc::Status(
            grpc::StatusCode::UNKNOWN,
            "exit code " + std::to_string(run->exit.exit_code()) + " " + run->exit.error());
      }
      Note(run->step, run->start, run->status);
      run->next(run->status);
    }));
  }
  void Note(const std::string& step, SteadyTime start, const grpc::Status& status) {
    if (status.ok()) {
      figures_.Add(step, MicrosSince(start));
    } else {
      figures_.AddFailure(step, status);
    }
  }

  Client& client_;
  Figures& figures_;
  std::string sandbox_;
  std::vector<std::string> children_;
};

class Load {
 public:
  explicit Load(const Options& options) : options_(options), client_(options) {}

  int Run() {
    bool all = options_.what == "each" || options_.what == "empty";
    bool alone = all || options_.what == "cycle" || options_.what == "fill";
    if ((all && !ListAll()) || (!alone && !MakeShared())) {
      figures_.Print(options_, 0, 0);
      return 1;
    }
    for (int i = 0; i < options_.in_flight; ++i) {
      workers_.push_back(std::make_unique<Worker>(client_, figures_));
    }
    start_ = std::chrono::steady_clock::now();
    for (auto& worker : workers_) StartCycle(worker.get());
    client_.RunUntil([this] { return active_ == 0; });
    // In a run by time only what ended in time counts; by count the whole time counts.
    double seconds =
        options_.cycles > 0 ? static_cast<double>(MicrosSince(start_)) / 1e6 : options_.seconds;
    if (shared_) {
      Await([this](Worker::Next next) { shared_->Delete(shared_->sandbox(), std::move(next)); });
    }
    figures_.Print(options_, counted_, seconds);
    return figures_.failed() ? 1 : 0;
  }

 private:
  // The sandbox that all workers use; neither its creation nor its end is among the figures.
  bool MakeShared() {
    shared_ = std::make_unique<Worker>(client_, setup_figures_);
    bool ok = Await(
        [this](Worker::Next next) { shared_->Create(options_.image, kTtlMs, std::move(next)); });
    if (!ok) return false;
    return Await([this](Worker::Next next) {
      shared_->Exec("exec", shared_->sandbox(), options_.command, std::move(next));
    });
  }
  bool ListAll() {
    Worker lister(client_, setup_figures_);
    std::string token;
    do {
      if (!Await([&](Worker::Next next) { lister.List(&token, &ids_, std::move(next)); }))
        return false;
    } while (!token.empty());
    options_.cycles = static_cast<int64_t>(ids_.size());
    return true;
  }
  bool Await(const std::function<void(Worker::Next)>& call) {
    bool done = false;
    grpc::Status result;
    call([&](const grpc::Status& status) {
      result = status;
      done = true;
    });
    client_.RunUntil([&] { return done; });
    if (!result.ok()) figures_.AddFailure("setup", result);
    return result.ok();
  }

  bool MayStart() {
    bool counted = options_.cycles > 0 || options_.what == "each" || options_.what == "empty";
    if (counted) return started_ < options_.cycles;
    return static_cast<double>(MicrosSince(start_)) < options_.seconds * 1e6;
  }
  void StartCycle(Worker* worker) {
    if (!MayStart()) return;
    ++started_;
    ++active_;
    SteadyTime begin = std::chrono::steady_clock::now();
    auto end = [this, worker, begin](const grpc::Status& status) {
      --active_;
      if (status.ok()) {
        figures_.Add("cycle", MicrosSince(begin));
        bool in_time = static_cast<double>(MicrosSince(start_)) <= options_.seconds * 1e6;
        if (options_.cycles > 0 || in_time) ++counted_;
      }
      StartCycle(worker);
    };
    if (options_.what == "cycle") return CreateRunDelete(worker, end);
    if (options_.what == "exec")
      return worker->Exec("exec", shared_->sandbox(), options_.command, end);
    if (options_.what == "snapshot") return ChangeAndSnapshot(worker, end);
    if (options_.what == "fill") return worker->Create(options_.image, kNoEnd, end);
    if (options_.what == "each") return worker->Exec("exec", NextId(), options_.command, end);
    if (options_.what == "empty") return worker->Delete(NextId(), end);
    ForkAndDelete(worker, end);
  }

  void CreateRunDelete(Worker* worker, Worker::Next end) {
    worker->Create(options_.image, kTtlMs, [this, worker, end](const grpc::Status& created) {
      if (!created.ok()) return end(created);
      worker->Exec("exec", worker->sandbox(), options_.command,
                   [worker, end](const grpc::Status& ran) {
                     worker->Delete(worker->sandbox(), [ran, end](const grpc::Status& deleted) {
                       end(ran.ok() ? deleted : ran);
                     });
                   });
    });
  }
  void ChangeAndSnapshot(Worker* worker, Worker::Next end) {
    std::string line =
        "echo " + RequestId() + " >/esker-load-" + std::to_string(worker_number_++ % 8);
    const std::string& id = shared_->sandbox();
    worker->Exec("change", id, {"sh", "-c", line}, [worker, id, end](const grpc::Status& ran) {
      if (!ran.ok()) return end(ran);
      worker->Snapshot(id, end);
    });
  }
  void ForkAndDelete(Worker* worker, Worker::Next end) {
    worker->Fork(shared_->sandbox(), options_.count, [this, worker, end](const grpc::Status& made) {
      DeleteChildren(worker, made, end);
    });
  }
  void DeleteChildren(Worker* worker, const grpc::Status& so_far, Worker::Next end) {
    if (worker->children().empty()) return end(so_far);
    std::string id = worker->children().back();
    worker->children().pop_back();
    worker->Delete(id, [this, worker, so_far, end](const grpc::Status& deleted) {
      DeleteChildren(worker, so_far.ok() ? deleted : so_far, end);
    });
  }

  const std::string& NextId() { return ids_[static_cast<size_t>(started_ - 1)]; }

  Options options_;
  Client client_;
  Figures figures_, setup_figures_;
  std::vector<std::string> ids_;  // each, empty: what there was at the start
  std::unique_ptr<Worker> shared_;
  std::vector<std::unique_ptr<Worker>> workers_;
  SteadyTime start_;
  int64_t started_ = 0, active_ = 0, counted_ = 0;
  unsigned worker_number_ = 0;
};

[[noreturn]] void Usage() {
  std::fprintf(stderr,
               "usage: esker-load --address ADDRESS --image IMAGE [--what "
               "cycle|exec|snapshot|fork|fill|each|empty] [...]; see the source's head\n");
  std::exit(2);
}

std::vector<std::string> Words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

Options Parse(int argc, char** argv) {
  static const option kOptions[] = {
      {"address", 1, nullptr, 'a'}, {"image", 1, nullptr, 'i'},     {"key", 1, nullptr, 'k'},
      {"what", 1, nullptr, 'w'},    {"in-flight", 1, nullptr, 'n'}, {"seconds", 1, nullptr, 's'},
      {"cycles", 1, nullptr, 'm'},  {"count", 1, nullptr, 'c'},     {"channels", 1, nullptr, 'h'},
      {"command", 1, nullptr, 'x'}, {nullptr, 0, nullptr, 0}};
  Options options;
  for (int c; (c = ::getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    switch (c) {
      case 'a':
        options.address = optarg;
        break;
      case 'i':
        options.image = optarg;
        break;
      case 'k':
        options.key = optarg;
        break;
      case 'w':
        options.what = optarg;
        break;
      case 'n':
        options.in_flight = std::atoi(optarg);
        break;
      case 's':
        options.seconds = std::atof(optarg);
        break;
      case 'm':
        options.cycles = std::atoll(optarg);
        break;
      case 'c':
        options.count = static_cast<uint32_t>(std::atoi(optarg));
        break;
      case 'h':
        options.channels = std::atoi(optarg);
        break;
      case 'x':
        options.command = Words(optarg);
        break;
      default:
        Usage();
    }
  }
  const std::string kKnown[] = {"cycle", "exec", "snapshot", "fork", "fill", "each", "empty"};
  bool known = std::find(std::begin(kKnown), std::end(kKnown), options.what) != std::end(kKnown);
  if (options.address.empty() || options.image.empty() || options.in_flight < 1 || !known ||
      options.command.empty()) {
    Usage();
  }
  return options;
}

}  // namespace
}  // namespace esker::load

int main(int argc, char** argv) {
  esker::load::Options options = esker::load::Parse(argc, argv);
  return esker::load::Load(options).Run();
}
