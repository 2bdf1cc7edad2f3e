#include "node_rig.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>

#include "base/id.h"
#include "base/io.h"
#include "imagefs/import.h"
#include "snapshotter/push.h"

namespace esker::testing {
namespace {

class StringSource : public ByteSource {
 public:
  explicit StringSource(std::string bytes) : bytes_(std::move(bytes)) {}
  Result<size_t> Read(void* buffer, size_t size) override {
    size_t n = std::min(size, bytes_.size() - at_);
    std::memcpy(buffer, bytes_.data() + at_, n);
    at_ += n;
    return n;
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

// One ustar member (POSIX.1-1988).
void AddMember(std::string& tar, const std::string& name, char type, int mode,
               const std::string& content, const std::string& link = "") {
  char header[512] = {};
  std::snprintf(header, 100, "%s", name.c_str());
  std::snprintf(header + 100, 8, "%07o", mode);
  std::snprintf(header + 108, 8, "%07o", 0);
  std::snprintf(header + 116, 8, "%07o", 0);
  std::snprintf(header + 124, 12, "%011zo", content.size());
  std::snprintf(header + 136, 12, "%011o", 1700000000);
  std::memset(header + 148, ' ', 8);
  header[156] = type;
  std::snprintf(header + 157, 100, "%s", link.c_str());
  std::memcpy(header + 257, "ustar\00000", 8);
  unsigned sum = 0;
  for (unsigned char c : header) sum += c;
  std::snprintf(header + 148, 8, "%06o", sum);
  tar.append(header, sizeof(header));
  tar += content;
  tar.append((512 - content.size() % 512) % 512, '\0');
}

Result<std::string> BusyboxTar() {
  ESKER_ASSIGN_OR_RETURN(std::string busybox, ReadFileToString("/bin/busybox"));
  std::string tar;
  for (const char* name : {"bin/", "etc/", "home/", "home/agent/", "proc/", "sys/", "dev/", "usr/",
                           "usr/bin/", "var/"}) {
    AddMember(tar, name, '5', 0755, "");
  }
  AddMember(tar, "tmp/", '5', 01777, "");
  AddMember(tar, "root/", '5', 0700, "");
  AddMember(tar, "bin/busybox", '0', 0755, busybox);
  for (const char* tool :
       {"sh",    "cat",  "ls",    "echo",      "sleep",  "true", "false", "dd",   "kill",
        "head",  "yes",  "seq",   "rm",        "mkdir",  "ln",   "find",  "sort", "wc",
        "touch", "mv",   "tr",    "sha256sum", "setsid", "id",   "test",  "stty", "env",
        "date",  "tail", "chmod", "ps",        "du",     "stat"}) {
    AddMember(tar, std::string("bin/") + tool, '2', 0777, "", "busybox");
  }
  AddMember(tar, "etc/passwd", '0', 0644,
            "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n");
  AddMember(tar, "etc/group", '0', 0644, "root:x:0:\nagent:x:1000:\n");
  tar.append(1024, '\0');
  return tar;
}

Status LinkBinary(const std::string& directory, const std::string& program) {
  std::string name = directory + program.substr(program.rfind('/'));
  if (PathExists(name)) return OkStatus();
  if (::symlink(program.c_str(), name.c_str()) != 0) return ErrnoError("link " + name);
  return OkStatus();
}

}  // namespace

Status NodeRig::Open() {
  std::string binaries = directory_ + "/bin";
  ESKER_RETURN_IF_ERROR(MakeDirectories(binaries));
  for (const char* program : {ESKER_KEEPER, ESKER_INIT, ESKER_IMAGEFS}) {
    ESKER_RETURN_IF_ERROR(LinkBinary(binaries, program));
  }
  ESKER_RETURN_IF_ERROR(Store::Initialise(directory_ + "/store"));
  ESKER_ASSIGN_OR_RETURN(store_, Store::Open(directory_ + "/store"));
  IndexOptions index;
  index.db_directory = directory_ + "/index";
  index.claimant = "test";
  ESKER_ASSIGN_OR_RETURN(index_, Index::Open(*store_, index));
  if (!index_->ResolveImage("busybox:1").ok()) ESKER_RETURN_IF_ERROR(ImportBusybox());
  options.data_directory = directory_ + "/node";
  options.cache_directory = directory_ + "/cache";
  options.binary_directory = binaries;
  options.node_id = node_id_;
  if (options.upper_pool_bytes == 0) options.upper_pool_bytes = 4ull << 30;
  ESKER_ASSIGN_OR_RETURN(node_, Node::Open(*store_, *index_, options));
  return OkStatus();
}

Status NodeRig::ImportBusybox() {
  ESKER_ASSIGN_OR_RETURN(std::string tar, BusyboxTar());
  StringSource source(std::move(tar));
  std::unique_ptr<ChunkLookup> lookup = index_->StartImport();
  ESKER_ASSIGN_OR_RETURN(ImportedLayer layer, ImportTar(source, *store_, *lookup, {}));
  ESKER_RETURN_IF_ERROR(index_->RegisterPack(layer.pack));
  Manifest manifest;
  manifest.layers = {layer.layer};
  manifest.config.env = {"PATH=/bin:/usr/bin", "FROM_IMAGE=1"};
  manifest.config.architecture = "amd64";
  manifest.config.os = "linux";
  ESKER_ASSIGN_OR_RETURN(ImageId id, index_->PublishImage(manifest));
  return index_->SetTag("busybox:1", id);
}

void NodeRig::Close() {
  node_.reset();
  index_.reset();
  store_.reset();
}

Status NodeRig::Drain() {
  if (node_ == nullptr) return OkStatus();
  Status status = node_->Drain();
  Close();
  return status;
}

void Collector::OnOutput(int stream, uint64_t offset, std::string data, uint64_t lost) {
  std::lock_guard lock(mutex_);
  int i = stream - 1;
  if (offset != next_[i] + lost) in_order_ = false;
  lost_ += lost;
  next_[i] = offset + data.size();
  data_[i] += data;
  owed_ = true;
  if (!held_ && subscription_ != nullptr) {
    owed_ = false;
    subscription_->Ready();
  }
  changed_.notify_all();
}

void Collector::OnExit(const CommandInfo& info) {
  std::lock_guard lock(mutex_);
  exit_ = info;
  changed_.notify_all();
}

void Collector::Follow(std::unique_ptr<CommandSubscription> subscription) {
  std::lock_guard lock(mutex_);
  subscription_ = std::move(subscription);
  if (owed_ && !held_) {
    owed_ = false;
    subscription_->Ready();
  }
}

void Collector::Hold() {
  std::lock_guard lock(mutex_);
  held_ = true;
}

void Collector::Go() {
  std::lock_guard lock(mutex_);
  held_ = false;
  if (owed_ && subscription_ != nullptr) {
    owed_ = false;
    subscription_->Ready();
  }
}

void Collector::Drop() {
  std::unique_ptr<CommandSubscription> subscription;
  {
    std::lock_guard lock(mutex_);
    subscription = std::move(subscription_);
  }
}

Result<CommandInfo> Collector::WaitExit(int timeout_ms) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                         [&] { return exit_.has_value(); })) {
    return DeadlineExceededError("the command did not end");
  }
  return *exit_;
}

