// The CLI's verbs. Each Add function declares its sub-commands on the application; the function
// that a parsed command line chose is left in `Chosen` and returns the process's exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "client.h"

namespace esker::cli {

using Chosen = std::function<int()>;

// A sub-command's callback that leaves `work` in `chosen`: 0 when it succeeds, else its failure is
// reported.
inline std::function<void()> Choose(const GlobalOptions& options, Chosen& chosen,
                                    std::function<Status()> work) {
  return [&options, &chosen, work = std::move(work)] {
    chosen = [&options, work] {
      Status status = work();
      return status.ok() ? 0 : ReportFailure(options, status);
    };
  };
}

void AddServe(CLI::App& app, GlobalOptions& options, Chosen& chosen);
void AddDoctor(CLI::App& app, GlobalOptions& options, Chosen& chosen);
void AddImage(CLI::App& app, GlobalOptions& options, Chosen& chosen);
void AddImageExport(CLI::App& image, GlobalOptions& options, Chosen& chosen);
void AddImageSync(CLI::App& image, GlobalOptions& options, Chosen& chosen);
void AddSandbox(CLI::App& app, GlobalOptions& options, Chosen& chosen);
void AddSnapshot(CLI::App& app, GlobalOptions& options, Chosen& chosen);
void AddAdmin(CLI::App& app, GlobalOptions& options,
              Chosen& chosen);  // gc, index, key, status, version

}  // namespace esker::cli
