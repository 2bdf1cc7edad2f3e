#include "testing/fault_rules.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <random>
#include <sstream>

#include "base/io.h"

namespace esker::testing {
namespace {

const std::map<std::string_view, std::vector<FaultOperation>>& Operations() {
  using enum FaultOperation;
  static const std::map<std::string_view, std::vector<FaultOperation>> operations{
      {"read", {kRead}},
      {"write", {kWrite}},
      {"open", {kOpen}},
      {"lookup", {kLookup}},
      {"list", {kList}},
      {"create", {kCreate}},
      {"link", {kLink}},
      {"unlink", {kUnlink}},
      {"sync", {kSync}},
      {"names", {kNames}},
      {"modify", {kWrite, kCreate, kLink, kUnlink, kSync}},
      {"any", {kRead, kWrite, kOpen, kLookup, kList, kCreate, kLink, kUnlink, kSync}}};
  return operations;
}

bool ParseNumber(std::string_view text, int* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out >= 0;
}

bool ParseError(std::string_view name, int* out) {
  static const std::map<std::string_view, int> errors{
      {"EIO", EIO},       {"ENOENT", ENOENT}, {"ENOSPC", ENOSPC}, {"EROFS", EROFS},
      {"ESTALE", ESTALE}, {"EDQUOT", EDQUOT}, {"EACCES", EACCES}};
  auto found = errors.find(name);
  if (found == errors.end()) return ParseNumber(name, out) && *out > 0;
  *out = found->second;
  return true;
}

bool ParseFault(const std::string& word, FaultRule* rule) {
  const std::string_view value =
      std::string_view(word).substr(std::min(word.size(), word.find('=') + 1));
  if (word == "hang") {
    rule->faults.hang = true;
  } else if (word == "short") {
    rule->faults.make_short = true;
  } else if (word == "cut") {
    rule->faults.cut = true;
  } else if (word == "flip") {
    rule->faults.flip = true;
  } else if (word.starts_with("delay=")) {
    return ParseNumber(value, &rule->faults.delay_ms);
  } else if (word.starts_with("errno=")) {
    return ParseError(value, &rule->faults.error);
  } else if (word.starts_with("p=")) {
    auto [end, error] =
        std::from_chars(value.data(), value.data() + value.size(), rule->probability);
    return error == std::errc() && end == value.data() + value.size();
  } else {
    return false;
  }
  return true;
}

bool Happens(double probability) {
  if (probability >= 1) return true;
  thread_local std::mt19937_64 random{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(random) < probability;
}

}  // namespace

Result<std::vector<FaultRule>> ParseFaultRules(std::string_view text) {
  std::vector<FaultRule> rules;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string operation, word;
    if (!(words >> operation)) continue;
    FaultRule rule;
    auto found = Operations().find(operation);
    bool ok = found != Operations().end() && static_cast<bool>(words >> rule.pattern);
    if (ok) rule.operations = found->second;
    int faults = 0;
    while (ok && words >> word) {
      ok = ParseFault(word, &rule);
      ++faults;
    }
    if (!ok || faults == 0) {
      return InvalidArgumentError("fault rule in line " + std::to_string(number) + ": " + line);
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

void FaultRules::Reload() {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) {
    rules_.clear();
    version_ = {0, 0};
    return;
  }
  const std::pair<uint64_t, int64_t> version{
      status.st_ino, status.st_ctim.tv_sec * 1'000'000'000 + status.st_ctim.tv_nsec};
  if (version == version_) return;
  Result<std::string> text = ReadFileToString(path_);
  Result<std::vector<FaultRule>> rules =
      text.ok() ? ParseFaultRules(*text) : Result<std::vector<FaultRule>>(text.status());
  version_ = version;
  if (rules.ok()) {
    rules_ = std::move(*rules);
    return;
  }
  FaultRule broken;
  broken.operations = Operations().at("any");
  broken.pattern = "*";
  broken.faults.error = ENOTRECOVERABLE;
  rules_ = {broken};
}

Faults FaultRules::For(FaultOperation operation, std::string_view path) {
  std::lock_guard lock(mutex_);
  Reload();
  Faults out;
  const std::string name(path);
  for (const FaultRule& rule : rules_) {
    if (std::find(rule.operations.begin(), rule.operations.end(), operation) ==
        rule.operations.end()) {
      continue;
    }
    if (::fnmatch(rule.pattern.c_str(), name.c_str(), 0) != 0 || !Happens(rule.probability)) {
      continue;
    }
    const Faults& fault = rule.faults;
    out.delay_ms += fault.delay_ms;
    out.hang = out.hang || fault.hang;
    out.make_short = out.make_short || fault.make_short;
    out.cut = out.cut || fault.cut;
    out.flip = out.flip || fault.flip;
    if (out.error == 0) out.error = fault.error;
  }
  return out;
}

}  // namespace esker::testing
