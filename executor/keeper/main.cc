// esker-keeper: started by the server (keeper_start.cc), lives as long as its sandboxes.
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "base/io.h"
#include "base/log.h"
#include "container_child.h"
#include "keeper.h"

namespace esker::keeper {
namespace {

struct Arguments {
  KeeperOptions options;
  int ready_fd = -1;
};

bool Parse(int argc, char** argv, Arguments& out) {
  static const option kOptions[] = {
      {"data", required_argument, nullptr, 'd'},     {"store", required_argument, nullptr, 's'},
      {"cache", required_argument, nullptr, 'c'},    {"bin", required_argument, nullptr, 'b'},
      {"first-id", required_argument, nullptr, 'f'}, {"range", required_argument, nullptr, 'r'},
      {"ready-fd", required_argument, nullptr, 'n'}, {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    std::string value = optarg != nullptr ? optarg : "";
    switch (c) {
      case 'd':
        out.options.data_directory = value;
        break;
      case 's':
        out.options.store_directory = value;
        break;
      case 'c':
        out.options.cache_directory = value;
        break;
      case 'b':
        out.options.binary_directory = value;
        break;
      case 'f':
        out.options.first_host_id = static_cast<uint32_t>(std::atoll(optarg));
        break;
      case 'r':
        out.options.range_size = static_cast<uint32_t>(std::atoll(optarg));
        break;
      case 'n':
        out.ready_fd = std::atoi(optarg);
        break;
      default:
        return false;
    }
  }
  const KeeperOptions& o = out.options;
  for (const std::string& path :
       {o.data_directory, o.store_directory, o.cache_directory, o.binary_directory}) {
    if (path.empty() || path[0] != '/') return false;
  }
  return out.ready_fd >= 0 && o.range_size > 0 && o.first_host_id > 0;
}

// The numbers that a sandbox's init gets are kept free of everything else (BuildPlan).
Result<UniqueFd> ReserveLowDescriptors(int ready_fd) {
  UniqueFd ready(fcntl(ready_fd, F_DUPFD_CLOEXEC, kFirstFreeFd));
  if (!ready.valid()) return ErrnoError("move the readiness pipe");
  ESKER_ASSIGN_OR_RETURN(UniqueFd null, OpenFile("/dev/null", O_RDWR));
  for (int fd = 3; fd < kFirstFreeFd; ++fd) {
    if (fd != null.get() && dup3(null.get(), fd, O_CLOEXEC) < 0) {
      return ErrnoError("reserve descriptor " + std::to_string(fd));
    }
  }
  null.release();  // it is one of those numbers, or a spare
  return ready;
}

// Out of the server's cgroup, so that stopping its service does not kill the sandboxes' parent.
// Best effort: where it is not possible, the service must be stopped with KillMode=process.
void LeaveServerCgroup() {
  Result<std::string> table = ReadFileToString("/proc/self/mountinfo");
  if (!table.ok()) return;
  std::istringstream lines(*table);
  for (std::string line; std::getline(lines, line);) {
    size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    bool unified = line.compare(dash + 3, 8, "cgroup2 ") == 0;
    bool systemd = line.find(",name=systemd", dash) != line.npos;
    if (!unified && !systemd) continue;
    std::istringstream fields(line);
    std::string skip, mountpoint;
    fields >> skip >> skip >> skip >> skip >> mountpoint;
    Status moved = WriteStringToFile(mountpoint + "/cgroup.procs", "0");
    if (!moved.ok()) LogWarning("stay-in-cgroup", {{"error", moved.ToString()}});
  }
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, arguments)) {
    fprintf(stderr,
            "usage: esker-keeper --data DIR --store DIR --cache DIR --bin DIR [--first-id N]\n"
            "         [--range N] --ready-fd N   (absolute paths; started by `esker serve`)\n");
    return 2;
  }
  Result<UniqueFd> ready = ReserveLowDescriptors(arguments.ready_fd);
  if (!ready.ok()) {
    fprintf(stderr, "esker-keeper: %s\n", ready.status().ToString().c_str());
    return 1;
  }
  // Reparented, so that no server has to reap it.
  pid_t pid = fork();
  if (pid != 0) return pid < 0;
  InitLog("esker-keeper");
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  umask(0);
  if (chdir("/") != 0) return 1;
  LeaveServerCgroup();

  Result<std::unique_ptr<Keeper>> keeper = Keeper::Start(arguments.options);
  std::string outcome = keeper.ok() ? "ok" : keeper.status().ToString();
  Status told = WriteFull(ready->get(), outcome.data(), outcome.size());
  if (!keeper.ok() || !told.ok()) {
    LogError("not-started", {{"error", outcome}});
    return 1;  // the pipe closes with the process: whoever waits at it finds nothing left
  }
  ready->reset();
  LogInfo("started", {{"data", arguments.options.data_directory}});
  Status ended = (*keeper)->Run();
  LogInfo("ended", {{"status", ended.ok() ? "ok" : ended.ToString()}});
  return ended.ok() ? 0 : 1;
}

}  // namespace
}  // namespace esker::keeper

int main(int argc, char** argv) { return esker::keeper::Main(argc, argv); }
