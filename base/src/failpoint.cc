#include "base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

namespace esker {
namespace {

struct Action {
  bool kill = false;
  int error = 0;
  int countdown = 1;
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, Action, std::less<>> armed;
  std::set<std::string, std::less<>> hit;
  std::atomic<bool> active{false};
};

Result<Action> ParseAction(std::string_view text) {
  Action action;
  if (size_t at = text.find('@'); at != text.npos) {
    std::string_view count = text.substr(at + 1);
    auto [end, ec] = std::from_chars(count.data(), count.data() + count.size(), action.countdown);
    if (ec != std::errc() || end != count.data() + count.size() || action.countdown < 1) {
      return InvalidArgumentError("failure point: bad count in " + std::string(text));
    }
    text = text.substr(0, at);
  }
  if (text == "kill") {
    action.kill = true;
    return action;
  }
  if (text.starts_with("error:")) {
    std::string_view number = text.substr(6);
    auto [end, ec] = std::from_chars(number.data(), number.data() + number.size(), action.error);
    if (ec == std::errc() && end == number.data() + number.size() && action.error > 0)
      return action;
  }
  return InvalidArgumentError("failure point: want kill or error:ERRNO, got " + std::string(text));
}

Status Arm(Registry& registry, std::string_view specification) {
  std::map<std::string, Action, std::less<>> armed;
  bool record = false;
  while (!specification.empty()) {
    size_t comma = specification.find(',');
    std::string_view item = specification.substr(0, comma);
    specification = comma == specification.npos ? "" : specification.substr(comma + 1);
    if (item == "record") {
      record = true;
      continue;
    }
    size_t equals = item.find('=');
    if (equals == item.npos) {
      return InvalidArgumentError("failure point: want name=action, got " + std::string(item));
    }
    ESKER_ASSIGN_OR_RETURN(Action action, ParseAction(item.substr(equals + 1)));
    armed.emplace(item.substr(0, equals), action);
  }
  std::lock_guard lock(registry.mutex);
  registry.active = record || !armed.empty();
  registry.armed = std::move(armed);
  registry.hit.clear();
  return OkStatus();
}

Registry& GetRegistry() {
  static Registry* registry = [] {
    auto* r = new Registry;
    if (const char* text = std::getenv("ESKER_FAILPOINTS")) {
      // A mistyped specification must not pass for "no failure injected".
      if (!Arm(*r, text).ok()) std::abort();
    }
    return r;
  }();
  return *registry;
}

}  // namespace

Status HitFailPoint(std::string_view name) {
  Registry& registry = GetRegistry();
  if (!registry.active.load(std::memory_order_relaxed)) return OkStatus();
  std::lock_guard lock(registry.mutex);
  registry.hit.emplace(name);
  auto it = registry.armed.find(name);
  if (it == registry.armed.end() || --it->second.countdown > 0) return OkStatus();
  Action action = it->second;
  registry.armed.erase(it);
  if (action.kill) ::kill(::getpid(), SIGKILL);
  return Status::FromErrno(action.error, "failure point " + std::string(name));
}

Status ArmFailPoints(std::string_view specification) { return Arm(GetRegistry(), specification); }

std::vector<std::string> HitFailPoints() {
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  return {registry.hit.begin(), registry.hit.end()};
}

}  // namespace esker
