// esker doctor

#include <cstdio>
#include <nlohmann/json.hpp>

#include "doctor_checks.h"
#include "output.h"
#include "verbs.h"

namespace esker::cli {
namespace {

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWorks:
      return "works";
    case Verdict::kFallsBack:
      return "falls back";
    case Verdict::kMissing:
      return "MISSING";
    case Verdict::kUntried:
      return "not tried";
  }
  return "?";
}

// 0 when nothing is missing.
int Doctor(const GlobalOptions& options, const std::string& data, const std::string& store) {
  std::vector<Finding> findings = RunDoctorChecks(data, store.empty() ? data + "/store" : store);
  int missing = 0;
  std::vector<std::vector<std::string>> rows = {{"WHAT", "VERDICT", "DETAIL"}};
  for (const Finding& finding : findings) {
    missing += finding.verdict == Verdict::kMissing;
    rows.push_back({finding.name, VerdictName(finding.verdict), finding.detail});
    if (options.json) {
      nlohmann::json json = {{"what", finding.name},
                             {"verdict", VerdictName(finding.verdict)},
                             {"detail", finding.detail}};
      std::printf("%s\n",
                  json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    }
  }
  if (!options.json) {
    PrintTable(rows);
    if (missing != 0) std::printf("%d missing: esker serve will not start here\n", missing);
  }
  return missing == 0 ? 0 : 1;
}

}  // namespace

void AddDoctor(CLI::App& app, GlobalOptions& options, Chosen& chosen) {
  struct Arguments {
    std::string data = "/var/lib/esker", store;
  };
  auto args = std::make_shared<Arguments>();
  CLI::App* doctor = app.add_subcommand("doctor", "prove what this machine can do, by doing it");
  doctor->add_option("--data", args->data, "the server's data directory");
  doctor->add_option("--store", args->store, "the store (default DATA/store)");
  doctor->callback([=, &options, &chosen] {
    chosen = [=, &options] { return Doctor(options, args->data, args->store); };
  });
}

}  // namespace esker::cli
