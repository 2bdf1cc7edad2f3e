// What the CLI prints: tables for people, JSON for programs.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace esker::cli {

// One line of JSON with the proto's field names.
void PrintJson(const google::protobuf::Message& message);
void PrintJson(const nlohmann::json& json);
// Columns padded to their widest cell; the first row is the heading. Control bytes are escaped.
void PrintTable(const std::vector<std::vector<std::string>>& rows);

std::string HumanBytes(uint64_t bytes);                               // "12.3 MiB"
std::string HumanTime(const google::protobuf::Timestamp& timestamp);  // "2026-11-30 16:18:51", UTC
std::string ShortId(const std::string& hex);                          // first 12 digits

// One changing line on standard error when it is a terminal, else a line every few seconds.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet) : quiet_(quiet) {}
  void Show(const std::string& text);
  void Finish();

 private:
  const bool quiet_;
  int64_t last_ns_ = 0;
  bool shown_ = false;
};

}  // namespace esker::cli
