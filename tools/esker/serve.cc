// esker serve: index, node and gateway in one process.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/config.h"
#include "base/digest.h"
#include "base/io.h"
#include "base/log.h"
#include "base/socket.h"
#include "executor/host_features.h"
#include "executor/metrics_server.h"
#include "executor/upper_store.h"
#include "gateway/gateway.h"
#include "serve_index.h"
#include "verbs.h"
#include "version.h"

namespace esker::cli {
namespace {

struct ServeOptions {
  std::string config_path;
  std::string data;
  std::string store;
  std::string listen;
  std::string roles;
  std::string index;         // HOST:PORT of the index elsewhere
  std::string index_listen;  // HOST:PORT for other nodes
  bool take_over = false;
  bool drain = false;
};

struct ServerConfig {
  Roles roles;
  NodeOptions node;
  IndexSettings index;
  GatewayOptions gateway;
  std::string data, store;
  std::string metrics_listen;
  LogLevel log_level = LogLevel::kInfo;
};

// For whom no address was chosen, a port that another server has is no reason not to start.
constexpr std::string_view kAutoMetrics = "auto";
constexpr const char* kDefaultMetrics = "127.0.0.1:7071";

Result<LogLevel> ParseLogLevel(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return InvalidArgumentError("log.level must be debug, info, warning or error, not " + name);
}

std::string OwnDirectory() {
  char path[4096];
  ssize_t n = ::readlink("/proc/self/exe", path, sizeof(path));
  std::string text(path, n > 0 ? static_cast<size_t>(n) : 0);
  return text.substr(0, text.rfind('/'));
}

std::string Absolute(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  char cwd[4096];
  return ::getcwd(cwd, sizeof(cwd)) == nullptr ? path : std::string(cwd) + "/" + path;
}

// A size in MiB from the configuration, as bytes.
Result<uint64_t> GetMebibytes(Config& file, std::string_view key, int64_t fallback) {
  int64_t value = file.GetInt(key, fallback);
  constexpr int64_t kMost = int64_t{1} << 40;  // an exbibyte
  if (value >= 0 && value <= kMost) return static_cast<uint64_t>(value) << 20;
  return InvalidArgumentError(std::string(key) + " = " + std::to_string(value) +
                              " is out of range (0 to " + std::to_string(kMost) + " MiB)");
}

// A whole number from the configuration within bounds.
Result<int64_t> GetBounded(Config& file, std::string_view key, int64_t fallback, int64_t least,
                           int64_t most) {
  int64_t value = file.GetInt(key, fallback);
  if (value >= least && value <= most) return value;
  return InvalidArgumentError(std::string(key) + " = " + std::to_string(value) +
                              " is out of range (" + std::to_string(least) + " to " +
                              std::to_string(most) + ")");
}

// Command line before file before default. Every key that the file may have is read here.
Result<ServerConfig> LoadConfig(const ServeOptions& options) {
  Config file = Config::Empty();
  if (!options.config_path.empty()) {
    ESKER_ASSIGN_OR_RETURN(file, Config::Load(options.config_path));
  }
  ServerConfig c;
  auto pick = [&](const std::string& flag, std::string_view key, const std::string& fallback) {
    std::string from_file = file.GetString(key, fallback);
    return flag.empty() ? from_file : flag;
  };
  c.data = Absolute(pick(options.data, "data", "/var/lib/esker"));
  c.store = Absolute(pick(options.store, "store", c.data + "/store"));
  c.gateway.listen = pick(options.listen, "gateway.listen", "127.0.0.1:7070");
  c.gateway.unix_socket = file.GetString("gateway.unix_socket", c.data + "/run/esker.sock");
  c.gateway.keys_file = file.GetString("gateway.keys_file", c.data + "/keys");
  c.gateway.version = ESKER_VERSION;
  constexpr int64_t kYear = 366 * 86400;
  ESKER_ASSIGN_OR_RETURN(int64_t grace, GetBounded(file, "index.gc_grace_seconds", 3600, 0, kYear));
  c.gateway.default_gc_grace_ms = grace * 1000;
  ESKER_ASSIGN_OR_RETURN(c.roles, Roles::Parse(pick(options.roles, "roles", "all")));
  ESKER_ASSIGN_OR_RETURN(c.index, LoadIndexSettings(file, c.data, c.roles, options.index_listen,
                                                    options.index, options.take_over));
  c.node.data_directory = c.data + "/node";
  c.node.cache_directory = c.data + "/cache";
  for (const std::string& directory : file.GetStrings("node.cache")) {
    c.node.cache_directories.push_back(Absolute(directory));
  }
  if (file.GetInt("node.cache_mb", -1) != -1) {
    ESKER_ASSIGN_OR_RETURN(c.node.cache_budget_bytes, GetMebibytes(file, "node.cache_mb", 0));
  }
  c.node.binary_directory = file.GetString("node.programs", OwnDirectory());
  c.node.node_id = file.GetString("node.id", "");
  ESKER_ASSIGN_OR_RETURN(int64_t most, GetBounded(file, "node.max_sandboxes", 3000, 1, 100'000));
  c.node.max_sandboxes = static_cast<uint32_t>(most);
  ESKER_ASSIGN_OR_RETURN(c.node.default_memory_bytes, GetMebibytes(file, "node.memory_mb", 512));
  ESKER_ASSIGN_OR_RETURN(c.node.default_disk_bytes, GetMebibytes(file, "node.disk_mb", 10240));
  ESKER_ASSIGN_OR_RETURN(int64_t pids, GetBounded(file, "node.pids", 1024, 16, 4'000'000));
  c.node.default_pids = static_cast<uint64_t>(pids);
  ESKER_ASSIGN_OR_RETURN(int64_t ttl, GetBounded(file, "node.ttl_seconds", 3600, 1, kYear));
  c.node.default_ttl_ms = ttl * 1000;
  ESKER_ASSIGN_OR_RETURN(c.node.upper_pool_bytes, GetMebibytes(file, "node.upper_pool_mb", 0));
  c.node.upper_kind = file.GetString("node.upper", "auto");
  c.metrics_listen = file.GetString("metrics.listen", std::string(kAutoMetrics));
  ESKER_ASSIGN_OR_RETURN(c.log_level, ParseLogLevel(file.GetString("log.level", "info")));
  ESKER_RETURN_IF_ERROR(file.Finish());
  ESKER_RETURN_IF_ERROR(CheckListenAddress(c.gateway));
  c.index.node_id = c.node.node_id;
  return c;
}

// One server per data directory. The lock goes with the process, however it ends.
Result<UniqueFd> LockData(const std::string& data) {
  ESKER_RETURN_IF_ERROR(MakeDirectories(data));
  ESKER_ASSIGN_OR_RETURN(UniqueFd lock, OpenFile(data + "/lock", O_RDWR | O_CREAT, 0600));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) {
    return FailedPreconditionError("another esker server is running on " + data +
                                   "; stop it, or choose another --data directory");
  }
  return ErrnoError("lock " + data + "/lock");
}

// Before anything is started or changed. The lock on the data directory is held, so the probing has
// its names for itself, and clears what one that was killed has left.
Status CheckHost(const ServerConfig& config) {
  HostProbe probe;
  probe.directory = config.data + "/run/probe";
  probe.cgroup = "esker-probe-" + Sha256::Of(config.data).ToHex().substr(0, 12);
  probe.needs_btrfs = UpperStore::NeedsBtrfs(
      config.node.data_directory + "/uppers",
      config.node.upper_kind == "btrfs" ? UpperKind::kBtrfs : UpperKind::kAuto);
  ESKER_ASSIGN_OR_RETURN(std::vector<Finding> findings, RequireHost(probe));
  for (const Finding& finding : findings) {
    if (finding.verdict != Verdict::kFallsBack) continue;
    LogWarning("falls_back", {{"feature", finding.name}, {"cost", finding.detail}});
  }
  return OkStatus();
}

// Only the index makes a store: a node that finds none has been given another path.
Result<std::unique_ptr<Store>> OpenOrMakeStore(const std::string& path, const Roles& roles) {
  if (!roles.index) return Store::Open(path);
  if (!PathExists(path + "/format")) {
    ESKER_RETURN_IF_ERROR(MakeDirectories(path));
    ESKER_RETURN_IF_ERROR(Store::Initialise(path));
  }
  return Store::Open(path);
}

void RaiseDescriptorLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    LogWarning("could not raise the descriptor limit", {{"hard", limit.rlim_max}});
  }
}

// The service manager's readiness protocol (sd_notify(3)): a datagram to $NOTIFY_SOCKET.
void NotifyReady() {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address = {};
  if (path == nullptr || std::strlen(path) >= sizeof(address.sun_path)) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, std::strlen(path));
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  ssize_t ignored = ::sendto(socket.get(), "READY=1", 7, MSG_NOSIGNAL,
                             reinterpret_cast<sockaddr*>(&address), size);
  (void)ignored;  // nobody waits for it, or the manager's own time-out says so
}

