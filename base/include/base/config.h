// TOML configuration where every key must be known.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace esker {

// Usage: load, read every key the program knows (dotted names, "node.max_sandboxes"), then
// Finish(): a key in the file that was never read is an error that names the nearest known one. A
// wrong type is remembered and reported by Finish() too. Thread-compatible.
class Config {
 public:
  // NOT_FOUND if there is no such file; INVALID_ARGUMENT with line and column if it is not TOML.
  static Result<Config> Load(const std::string& path);
  static Result<Config> Parse(std::string_view toml, const std::string& name);
  static Config Empty();
  ~Config();
  Config(Config&&) noexcept;
  Config& operator=(Config&&) noexcept;

  std::string GetString(std::string_view key, std::string_view fallback);
  // A list, or one string as a list of one; empty without the key.
  std::vector<std::string> GetStrings(std::string_view key);
  int64_t GetInt(std::string_view key, int64_t fallback);
  double GetDouble(std::string_view key, double fallback);
  bool GetBool(std::string_view key, bool fallback);

  Status Finish() const;

 private:
  struct Impl;
  explicit Config(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The candidate with the least edit distance to `word`, "" if none is near (distance over a third
// of its length). For "did you mean".
std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace esker
