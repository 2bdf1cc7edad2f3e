// Which index a server has: its own, its own for other nodes too, or that of another machine.
#pragma once

#include <memory>
#include <string>

#include "base/config.h"
#include "base/status.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"
#include "snapshotter/index_server.h"

namespace esker::cli {

struct Roles {
  bool gateway = false, index = false, node = false;
  // "gateway,index,node" in any order, "all", "index" or "gateway,node".
  static Result<Roles> Parse(const std::string& text);
};

struct IndexSettings {
  std::string data;     // the server's data directory
  std::string node_id;  // "" : kept in the data directory, made once
  std::string listen;   // for other nodes; "": none
  std::string address;  // of the index elsewhere
  std::string key_file;
  IndexOptions options;
  int64_t lease_ns = 0;
};

// Reads the keys `index.*` of the file; what the command line says goes first.
Result<IndexSettings> LoadIndexSettings(Config& file, const std::string& data, const Roles& roles,
                                        const std::string& listen_flag,
                                        const std::string& address_flag, bool take_over);

// What the process has of the index. The server ends before the index.
struct IndexParts {
  std::unique_ptr<Index> index;
  std::unique_ptr<IndexServer> server;  // when other nodes may use it
};
// Opens the index, or connects to it. `settings.node_id` is filled in. GC is not enabled yet.
Result<IndexParts> OpenIndex(Store& store, const Roles& roles, IndexSettings& settings);

}  // namespace esker::cli
