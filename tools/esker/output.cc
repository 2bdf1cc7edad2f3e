#include "output.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace esker::cli {
namespace {

std::string Printable(const std::string& text) {
  std::string out;
  for (unsigned char c : text) {
    if (c < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", c);
      out += escaped;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out;
}

}  // namespace

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (status.ok()) std::printf("%s\n", text.c_str());
}

void PrintJson(const nlohmann::json& json) {
  // Text that is not UTF-8 (a file's name, say) is no reason to print nothing.
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
}

void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  std::vector<std::vector<std::string>> cells = rows;
  for (auto& row : cells) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = Printable(row[i]);
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (auto& row : cells) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - row[i].size() + 2, ' ');
    }
    std::printf("%s\n", line.c_str());
  }
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string HumanTime(const google::protobuf::Timestamp& timestamp) {
  if (timestamp.seconds() == 0) return "-";
  time_t seconds = timestamp.seconds();
  std::tm tm = {};
  gmtime_r(&seconds, &tm);
  char text[32];
  std::strftime(text, sizeof(text), "%F %T", &tm);
  return text;
}

std::string ShortId(const std::string& hex) { return hex.substr(0, 12); }

void ProgressLine::Show(const std::string& text) {
  if (quiet_) return;
  bool terminal = ::isatty(2) == 1;
  int64_t now = Clock::System().MonotonicNanos();
  if (now - last_ns_ < (terminal ? 50'000'000 : 2'000'000'000)) return;
  last_ns_ = now;
  std::fprintf(stderr, terminal ? "\r\033[K%s" : "%s\n", text.c_str());
  shown_ = terminal;
}

void ProgressLine::Finish() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace esker::cli