Status Collector::WaitBytes(size_t bytes, int timeout_ms) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                        [&] { return data_[0].size() >= bytes; })) {
    return OkStatus();
  }
  return DeadlineExceededError("only " + std::to_string(data_[0].size()) + " bytes came");
}

std::string Collector::out() const {
  std::lock_guard lock(mutex_);
  return data_[0];
}
std::string Collector::err() const {
  std::lock_guard lock(mutex_);
  return data_[1];
}
uint64_t Collector::lost() const {
  std::lock_guard lock(mutex_);
  return lost_;
}
bool Collector::in_order() const {
  std::lock_guard lock(mutex_);
  return in_order_;
}

namespace {

// Calls with a callback, and waits for it.
template <typename T, typename F>
Result<T> Await(F call) {
  auto answer = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> result = answer->get_future();
  call([answer](Result<T> value) { answer->set_value(std::move(value)); });
  if (result.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    return DeadlineExceededError("no answer");
  }
  return result.get();
}

}  // namespace

Result<CommandInfo> Start(Node& node, const std::string& sandbox, const CommandSpec& spec) {
  return Await<CommandInfo>([&](auto done) { node.StartCommand(sandbox, spec, done); });
}

Result<RunResult> RunShell(Node& node, const std::string& sandbox, const std::string& shell) {
  CommandSpec spec;
  spec.shell = shell;
  ESKER_ASSIGN_OR_RETURN(CommandInfo info, Start(node, sandbox, spec));
  Collector collector;
  ESKER_ASSIGN_OR_RETURN(auto subscription, node.Attach(sandbox, info.id, 0, 0, true, &collector));
  collector.Follow(std::move(subscription));
  RunResult result;
  Result<CommandInfo> exit = collector.WaitExit();
  collector.Drop();
  if (!exit.ok()) return std::move(exit).status();
  return RunResult{*exit, collector.out(), collector.err()};
}

Result<bool> Signal(Node& node, const std::string& sandbox, const std::string& command, int signal,
                    bool whole_tree) {
  return Await<bool>(
      [&](auto done) { node.SignalCommand(sandbox, command, signal, whole_tree, done); });
}

Result<uint64_t> SendStdin(Node& node, const std::string& sandbox, const std::string& command,
                           const std::string& data, bool eof, std::optional<uint64_t> offset) {
  return Await<uint64_t>(
      [&](auto done) { node.SendStdin(sandbox, command, data, eof, offset, done); });
}

Result<InitFileResult> FileCall(Node& node, const std::string& sandbox,
                                const InitFileRequest& request, UniqueFd stream) {
  return Await<InitFileResult>(
      [&](auto done) { node.File(sandbox, request, std::move(stream), done); });
}

}  // namespace esker::testing
