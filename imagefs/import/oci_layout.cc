// OCI image layouts: https://github.com/opencontainers/image-spec/blob/main/image-layout.md
#include "oci_layout.h"

#include "base/digest.h"
#include "oci_index.h"
#include "oci_json.h"

namespace esker::import_internal {
namespace {

std::string BlobPath(std::string_view digest) {
  return "blobs/sha256/" + std::string(digest.substr(digest.find(':') + 1));
}

Result<std::string> ReadBlob(const BlobFiles& files, const std::string& digest) {
  ESKER_RETURN_IF_ERROR(CheckOciDigest(digest));
  ESKER_ASSIGN_OR_RETURN(std::string text, files.ReadSmall(BlobPath(digest)));
  std::string found = "sha256:" + Sha256::Of(text).ToHex();
  if (found != digest) return DataLossError("blob " + digest + " holds the bytes of " + found);
  return text;
}

Status CheckLayoutVersion(const BlobFiles& files) {
  Result<std::string> text = files.ReadSmall("oci-layout");
  if (!text.ok()) {
    if (text.status().code() != Code::kNotFound) return std::move(text).status();
    return InvalidArgumentError("it is not an OCI layout: there is no file \"oci-layout\"");
  }
  ESKER_ASSIGN_OR_RETURN(Json json, ParseJsonObject(*text, "oci-layout"));
  ESKER_ASSIGN_OR_RETURN(std::string version, GetString(json, "imageLayoutVersion", "oci-layout"));
  if (version.starts_with("1.")) return OkStatus();
  return InvalidArgumentError("OCI layout version \"" + version + "\" is not known");
}

class LayoutImage final : public ImageArchive {
 public:
  explicit LayoutImage(std::unique_ptr<BlobFiles> files) : files_(std::move(files)) {}

  Status Pick(std::string_view name, const ArchiveOptions& options) {
    ESKER_ASSIGN_OR_RETURN(Platform wanted, WantedPlatform(options));
    ESKER_RETURN_IF_ERROR(CheckLayoutVersion(*files_));
    ESKER_ASSIGN_OR_RETURN(std::string index, files_->ReadSmall("index.json"));
    ESKER_ASSIGN_OR_RETURN(std::vector<OciDescriptor> all, ParseOciIndex(index));
    ESKER_ASSIGN_OR_RETURN(std::vector<OciDescriptor> named, PickNamed(std::move(all), name));
    ESKER_ASSIGN_OR_RETURN(PickedManifest picked,
                           PickPlatform(named, wanted, [this](const std::string& digest) {
                             return ReadBlob(*files_, digest);
                           }));
    manifest_json_ = std::move(picked.manifest_json);
    config_json_ = std::move(picked.config_json);
    ESKER_ASSIGN_OR_RETURN(image_, ParseOciImage(manifest_json_, config_json_));
    return CheckForeignLayers();
  }

  const OciImage& image() const override { return image_; }
  const std::string& manifest_json() const override { return manifest_json_; }
  const std::string& config_json() const override { return config_json_; }

  Result<std::unique_ptr<ByteSource>> OpenLayer(size_t layer) const override {
    if (layer >= image_.layers.size()) {
      return InvalidArgumentError("the image has no layer " + std::to_string(layer));
    }
    const std::string& digest = image_.layers[layer].digest;
    Result<FileRange> range = files_->Find(BlobPath(digest));
    if (!range.ok()) return std::move(range).status().Wrap("layer " + digest);
    return std::unique_ptr<ByteSource>(std::make_unique<RangeSource>(std::move(*range)));
  }
  uint64_t LayerBytes(size_t layer) const override {
    return layer < image_.layers.size() ? image_.layers[layer].size : 0;
  }

 private:
  // Layers that may not be distributed lie at a URL, unless somebody put them into the layout.
  Status CheckForeignLayers() const {
    for (const OciLayer& layer : image_.layers) {
      const bool foreign = layer.media_type.find(".foreign.") != std::string::npos ||
                           layer.media_type.find(".nondistributable.") != std::string::npos;
      if (!foreign || files_->Find(BlobPath(layer.digest)).ok()) continue;
      return UnimplementedError("layer " + layer.digest + " of type " + layer.media_type +
                                " is not in the layout, and its content is not fetched");
    }
    return OkStatus();
  }

  std::unique_ptr<BlobFiles> files_;
  OciImage image_;
  std::string manifest_json_, config_json_;
};

}  // namespace

Result<Platform> WantedPlatform(const ArchiveOptions& options) {
  return ParsePlatform(options.platform.empty() ? MachinePlatform() : options.platform);
}

Result<std::unique_ptr<ImageArchive>> OpenLayout(std::unique_ptr<BlobFiles> files,
                                                 std::string_view name,
                                                 const ArchiveOptions& options) {
  auto image = std::make_unique<LayoutImage>(std::move(files));
  ESKER_RETURN_IF_ERROR(image->Pick(name, options));
  return std::unique_ptr<ImageArchive>(std::move(image));
}

}  // namespace esker::import_internal
