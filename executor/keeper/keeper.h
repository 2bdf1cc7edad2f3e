// The keeper's server: connections, requests, and the containers that live.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "blob_session.h"
#include "container_builder.h"
#include "layer_table.h"
#include "protocol.h"

namespace esker::keeper {

class Keeper {
 public:
  // Enters a mount namespace of its own, mounts, starts the blob server and listens. One keeper per
  // data directory: FAILED_PRECONDITION when another holds the lock.
  static Result<std::unique_ptr<Keeper>> Start(const KeeperOptions& options);
  ~Keeper();
  // Until a client's Shutdown.
  Status Run();

 private:
  struct Connection;
  struct Container {
    Process init;
    std::vector<std::shared_ptr<const MountedLayer>> layers;
  };

  explicit Keeper(const KeeperOptions& options, std::unique_ptr<EventLoop> loop);
  Status Open();

  void Accept();
  void Close(const std::shared_ptr<Connection>& connection);
  void Receive(const std::shared_ptr<Connection>& connection);
  void Flush(const std::shared_ptr<Connection>& connection);
  void Send(const std::shared_ptr<Connection>& connection, std::string data,
            std::vector<UniqueFd> fds = {});
  void Answer(const std::shared_ptr<Connection>& connection, uint64_t id, const Status& status,
              std::string_view body = {}, std::vector<UniqueFd> fds = {});

  // False: the message is not of this protocol, and the connection ends.
  bool Dispatch(const std::shared_ptr<Connection>& connection, SocketMessage message);
  void OnHello(const std::shared_ptr<Connection>& connection, uint64_t id, const Hello& hello);
  void OnCreate(const std::shared_ptr<Connection>& connection, uint64_t id, CreateRequest request,
                std::vector<UniqueFd> fds);
  void OnList(const std::shared_ptr<Connection>& connection, uint64_t id, const std::string& after);
  Status OnShutdown();

  Result<ContainerHandle> Adopt(const std::string& id, BuiltContainer built);
  void Ended(const std::string& id);

  KeeperOptions options_;
  std::unique_ptr<EventLoop> loop_;
  UniqueFd lock_, listen_;
  std::string socket_path_;
  BlobSession blobs_;
  std::unique_ptr<LayerTable> layers_;
  std::unique_ptr<ContainerBuilder> builder_;
  std::map<int, std::shared_ptr<Connection>> connections_;
  std::map<std::string, Container> live_;
  std::set<std::string> building_;
  std::map<std::string, int> ended_;  // wait status of PID 1, until acknowledged
  Status shutdown_;
};

}  // namespace esker::keeper
