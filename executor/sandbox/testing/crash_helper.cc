// A server process to be killed: opens a node, does what it is told, says so, and waits.
//   node_crash_helper DIRECTORY NODE_ID create            -> "ready SANDBOX"
//   node_crash_helper DIRECTORY NODE_ID run SHELL         -> "ready SANDBOX COMMAND"
//   node_crash_helper DIRECTORY NODE_ID snapshot SANDBOX REQUEST
//   node_crash_helper DIRECTORY NODE_ID pause|resume|delete SANDBOX
// Failure points come from ESKER_FAILPOINTS.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "node_rig.h"

namespace esker::testing {
namespace {

Result<std::string> Act(Node& node, const std::string& verb, const std::string& first,
                        const std::string& second) {
  if (verb == "create" || verb == "run") {
    SandboxSpec spec;
    spec.image = "busybox:1";
    spec.idempotency_key = "crash";
    ESKER_ASSIGN_OR_RETURN(SandboxInfo info, node.Create(spec));
    if (verb == "create") return info.id;
    CommandSpec command;
    command.shell = first;
    command.background = true;
    command.request_id = "crash";
    ESKER_ASSIGN_OR_RETURN(CommandInfo started, Start(node, info.id, command));
    return info.id + " " + started.id;
  }
  if (verb == "snapshot") {
    ESKER_ASSIGN_OR_RETURN(SnapshotInfo info, node.Snapshot(first, second, ""));
    return info.image.ToHex();
  }
  if (verb == "pause") {
    ESKER_ASSIGN_OR_RETURN(PauseInfo info, node.Pause(first));
    return info.info.id;
  }
  if (verb == "resume") {
    ESKER_ASSIGN_OR_RETURN(SandboxInfo info, node.Resume(first));
    return info.id;
  }
  if (verb == "delete") {
    ESKER_ASSIGN_OR_RETURN(bool lived, node.Delete(first));
    return std::string(lived ? "lived" : "gone");
  }
  return InvalidArgumentError("no verb " + verb);
}

int Main(int argc, char** argv) {
  if (argc < 4) return 2;
  NodeRig rig(argv[1], argv[2]);
  Status opened = rig.Open();
  Result<std::string> done =
      opened.ok() ? Act(rig.node(), argv[3], argc > 4 ? argv[4] : "", argc > 5 ? argv[5] : "")
                  : Result<std::string>(opened);
  if (!done.ok()) {
    std::printf("failed %s\n", done.status().ToString().c_str());
    std::fflush(stdout);
    rig.Close();
    return 1;
  }
  std::printf("ready %s\n", done->c_str());
  std::fflush(stdout);
  for (;;) ::pause();
}

}  // namespace
}  // namespace esker::testing

int main(int argc, char** argv) { return esker::testing::Main(argc, argv); }