class SignalWaiter {
 public:
  // Before any thread exists, so that all inherit the mask.
  SignalWaiter() {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGTERM);
    ::sigaddset(&set_, SIGINT);
    ::sigprocmask(SIG_BLOCK, &set_, nullptr);
  }
  int Wait() {
    int signal = 0;
    while (::sigwait(&set_, &signal) != 0) {
    }
    return signal;
  }

 private:
  sigset_t set_;
};

// Nothing: none are served.
Result<std::unique_ptr<MetricsServer>> StartMetrics(const std::string& listen, Node& node) {
  if (listen.empty()) return std::unique_ptr<MetricsServer>();
  const bool automatic = listen == kAutoMetrics;
  auto metrics = MetricsServer::Start(automatic ? kDefaultMetrics : listen, node);
  if (metrics.ok()) {
    LogInfo("metrics served", {{"port", (*metrics)->port()}});
  } else if (automatic) {
    LogWarning("no metrics are served", {{"cause", metrics.status().ToString()}});
    return std::unique_ptr<MetricsServer>();
  }
  return metrics;
}

// An index without a node: there is nothing but to wait.
Status ServeIndex(const ServerConfig& config, Index& index, SignalWaiter& signals) {
  index.EnableGc();
  LogInfo("ready", {{"index", config.index.listen}, {"store", config.store}});
  NotifyReady();
  LogInfo("stopping", {{"signal", signals.Wait()}});
  return OkStatus();
}

