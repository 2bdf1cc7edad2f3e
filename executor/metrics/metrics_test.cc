#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "base/io.h"
#include "executor/metrics_server.h"
#include "executor/node_metrics.h"

namespace esker {
namespace {

// A reader of the text format that takes nothing but what its specification allows.
class StrictReader {
 public:
  struct Sample {
    std::string family, labels;
    double value = 0;
  };

  explicit StrictReader(const std::string& text) {
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(text.back(), '\n');
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) ReadLine(line);
    for (const auto& [name, type] : types_) {
      if (type == "histogram") CheckHistogram(name);
    }
  }
  bool Has(const std::string& sample) const { return samples_.contains(sample); }
  double Value(const std::string& sample) const {
    auto found = samples_.find(sample);
    EXPECT_NE(found, samples_.end()) << sample;
    return found == samples_.end() ? NAN : found->second;
  }
  const std::map<std::string, std::string>& types() const { return types_; }
  const std::set<std::string>& helped() const { return helped_; }

 private:
  void ReadLine(const std::string& line) {
    static const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (([^\\]|\\\\|\\n)*))");
    static const std::regex type(
        R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram|summary|untyped))");
    static const std::regex sample(
        R"(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(.*)\})? ([-+]?[0-9][0-9.eE+-]*|\+Inf|-Inf|NaN))");
    static const std::regex labels(
        R"re((le|[a-zA-Z_][a-zA-Z0-9_]*)="([^"\\\n]|\\\\|\\"|\\n)*"(,[a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\\\|\\"|\\n)*")*)re");
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      EXPECT_TRUE(helped_.insert(match[1]).second) << "second HELP: " << line;
      return;
    }
    if (std::regex_match(line, match, type)) {
      EXPECT_TRUE(types_.emplace(match[1], match[2]).second) << "second TYPE: " << line;
      current_ = match[1];
      return;
    }
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    const std::string name = match[1];
    if (match[2].matched) {
      const std::string inside = match[3];
      EXPECT_TRUE(std::regex_match(inside, labels)) << line;
    }
    std::string family = name;
    if (!types_.contains(family))
      family = std::regex_replace(name, std::regex("_(bucket|sum|count)$"), "");
    EXPECT_EQ(family, current_) << "a sample outside its family: " << line;
    if (types_[family] == "counter") {
      EXPECT_TRUE(name.ends_with("_total")) << line;
    }
    const std::string value = match[4];
    const std::string key = name + match[2].str();
    EXPECT_TRUE(samples_.emplace(key, std::strtod(value.c_str(), nullptr)).second)
        << "series twice: " << line;
    order_[family].push_back({family, key, samples_[key]});
  }
  void CheckHistogram(const std::string& name) {
    double last = 0;
    bool ended = true;
    for (const Sample& sample : order_[name]) {
      if (sample.labels.starts_with(name + "_bucket")) {
        if (ended) last = 0;
        ended = sample.labels.find("le=\"+Inf\"") != std::string::npos;
        EXPECT_GE(sample.value, last) << sample.labels << ": not cumulative";
        last = sample.value;
        if (ended) infinite_[name].push_back(sample.value);
      }
    }
    EXPECT_TRUE(ended) << name << ": no +Inf bucket";
  }

  std::string current_;
  std::map<std::string, std::string> types_;
  std::set<std::string> helped_;
  std::map<std::string, double> samples_;
  std::map<std::string, std::vector<Sample>> order_;
  std::map<std::string, std::vector<double>> infinite_;
};

NodeMetrics Full() {
  NodeMetrics m;
  m.node_id = "odd \"name\"\\\nof a node";  // an operator's, but escaped all the same
  m.sandboxes = {{"creating", 1}, {"ending", 0}, {"paused", 2}, {"running", 3}};
  m.creates = 7;
  LatencyHistogram latency;
  for (int64_t ms : {1, 2, 30, 400, 100'000}) latency.Add(ms * 1'000'000);
  m.create_latency = latency.Counts();
  m.ends = {{"DELETED", 4}, {"OOM", 1}};
  m.commands_ended = {{"exited_zero", 5}, {"killed", 1}};
  m.uppers = UpperSpace{100, 50};
  m.index = Index::Stats();
  m.blob_server.emplace();
  m.blob_server->counts.bytes_asked = 1ull << 53;
  m.blob_server->cached_reads = latency.Counts();
  m.blob_server->fetched_reads = LatencyHistogram().Counts();
  m.blob_server->cache = CacheStats{1, 2, 3, 4, 5};
  for (int i = 0; i < 3; ++i) {
    BlobStats blob;
    blob.id.digest.bytes[0] = static_cast<uint8_t>(i);
    m.blob_server->blobs.push_back(blob);
  }
  return m;
}

TEST(Metrics, AreWhatAStrictReaderTakes) {
  StrictReader reader(MetricsText(Full()));
  EXPECT_EQ(reader.Value("esker_sandboxes{state=\"running\"}"), 3);
  EXPECT_EQ(reader.Value("esker_sandbox_creates_total"), 7);
  EXPECT_EQ(reader.Value("esker_sandbox_create_seconds_count"), 5);
  EXPECT_EQ(reader.Value("esker_sandbox_create_seconds_bucket{le=\"+Inf\"}"), 5);
  EXPECT_EQ(reader.Value("esker_sandbox_create_seconds_bucket{le=\"0.001\"}"), 1);
  EXPECT_NEAR(reader.Value("esker_sandbox_create_seconds_sum"), 100.433, 1e-3);
  EXPECT_EQ(reader.Value("esker_blob_server_up"), 1);
  EXPECT_EQ(reader.Value("esker_top_blob_read_bytes_total{blob=\"0200000000000000\"}"), 0);
  EXPECT_TRUE(reader.Has("esker_node_info{node=\"odd \\\"name\\\"\\\\\\nof a node\"}"));
  for (const auto& [name, type] : reader.types()) EXPECT_TRUE(reader.helped().contains(name));
}

TEST(Metrics, WithoutABlobServerAndAnIndexTheRestIsThere) {
  NodeMetrics m = Full();
  m.blob_server.reset();
  m.index.reset();
  m.uppers.reset();
  StrictReader reader(MetricsText(m));
  EXPECT_EQ(reader.Value("esker_blob_server_up"), 0);
  EXPECT_FALSE(reader.Has("esker_blob_reads_total"));
  EXPECT_EQ(reader.Value("esker_sandboxes{state=\"paused\"}"), 2);
}

TEST(Metrics, EveryOneIsInTheManual) {
  Result<std::string> manual = ReadFileToString(ESKER_OPERATIONS_MANUAL, 1 << 20);
  ASSERT_TRUE(manual.ok()) << manual.status().ToString();
  const StrictReader reader(MetricsText(Full()));
  for (const auto& [name, type] : reader.types()) {
    EXPECT_NE(manual->find("`" + name + "`"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace esker
