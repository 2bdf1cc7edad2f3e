#include "snapshotter/push.h"

#include <optional>
#include <set>
#include <utility>

#include "base/failpoint.h"
#include "implicit_layers.h"

namespace esker {
namespace {

class ImagePushImpl final : public ImagePush {
 public:
  ImagePushImpl(Store& store, Index& index, OciImage image, MayReuse may_reuse)
      : store_(store),
        index_(index),
        image_(std::move(image)),
        may_reuse_(std::move(may_reuse)),
        session_(index.StartImport()),
        have_(image_.layers.size()) {}

  Status FindMissing() {
    totals_.layers = static_cast<uint32_t>(image_.layers.size());
    std::set<std::string> to_come;
    for (size_t i = 0; i < image_.layers.size(); ++i) {
      const std::string& diff_id = image_.layers[i].diff_id;
      ESKER_ASSIGN_OR_RETURN(have_[i], UseLayer(diff_id));
      // The same layer may occur more than once in an image (an empty one often does).
      if (have_[i] || (!diff_id.empty() && !to_come.insert(diff_id).second)) {
        ++totals_.layers_reused;
      } else {
        missing_.push_back(i);
      }
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
    if (have_[layer]) return OkStatus();
    return ImportWanted(wanted, have_[layer], source, options)
        .Wrap("push: layer " + std::to_string(layer) + " (" + wanted.digest + ")");
  }

  Result<ImageId> Finish(const std::string& tag, const std::string& job) override {
    if (!tag.empty()) ESKER_RETURN_IF_ERROR(NormaliseTag(tag).status());
    ESKER_ASSIGN_OR_RETURN(Manifest manifest, MakeManifest());
    ESKER_RETURN_IF_ERROR(ResolveImplicitDirectories(store_, index_, *session_, manifest.layers));
    ESKER_FAILPOINT("push.before_publish");
    ESKER_ASSIGN_OR_RETURN(ImageId id, index_.PublishImage(manifest));
    ESKER_FAILPOINT("push.before_tag");
    if (!tag.empty()) ESKER_RETURN_IF_ERROR(index_.SetTag(tag, id, job));
    return id;
  }

 private:
  Result<std::optional<ImageLayer>> UseLayer(const std::string& diff_id) {
    const bool may = !may_reuse_ || may_reuse_(diff_id);
    // "" is no layer's: not found. (An empty optional made here trips g++ under its sanitizers.)
    return session_->UseLayer(may ? diff_id : std::string());
  }

  Status ImportWanted(const OciLayer& wanted, std::optional<ImageLayer>& have, ByteSource& source,
                      const ImportOptions& options) {
    std::unique_ptr<Lease> claim;
    if (!wanted.diff_id.empty()) {
      ESKER_ASSIGN_OR_RETURN(claim, session_->ClaimLayer(wanted.diff_id, options.cancelled));
      // Another push may have brought it while this one waited.
      ESKER_ASSIGN_OR_RETURN(have, UseLayer(wanted.diff_id));
      if (have) {
        ++totals_.layers_reused;
        return OkStatus();
      }
    }
    ImportOptions checked = options;
    checked.expected_digest = wanted.digest;
    checked.expected_diff_id = wanted.diff_id;
    checked.source_bytes = wanted.size;
    ESKER_ASSIGN_OR_RETURN(ImportedLayer imported, ImportTar(source, store_, *session_, checked));
    ESKER_FAILPOINT("push.layer_published");
    ESKER_RETURN_IF_ERROR(session_->RegisterPack(imported.pack));
    if (!imported.layer.diff_id.empty()) {
      ESKER_RETURN_IF_ERROR(session_->RememberLayer(imported.layer));
    }
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

  // The layer at this place, by way of another of the same content if need be.
  const ImageLayer* Find(size_t layer) const {
    if (have_[layer]) return &*have_[layer];
    for (size_t i = 0; i < layer; ++i) {
      bool same = image_.layers[i].diff_id == image_.layers[layer].diff_id;
      if (same && !image_.layers[i].diff_id.empty() && have_[i]) return &*have_[i];
    }
    return nullptr;
  }

  // The same OCI image always gives the same manifest: nothing of this push is in it, such as the
  // time, or under which compression a shared layer came first.
  Result<Manifest> MakeManifest() const {
    Manifest manifest;
    manifest.config = image_.config;
    if (!image_.manifest_digest.empty()) manifest.origin["oci"] = image_.manifest_digest;
    for (size_t i = 0; i < image_.layers.size(); ++i) {
      const OciLayer& wanted = image_.layers[i];
      const ImageLayer* found = Find(i);
      if (found == nullptr) {
        return FailedPreconditionError("push: layer " + std::to_string(i) + " (" + wanted.digest +
                                       ") was not sent");
      }
      ImageLayer layer = *found;
      if (!wanted.digest.empty()) layer.source_digest = wanted.digest;
      manifest.layers.push_back(std::move(layer));
    }
    return manifest;
  }

  Store& store_;
  Index& index_;
  const OciImage image_;
  const MayReuse may_reuse_;
  std::unique_ptr<ImportSession> session_;
  std::vector<std::optional<ImageLayer>> have_;  // by place in the image
  std::vector<size_t> missing_;
  PushTotals totals_;
};

}  // namespace

Result<std::unique_ptr<ImagePush>> ImagePush::Start(Store& store, Index& index, OciImage image,
                                                    MayReuse may_reuse) {
  auto push = std::make_unique<ImagePushImpl>(store, index, std::move(image), std::move(may_reuse));
  ESKER_RETURN_IF_ERROR(push->FindMissing());
  return std::unique_ptr<ImagePush>(std::move(push));
}

}  // namespace esker