Status Serve(const ServeOptions& options) {
  if (::geteuid() != 0) {
    return PermissionDeniedError(
        "esker serve must run as root: it mounts file systems and makes "
        "namespaces and cgroups");
  }
  ESKER_ASSIGN_OR_RETURN(ServerConfig config, LoadConfig(options));
  InitLog("esker", config.log_level);
  SignalWaiter signals;
  RaiseDescriptorLimit();
  ESKER_ASSIGN_OR_RETURN(UniqueFd lock, LockData(config.data));
  ESKER_RETURN_IF_ERROR(MakeDirectories(config.data + "/run"));
  if (config.roles.node) ESKER_RETURN_IF_ERROR(CheckHost(config));
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, OpenOrMakeStore(config.store, config.roles));
  if (options.drain) config.index.listen.clear();  // nobody is to begin anything
  ESKER_ASSIGN_OR_RETURN(IndexParts parts, OpenIndex(*store, config.roles, config.index));
  if (!config.roles.node) return ServeIndex(config, *parts.index, signals);
  Index* index = parts.index.get();
  config.node.node_id = config.index.node_id;
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Node> node, Node::Open(*store, *index, config.node));
  if (options.drain) {
    ESKER_RETURN_IF_ERROR(node->Drain());
    LogInfo("drained", {{"data", config.data}});
    return OkStatus();
  }
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<MetricsServer> metrics,
                         StartMetrics(config.metrics_listen, *node));
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Gateway> gateway,
                         Gateway::Start(config.gateway, *store, *index, *node));
  LogInfo("ready", {{"socket", config.gateway.unix_socket},
                    {"listen", config.gateway.listen},
                    {"port", gateway->port()},
                    {"store", config.store},
                    {"node", node->node_id()}});
  NotifyReady();
  int signal = signals.Wait();
  LogInfo("stopping; sandboxes go on", {{"signal", signal}});
  return OkStatus();
}

}  // namespace

void AddServe(CLI::App& app, GlobalOptions& options, Chosen& chosen) {
  auto serve = std::make_shared<ServeOptions>();
  CLI::App* sub = app.add_subcommand("serve", "run the server (SIGTERM leaves sandboxes running)");
  sub->add_option("--config", serve->config_path, "TOML file; command-line options override it");
  sub->add_option("--data", serve->data, "data directory (default /var/lib/esker)");
  sub->add_option("--store", serve->store, "store directory (default DATA/store)");
  sub->add_option("--listen", serve->listen, "TCP address (default 127.0.0.1:7070)");
  sub->add_option("--roles", serve->roles, "all (default), index, or gateway,node");
  sub->add_option("--index", serve->index, "HOST:PORT of the index, for --roles=gateway,node");
  sub->add_option("--index-listen", serve->index_listen,
                  "HOST:PORT on which this process is the index of other nodes too");
  sub->add_flag("--take-over", serve->take_over,
                "shut out the store's living index, and become it");
  sub->add_flag("--drain", serve->drain, "end all sandboxes of the data directory, then exit");
  sub->callback(Choose(options, chosen, [=] { return Serve(*serve); }));
}

}  // namespace esker::cli
