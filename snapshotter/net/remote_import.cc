#include "net/remote_import.h"

#include <utility>

#include "base/id.h"
#include "net/convert.h"

namespace esker::index_net {
namespace {

using Stub = IndexChannel::Stub;

constexpr int64_t kClaimWaitMs = 1'000;
// Ending is a courtesy: the next renewal says the same.
constexpr IndexChannel::Deadline kEndDeadline{2'000};

}  // namespace

class RemoteImport::LayerClaim final : public Lease {
 public:
  LayerClaim(RemoteImport& import, std::string diff_id)
      : import_(import), diff_id_(std::move(diff_id)) {}
  ~LayerClaim() override { import_.ReleaseLayer(diff_id_); }

 private:
  RemoteImport& import_;
  const std::string diff_id_;
};

template <typename Request>
Request RemoteImport::Make() {
  Request request;
  ToProto(leases_.NextCall(), request.mutable_holder());
  request.set_session(session_);
  return request;
}

RemoteImport::RemoteImport(IndexChannel& channel, NodeLeases& leases)
    : channel_(channel), leases_(leases), session_(RandomId("import")) {
  // Before the call: a renewal that comes after it must list it.
  leases_.AddImport(session_);
  pb::StartImportResponse response;
  begun_ = channel_.Repeat(&Stub::StartImport, Make<pb::StartImportRequest>(), &response);
}

RemoteImport::~RemoteImport() {
  if (begun_.ok()) {
    pb::EndImportResponse response;
    Status ended =
        channel_.Once(&Stub::EndImport, Make<pb::EndImportRequest>(), &response, kEndDeadline);
    (void)ended;  // the renewals no longer list it
  }
  leases_.EndImport(session_);
}

// --- chunks --------------------------------------------------------------------------------------

Result<bool> RemoteImport::HasChunk(const ChunkRef& chunk) {
  ESKER_ASSIGN_OR_RETURN(std::vector<bool> known, AskChunks({&chunk, 1}));
  return bool{known.front()};
}

Result<std::vector<bool>> RemoteImport::HasChunks(std::span<const ChunkRef> chunks) {
  std::vector<bool> known;
  known.reserve(chunks.size());
  while (!chunks.empty()) {
    std::span<const ChunkRef> part = chunks.first(std::min(chunks.size(), kMaxChunksPerCall));
    ESKER_ASSIGN_OR_RETURN(std::vector<bool> answer, AskChunks(part));
    known.insert(known.end(), answer.begin(), answer.end());
    chunks = chunks.subspan(part.size());
  }
  return known;
}

Result<std::vector<bool>> RemoteImport::AskChunks(std::span<const ChunkRef> chunks) {
  ESKER_RETURN_IF_ERROR(begun_);
  auto request = Make<pb::HasChunksRequest>();
  request.set_chunks(EncodeChunks(chunks));
  pb::HasChunksResponse response;
  ESKER_RETURN_IF_ERROR(channel_.Repeat(&Stub::HasChunks, request, &response));
  if (response.known().size() != chunks.size()) {
    return InternalError("the index answered for " + std::to_string(response.known().size()) +
                         " chunks of " + std::to_string(chunks.size()));
  }
  std::vector<bool> known;
  known.reserve(chunks.size());
  for (char one : response.known()) known.push_back(one != '\0');
  return known;
}

// --- layers and packs ----------------------------------------------------------------------------

Result<std::optional<ImageLayer>> RemoteImport::UseLayer(const std::string& diff_id) {
  ESKER_RETURN_IF_ERROR(begun_);
  auto request = Make<pb::UseLayerRequest>();
  request.set_diff_id(diff_id);
  pb::FindLayerResponse response;
  ESKER_RETURN_IF_ERROR(channel_.Repeat(&Stub::UseLayer, request, &response));
  if (!response.has_layer()) return std::optional<ImageLayer>();
  ESKER_ASSIGN_OR_RETURN(ImageLayer layer, FromProto(response.layer()));
  return std::optional<ImageLayer>(std::move(layer));
}

Status RemoteImport::RememberLayer(const ImageLayer& layer) {
  ESKER_RETURN_IF_ERROR(begun_);
  auto request = Make<pb::RememberLayerRequest>();
  ToProto(layer, request.mutable_layer());
  pb::RememberLayerResponse response;
  return channel_.Repeat(&Stub::RememberLayer, request, &response);
}

Result<std::unique_ptr<Lease>> RemoteImport::ClaimLayer(const std::string& diff_id,
                                                        const std::function<bool()>& cancelled) {
  ESKER_RETURN_IF_ERROR(begun_);
  for (;;) {
    auto request = Make<pb::ClaimLayerRequest>();
    request.set_diff_id(diff_id);
    request.set_wait_ms(kClaimWaitMs);
    pb::ClaimLayerResponse response;
    ESKER_RETURN_IF_ERROR(channel_.Repeat(&Stub::ClaimLayer, request, &response));
    if (response.claimed()) {
      return std::unique_ptr<Lease>(std::make_unique<LayerClaim>(*this, diff_id));
    }
    if (cancelled && cancelled()) {
      return CancelledError("cancelled while another push imports layer " + diff_id);
    }
  }
}

void RemoteImport::ReleaseLayer(const std::string& diff_id) {
  auto request = Make<pb::ReleaseLayerRequest>();
  request.set_diff_id(diff_id);
  pb::ReleaseLayerResponse response;
  Status released = channel_.Repeat(&Stub::ReleaseLayer, request, &response);
  (void)released;  // it ends with the session at the latest
}

Status RemoteImport::RegisterPack(const PackWriter::Published& pack) {
  ESKER_RETURN_IF_ERROR(begun_);
  auto request = Make<pb::RegisterPackRequest>();
  request.set_pack(BytesOf(pack.id));
  pb::RegisterPackResponse response;
  return channel_.Repeat(&Stub::RegisterPack, request, &response, IndexChannel::kWaiting);
}

}  // namespace esker::index_net
