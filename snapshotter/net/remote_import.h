// One import of this node, at the index of another process.
#pragma once

#include <memory>
#include <string>

#include "net/index_channel.h"
#include "net/node_leases.h"
#include "snapshotter/index.h"

namespace esker::index_net {

// Like every import: one thread at a time.
class RemoteImport final : public ImportSession {
 public:
  // Begins it at the index; if that fails, every call gives the reason.
  RemoteImport(IndexChannel& channel, NodeLeases& leases);
  ~RemoteImport() override;

  Result<bool> HasChunk(const ChunkRef& chunk) override;
  Result<std::vector<bool>> HasChunks(std::span<const ChunkRef> chunks) override;
  Result<std::optional<ImageLayer>> UseLayer(const std::string& diff_id) override;
  Status RememberLayer(const ImageLayer& layer) override;
  Result<std::unique_ptr<Lease>> ClaimLayer(const std::string& diff_id,
                                            const std::function<bool()>& cancelled) override;
  Status RegisterPack(const PackWriter::Published& pack) override;

 private:
  class LayerClaim;

  template <typename Request>
  Request Make();
  Result<std::vector<bool>> AskChunks(std::span<const ChunkRef> chunks);
  void ReleaseLayer(const std::string& diff_id);

  IndexChannel& channel_;
  NodeLeases& leases_;
  const std::string session_;
  Status begun_;
};

}  // namespace esker::index_net
