#include "base/config.h"

#include <algorithm>
#include <set>

#define TOML_EXCEPTIONS 0  // parse errors come back as values
#include <toml++/toml.h>

#include "base/io.h"

namespace esker {

struct Config::Impl {
  toml::table table;
  std::string name;
  std::set<std::string> known;
  std::vector<std::string> wrong_types;

  template <typename T>
  T Get(std::string_view key, T fallback, const char* type) {
    known.emplace(key);
    auto node = table.at_path(key);
    if (!node) return fallback;
    if (auto value = node.template value<T>()) return *value;
    wrong_types.push_back(std::string(key) + " must be " + type);
    return fallback;
  }

  void Collect(const toml::table& from, const std::string& prefix, std::vector<std::string>* out) {
    for (auto&& [key, node] : from) {
      std::string full = prefix + std::string(key.str());
      if (const toml::table* inner = node.as_table()) {
        Collect(*inner, full + ".", out);
      } else {
        out->push_back(full);
      }
    }
  }
};

Config::Config(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Config::~Config() = default;
Config::Config(Config&&) noexcept = default;
Config& Config::operator=(Config&&) noexcept = default;

Config Config::Empty() { return Config(std::make_unique<Impl>()); }

Result<Config> Config::Load(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(std::string text, ReadFileToString(path, 1u << 20));
  return Parse(text, path);
}

Result<Config> Config::Parse(std::string_view text, const std::string& name) {
  toml::parse_result parsed = toml::parse(text, name);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return InvalidArgumentError(name + ":" + std::to_string(error.source().begin.line) + ":" +
                                std::to_string(error.source().begin.column) + ": " +
                                std::string(error.description()));
  }
  auto impl = std::make_unique<Impl>();
  impl->table = std::move(parsed).table();
  impl->name = name;
  return Config(std::move(impl));
}

std::string Config::GetString(std::string_view key, std::string_view fallback) {
  return impl_->Get<std::string>(key, std::string(fallback), "a string");
}
std::vector<std::string> Config::GetStrings(std::string_view key) {
  impl_->known.emplace(key);
  auto node = impl_->table.at_path(key);
  std::vector<std::string> out;
  if (!node) return out;
  if (auto one = node.value<std::string>()) return {*one};
  bool strings = node.is_array();
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& each : *list) {
      auto text = each.value<std::string>();
      strings = strings && text.has_value();
      if (text) out.push_back(*text);
    }
  }
  if (!strings) {
    impl_->wrong_types.push_back(std::string(key) + " must be a string or a list of strings");
  }
  return out;
}
int64_t Config::GetInt(std::string_view key, int64_t fallback) {
  return impl_->Get<int64_t>(key, fallback, "a whole number");
}
double Config::GetDouble(std::string_view key, double fallback) {
  return impl_->Get<double>(key, fallback, "a number");
}
bool Config::GetBool(std::string_view key, bool fallback) {
  return impl_->Get<bool>(key, fallback, "true or false");
}

Status Config::Finish() const {
  if (!impl_->wrong_types.empty()) {
    return InvalidArgumentError(impl_->name + ": " + impl_->wrong_types.front());
  }
  std::vector<std::string> keys;
  impl_->Collect(impl_->table, "", &keys);
  for (const std::string& key : keys) {
    if (impl_->known.contains(key)) continue;
    std::string nearest = NearestWord(key, {impl_->known.begin(), impl_->known.end()});
    return InvalidArgumentError(impl_->name + ": unknown key " + key +
                                (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  }
  return OkStatus();
}

namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace esker
