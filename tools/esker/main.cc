// esker: the command line of Esker.

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "verbs.h"
#include "version.h"

namespace {

// `exec SANDBOX -- PROGRAM` : the parser would hand what follows "--" to the application, not to
// exec, which takes everything after SANDBOX anyway.
std::vector<char*> WithoutSeparator(int argc, char** argv) {
  std::vector<char*> words(argv, argv + argc);
  auto exec = std::find(words.begin(), words.end(), std::string_view("exec"));
  auto separator = std::find(exec, words.end(), std::string_view("--"));
  if (separator != words.end()) words.erase(separator);
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  // A closed pipe is an error to report, not a reason to die.
  ::signal(SIGPIPE, SIG_IGN);
  // The Python SDK sets this, and programs that start us from Python hand it on. We never fork
  // without exec, and gRPC 1.51 crashes with it when a process's last channel ends.
  ::setenv("GRPC_ENABLE_FORK_SUPPORT", "0", 1);

  esker::cli::GlobalOptions options;
  esker::cli::Chosen chosen;
  CLI::App app{"Esker: sandboxes for agents, from lazily loaded images"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "esker " ESKER_VERSION);
  app.fallthrough();
  const char* address = std::getenv("ESKER_ADDRESS");
  const char* key = std::getenv("ESKER_API_KEY");
  options.address = address != nullptr ? address : "unix:/var/lib/esker/run/esker.sock";
  options.key = key != nullptr ? key : "";
  app.add_option("--address", options.address,
                 "server: unix:/path/to/esker.sock or HOST:PORT (env ESKER_ADDRESS)")
      ->take_last();
  app.add_option("--key", options.key, "API key, needed with HOST:PORT (env ESKER_API_KEY)")
      ->take_last();
  app.add_flag("--json", options.json, "print JSON, one object a line");

  esker::cli::AddServe(app, options, chosen);
  esker::cli::AddDoctor(app, options, chosen);
  esker::cli::AddImage(app, options, chosen);
  esker::cli::AddSandbox(app, options, chosen);
  esker::cli::AddSnapshot(app, options, chosen);
  esker::cli::AddAdmin(app, options, chosen);
  std::vector<char*> words = WithoutSeparator(argc, argv);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& error) {
    const bool help = error.get_exit_code() == 0;
    // The parser may have ended before it came to the option.
    options.json = options.json ||
                   std::find(words.begin(), words.end(), std::string_view("--json")) != words.end();
    if (help || !options.json) return app.exit(error) == 0 ? 0 : 2;
    return esker::cli::ReportFailure(options, esker::InvalidArgumentError(error.what()));
  }
  return chosen();
}
