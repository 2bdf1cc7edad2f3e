#include "leak_check.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "base/io.h"

namespace esker::testing {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string ReadLink(const std::string& path) {
  char target[PATH_MAX];
  ssize_t n = ::readlink(path.c_str(), target, sizeof(target));
  return n < 0 ? "" : std::string(target, static_cast<size_t>(n));
}

std::vector<std::string> Names(const std::string& directory) {
  Result<std::vector<std::string>> names = ListDirectory(directory);
  return names.ok() ? *names : std::vector<std::string>();
}

bool IsNumber(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// "socket:[123]" for what has no path.
std::set<std::string> OpenDescriptors() {
  std::set<std::string> found;
  for (const std::string& number : Names("/proc/self/fd")) {
    std::string target = ReadLink("/proc/self/fd/" + number);
    if (!target.empty()) found.insert(number + " -> " + target);
  }
  return found;
}

}  // namespace

LeakCheck::LeakCheck(std::string directory)
    : directory_(std::move(directory)), descriptors_(OpenDescriptors()) {}

std::vector<std::string> LeakCheck::Remains(int timeout_ms) const {
  int64_t deadline = Clock::System().MonotonicNanos() + int64_t{timeout_ms} * 1'000'000;
  for (;;) {
    std::vector<std::string> remains = LookOnce();
    if (remains.empty() || Clock::System().MonotonicNanos() >= deadline) return remains;
    ::poll(nullptr, 0, 20);
  }
}

std::vector<std::string> LeakCheck::LookOnce() const {
  std::vector<std::string> remains;
  LookAtMounts(remains);
  LookAtLoopDevices(remains);
  LookAtProcesses(remains);
  LookAtCgroups(remains);
  LookAtDescriptors(remains);
  return remains;
}

void LeakCheck::LookAtMounts(std::vector<std::string>& out) const {
  std::istringstream lines(ReadAll("/proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    if (line.find(directory_) != line.npos) out.push_back("mount: " + line);
  }
}

void LeakCheck::LookAtLoopDevices(std::vector<std::string>& out) const {
  for (const std::string& name : Names("/sys/block")) {
    if (!name.starts_with("loop")) continue;
    std::string file = ReadAll("/sys/block/" + name + "/loop/backing_file");
    if (file.starts_with(directory_)) out.push_back("loop device: " + name + " on " + file);
  }
}

void LeakCheck::LookAtProcesses(std::vector<std::string>& out) const {
  for (const std::string& pid : Names("/proc")) {
    if (!IsNumber(pid) || pid == std::to_string(::getpid())) continue;
    std::string command = ReadAll("/proc/" + pid + "/cmdline");
    std::string groups = ReadAll("/proc/" + pid + "/cgroup");
    bool ours = command.find(directory_) != command.npos ||
                ReadLink("/proc/" + pid + "/cwd").starts_with(directory_);
    for (const std::string& name : cgroups_) ours = ours || groups.find(name) != groups.npos;
    if (!ours) continue;
    std::replace(command.begin(), command.end(), '\0', ' ');
    out.push_back("process: " + pid + " " + command);
  }
}

void LeakCheck::LookAtCgroups(std::vector<std::string>& out) const {
  if (cgroups_.empty()) return;
  std::error_code error;
  auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator it("/sys/fs/cgroup", options, error), end;
       !error && it != end; it.increment(error)) {
    if (!it->is_directory(error)) continue;
    std::string path = it->path().string();
    for (const std::string& name : cgroups_) {
      if (path.find(name) != path.npos) out.push_back("cgroup: " + path);
    }
  }
}

void LeakCheck::LookAtDescriptors(std::vector<std::string>& out) const {
  for (const std::string& one : OpenDescriptors()) {
    // The listing's own descriptor is closed by now.
    if (!descriptors_.contains(one) && one.find("/proc/") == one.npos) {
      out.push_back("descriptor: " + one);
    }
  }
}

void LeakCheckedTest::SetUp() {
  Result<TempDir> directory = TempDir::Create();
  ASSERT_TRUE(directory.ok()) << directory.status().ToString();
  directory_ = std::make_unique<TempDir>(std::move(*directory));
  leaks_ = std::make_unique<LeakCheck>(directory_->path());
}

void LeakCheckedTest::TearDown() {
  if (leaks_ == nullptr) return;
  for (const std::string& one : leaks_->Remains()) ADD_FAILURE() << "left behind: " << one;
  Status removed = directory_->Remove();
  EXPECT_TRUE(removed.ok()) << removed.ToString();
}

}  // namespace esker::testing
