#include "snapshotter/push.h"

#include <map>
#include <optional>
#include <utility>

#include "base/failpoint.h"

namespace esker {
namespace {

class ImagePushImpl final : public ImagePush {
 public:
  ImagePushImpl(Store& store, Index& index, OciImage image)
      : store_(store), index_(index), image_(std::move(image)), session_(index.StartImport()) {}

  Status FindMissing() {
    totals_.layers = static_cast<uint32_t>(image_.layers.size());
    for (size_t i = 0; i < image_.layers.size(); ++i) {
      const std::string& diff_id = image_.layers[i].diff_id;
      // The same layer may occur more than once in an image (an empty one often does).
      if (!have_.contains(diff_id)) {
        ESKER_ASSIGN_OR_RETURN(have_[diff_id], session_->UseLayer(diff_id));
        if (!have_[diff_id]) {
          missing_.push_back(i);
          continue;
        }
      }
      ++totals_.layers_reused;
    }
    return OkStatus();
  }

  const std::vector<size_t>& missing() const override { return missing_; }
  const PushTotals& totals() const override { return totals_; }

  Status ImportLayer(size_t layer, ByteSource& source, const ImportOptions& options) override {
    if (layer >= image_.layers.size()) {
      return InvalidArgumentError("push: there is no layer " + std::to_string(layer) +
                                  "; the image has " + std::to_string(image_.layers.size()));
    }
    const OciLayer& wanted = image_.layers[layer];
    return ImportWanted(wanted, source, options)
        .Wrap("push: layer " + std::to_string(layer) + " (" + wanted.digest + ")");
  }

  Result<ImageId> Finish(const std::string& tag) override {
    if (!tag.empty()) ESKER_RETURN_IF_ERROR(NormaliseTag(tag).status());
    ESKER_ASSIGN_OR_RETURN(Manifest manifest, MakeManifest());
    ESKER_FAILPOINT("push.before_publish");
    ESKER_ASSIGN_OR_RETURN(ImageId id, index_.PublishImage(manifest));
    ESKER_FAILPOINT("push.before_tag");
    if (!tag.empty()) ESKER_RETURN_IF_ERROR(index_.SetTag(tag, id));
    return id;
  }

 private:
  Status ImportWanted(const OciLayer& wanted, ByteSource& source, const ImportOptions& options) {
    std::optional<ImageLayer>& have = have_[wanted.diff_id];
    if (have) return OkStatus();
    ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Lease> claim,
                           session_->ClaimLayer(wanted.diff_id, options.cancelled));
    // Another push may have brought it while this one waited.
    ESKER_ASSIGN_OR_RETURN(have, session_->UseLayer(wanted.diff_id));
    if (have) {
      ++totals_.layers_reused;
      return OkStatus();
    }
    ImportOptions checked = options;
    checked.expected_digest = wanted.digest;
    checked.expected_diff_id = wanted.diff_id;
    ESKER_ASSIGN_OR_RETURN(ImportedLayer imported, ImportTar(source, store_, *session_, checked));
    ESKER_FAILPOINT("push.layer_published");
    ESKER_RETURN_IF_ERROR(index_.RegisterPack(imported.pack));
    imported.layer.diff_id = wanted.diff_id;
    ESKER_RETURN_IF_ERROR(session_->RememberLayer(imported.layer));
    ESKER_FAILPOINT("push.layer_registered");
    have = imported.layer;
    Add(imported.totals);
    return OkStatus();
  }

  void Add(const ImportProgress& layer) {
    totals_.bytes.bytes_read += layer.bytes_read;
    totals_.bytes.bytes_plain += layer.bytes_plain;
    totals_.bytes.bytes_stored += layer.bytes_stored;
    totals_.bytes.bytes_deduplicated += layer.bytes_deduplicated;
    totals_.bytes.entries += layer.entries;
  }

  // The same OCI image always gives the same manifest: nothing of this push is in it, such as the
  // time, or under which compression a shared layer came first.
  Result<Manifest> MakeManifest() const {
    Manifest manifest;
    manifest.config = image_.config;
    manifest.origin["oci"] = image_.manifest_digest;
    for (size_t i = 0; i < image_.layers.size(); ++i) {
      const OciLayer& wanted = image_.layers[i];
      auto it = have_.find(wanted.diff_id);
      if (it == have_.end() || !it->second) {
        return FailedPreconditionError("push: layer " + std::to_string(i) + " (" + wanted.digest +
                                       ") was not sent");
      }
      ImageLayer layer = *it->second;
      layer.source_digest = wanted.digest;
      layer.diff_id = wanted.diff_id;
      manifest.layers.push_back(std::move(layer));
    }
    return manifest;
  }

  Store& store_;
  Index& index_;
  const OciImage image_;
  std::unique_ptr<ImportSession> session_;
  std::map<std::string, std::optional<ImageLayer>> have_;  // by diff_id
  std::vector<size_t> missing_;
  PushTotals totals_;
};

}  // namespace

Result<std::unique_ptr<ImagePush>> ImagePush::Start(Store& store, Index& index, OciImage image) {
  auto push = std::make_unique<ImagePushImpl>(store, index, std::move(image));
  ESKER_RETURN_IF_ERROR(push->FindMissing());
  return std::unique_ptr<ImagePush>(std::move(push));
}

}  // namespace esker
