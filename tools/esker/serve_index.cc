#include "serve_index.h"

#include <unistd.h>

#include <sstream>

#include "base/id.h"
#include "base/io.h"
#include "base/log.h"
#include "snapshotter/remote_index.h"

namespace esker::cli {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr char kDefaultListen[] = "127.0.0.1:7072";

Result<int64_t> GetSeconds(Config& file, std::string_view key, int64_t fallback, int64_t least,
                           int64_t most) {
  int64_t value = file.GetInt(key, fallback);
  if (value >= least && value <= most) return value * kSecond;
  return InvalidArgumentError(std::string(key) + " = " + std::to_string(value) +
                              " is out of range (" + std::to_string(least) + " to " +
                              std::to_string(most) + ")");
}

// A name kept in a file, made at the first use.
Result<std::string> ReadOrMakeId(const std::string& path, const std::string& fresh) {
  if (!PathExists(path)) {
    ESKER_RETURN_IF_ERROR(ReplaceFileDurably(path, fresh));
    return fresh;
  }
  ESKER_ASSIGN_OR_RETURN(std::string id, ReadFileToString(path, 64));
  ESKER_RETURN_IF_ERROR(CheckIdentifier("the name in " + path, id));
  return id;
}

// Who owns the store, for people; and the same for each start on this data directory, for nobody
// else. Two machines may have the same host name and path.
Result<std::string> Claimant(const std::string& data) {
  char host[256] = "unknown";
  ::gethostname(host, sizeof(host) - 1);
  ESKER_ASSIGN_OR_RETURN(std::string id,
                         ReadOrMakeId(data + "/index-id", RandomId().substr(0, 12)));
  return std::string(host) + ":" + data + " (" + id + ")";
}

Result<IndexParts> ConnectParts(IndexSettings& settings) {
  RemoteIndexOptions options;
  options.address = settings.address;
  Result<std::string> key = ReadIndexKey(settings.key_file, /*make=*/false);
  if (!key.ok()) {
    return std::move(key).status().Wrap(
        "the key for the index at " + settings.address +
        " (copy DATA/index.key of the index's machine to it, or name it with index.key_file)");
  }
  options.key = std::move(*key);
  // The node keeps its id there too; it must be known before there is a node.
  const std::string node_data = settings.data + "/node";
  ESKER_RETURN_IF_ERROR(MakeDirectories(node_data));
  if (settings.node_id.empty()) {
    ESKER_ASSIGN_OR_RETURN(settings.node_id,
                           ReadOrMakeId(node_data + "/node-id", RandomId().substr(0, 8)));
  }
  options.node_id = settings.node_id;
  ESKER_ASSIGN_OR_RETURN(options.node_epoch, NextNodeEpoch(node_data + "/starts"));
  IndexParts parts;
  ESKER_ASSIGN_OR_RETURN(parts.index, ConnectIndex(options));
  return parts;
}

Result<IndexParts> OpenParts(Store& store, const IndexSettings& settings) {
  IndexOptions options = settings.options;
  ESKER_ASSIGN_OR_RETURN(options.claimant, Claimant(settings.data));
  options.on_progress = [](uint64_t done, uint64_t total) {
    if (done % 1000 == 0) LogInfo("reading packs", {{"done", done}, {"total", total}});
  };
  IndexParts parts;
  ESKER_ASSIGN_OR_RETURN(parts.index, Index::Open(store, options));
  if (settings.listen.empty()) return parts;
  IndexServerOptions server;
  server.listen = settings.listen;
  server.lease_ns = settings.lease_ns;
  server.staleness_ns = settings.options.staleness_ns;
  ESKER_ASSIGN_OR_RETURN(server.key, ReadIndexKey(settings.key_file, /*make=*/true));
  ESKER_ASSIGN_OR_RETURN(parts.server, IndexServer::Start(store, *parts.index, server));
  LogInfo("index_serves_nodes", {{"listen", settings.listen},
                                 {"port", parts.server->port()},
                                 {"key_file", settings.key_file}});
  return parts;
}

}  // namespace

Result<Roles> Roles::Parse(const std::string& text) {
  Roles roles;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "all") roles.gateway = roles.index = roles.node = true;
    if (word == "gateway") roles.gateway = true;
    if (word == "index") roles.index = true;
    if (word == "node") roles.node = true;
    if (word != "all" && word != "gateway" && word != "index" && word != "node") {
      return InvalidArgumentError("roles: there is no role \"" + word +
                                  "\"; want gateway, index and node, or all");
    }
  }
  if (roles.gateway == roles.node && (roles.index || roles.node)) return roles;
  return InvalidArgumentError(
      "roles " + text + ": want all, index alone, or gateway,node (a node has its own front)");
}

Result<IndexSettings> LoadIndexSettings(Config& file, const std::string& data, const Roles& roles,
                                        const std::string& listen_flag,
                                        const std::string& address_flag, bool take_over) {
  IndexSettings settings;
  settings.data = data;
  settings.listen = file.GetString("index.listen", roles.node ? "" : kDefaultListen);
  settings.address = file.GetString("index.address", "");
  if (!listen_flag.empty()) settings.listen = listen_flag;
  if (!address_flag.empty()) settings.address = address_flag;
  settings.key_file = file.GetString("index.key_file", data + "/index.key");
  settings.options.db_directory = data + "/index";
  settings.options.take_over = take_over;
  ESKER_ASSIGN_OR_RETURN(settings.lease_ns, GetSeconds(file, "index.lease_seconds", 60, 1, 3600));
  ESKER_ASSIGN_OR_RETURN(settings.options.staleness_ns,
                         GetSeconds(file, "index.staleness_seconds", 30, 0, 600));
  ESKER_ASSIGN_OR_RETURN(settings.options.beat_ns,
                         GetSeconds(file, "index.beat_seconds", 10, 1, 600));
  if (!roles.index && settings.address.empty()) {
    return InvalidArgumentError(
        "a node without an index of its own must know where it is: "
        "--index=HOST:PORT, or index.address");
  }
  if (roles.index && !settings.address.empty()) {
    return InvalidArgumentError(
        "index.address (--index) names an index elsewhere, but this process "
        "is to be one; use --roles=gateway,node");
  }
  return settings;
}

Result<IndexParts> OpenIndex(Store& store, const Roles& roles, IndexSettings& settings) {
  return roles.index ? OpenParts(store, settings) : ConnectParts(settings);
}

}  // namespace esker::cli
