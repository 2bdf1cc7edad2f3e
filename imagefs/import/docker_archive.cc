#include "docker_archive.h"

#include <algorithm>
#include <vector>

#include "base/digest.h"
#include "byte_source.h"
#include "decompress.h"
#include "oci_index.h"
#include "oci_json.h"
#include "oci_layout.h"

namespace esker::import_internal {
namespace {

constexpr size_t kMaxLayers = 500;

// The plain tar of a layer, however it lies in the archive.
class PlainLayer final : public ByteSource {
 public:
  static Result<std::unique_ptr<ByteSource>> Open(FileRange range) {
    auto layer = std::unique_ptr<PlainLayer>(new PlainLayer(std::move(range)));
    ESKER_ASSIGN_OR_RETURN(layer->plain_, Decompress(layer->stored_));
    return std::unique_ptr<ByteSource>(std::move(layer));
  }
  Result<size_t> Read(void* buffer, size_t size) override { return plain_->Read(buffer, size); }

 private:
  explicit PlainLayer(FileRange range) : stored_(std::move(range)) {}
  RangeSource stored_;
  std::unique_ptr<ByteSource> plain_;
};

class DockerImage final : public ImageArchive {
 public:
  DockerImage(std::unique_ptr<BlobFiles> files, std::string config_json,
              std::vector<std::string> layer_paths)
      : files_(std::move(files)),
        config_json_(std::move(config_json)),
        layer_paths_(std::move(layer_paths)) {}

  Status MakeManifest(const ArchiveOptions& options) {
    ESKER_ASSIGN_OR_RETURN(Json config, ParseJsonObject(config_json_, "image config"));
    ESKER_RETURN_IF_ERROR(CheckPlatform(config, options));
    ESKER_ASSIGN_OR_RETURN(const Json* rootfs, GetObject(config, "rootfs", "image config"));
    if (rootfs == nullptr) return InvalidArgumentError("image config: it has no \"rootfs\"");
    ESKER_ASSIGN_OR_RETURN(const Json* diff_ids, GetArray(*rootfs, "diff_ids", "image config"));
    const size_t count = diff_ids == nullptr ? 0 : diff_ids->size();
    if (count != layer_paths_.size()) {
      return InvalidArgumentError("the archive lists " + std::to_string(layer_paths_.size()) +
                                  " layers, the image config " + std::to_string(count));
    }
    // No sizes: they would differ with how the archive was written.
    Json layers = Json::array();
    for (size_t i = 0; i < count; ++i) {
      layers.push_back(
          {{"mediaType", "application/vnd.oci.image.layer.v1.tar"}, {"digest", (*diff_ids)[i]}});
    }
    Json manifest = {{"schemaVersion", 2},
                     {"mediaType", "application/vnd.oci.image.manifest.v1+json"},
                     {"config",
                      {{"mediaType", "application/vnd.oci.image.config.v1+json"},
                       {"digest", "sha256:" + Sha256::Of(config_json_).ToHex()},
                       {"size", config_json_.size()}}},
                     {"layers", std::move(layers)}};
    manifest_json_ = manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
    ESKER_ASSIGN_OR_RETURN(image_, ParseOciImage(manifest_json_, config_json_));
    return OkStatus();
  }

  const OciImage& image() const override { return image_; }
  const std::string& manifest_json() const override { return manifest_json_; }
  const std::string& config_json() const override { return config_json_; }

  Result<std::unique_ptr<ByteSource>> OpenLayer(size_t layer) const override {
    if (layer >= layer_paths_.size()) {
      return InvalidArgumentError("the image has no layer " + std::to_string(layer));
    }
    ESKER_ASSIGN_OR_RETURN(FileRange range, files_->Find(layer_paths_[layer]));
    return PlainLayer::Open(std::move(range));
  }
  uint64_t LayerBytes(size_t layer) const override {
    if (layer >= layer_paths_.size()) return 0;
    Result<FileRange> range = files_->Find(layer_paths_[layer]);
    return range.ok() ? range->size : 0;
  }

 private:
  static Status CheckPlatform(const Json& config, const ArchiveOptions& options) {
    ESKER_ASSIGN_OR_RETURN(Platform wanted, WantedPlatform(options));
    Platform built_for;
    ESKER_ASSIGN_OR_RETURN(built_for.os, GetString(config, "os", "image config"));
    ESKER_ASSIGN_OR_RETURN(built_for.architecture,
                           GetString(config, "architecture", "image config"));
    ESKER_ASSIGN_OR_RETURN(built_for.variant, GetString(config, "variant", "image config"));
    built_for = Normalise(std::move(built_for));
    if (built_for.empty() || PlatformRank(wanted, built_for) > 0) return OkStatus();
    return NotFoundError("the image is for " + built_for.ToString() + ", not for " +
                         wanted.ToString());
  }

  std::unique_ptr<BlobFiles> files_;
  OciImage image_;
  std::string manifest_json_, config_json_;
  std::vector<std::string> layer_paths_;
};

Result<std::unique_ptr<ImageArchive>> Finish(std::unique_ptr<DockerImage> image,
                                             const ArchiveOptions& options) {
  ESKER_RETURN_IF_ERROR(image->MakeManifest(options));
  return std::unique_ptr<ImageArchive>(std::move(image));
}

// --- manifest.json -----------------------------------------------------------------------------

Result<std::vector<std::string>> Strings(const Json& object, const char* key) {
  ESKER_ASSIGN_OR_RETURN(const Json* list, GetArray(object, key, "manifest.json"));
  std::vector<std::string> out;
  if (list == nullptr) return out;
  for (const Json& item : *list) {
    if (!item.is_string()) {
      return InvalidArgumentError(std::string("manifest.json: \"") + key +
                                  "\" holds something else than strings");
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

struct SavedImage {
  std::string config;
  std::vector<std::string> names, layers;
};

Result<std::vector<SavedImage>> ParseManifests(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return InvalidArgumentError("manifest.json is not a JSON list");
  std::vector<SavedImage> out;
  for (const Json& item : json) {
    if (!item.is_object()) return InvalidArgumentError("manifest.json: an image is not an object");
    SavedImage image;
    ESKER_ASSIGN_OR_RETURN(image.config, GetString(item, "Config", "manifest.json"));
    ESKER_ASSIGN_OR_RETURN(image.names, Strings(item, "RepoTags"));
    ESKER_ASSIGN_OR_RETURN(image.layers, Strings(item, "Layers"));
    if (image.layers.size() > kMaxLayers) {
      return InvalidArgumentError("manifest.json: more than " + std::to_string(kMaxLayers) +
                                  " layers");
    }
    out.push_back(std::move(image));
  }
  return out;
}

std::string Join(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out.empty() ? "none with a name" : out;
}

Result<SavedImage> PickSaved(std::vector<SavedImage> all, std::string_view name) {
  std::vector<std::string> names;
  for (const SavedImage& image : all) {
    names.insert(names.end(), image.names.begin(), image.names.end());
  }
  if (name.empty()) {
    if (all.size() == 1) return std::move(all[0]);
    if (all.empty()) return NotFoundError("it holds no image");
    return InvalidArgumentError("it holds several images, name one: " + Join(names));
  }
  for (SavedImage& image : all) {
    for (const std::string& has : image.names) {
      if (NormaliseDockerName(has) == NormaliseDockerName(name)) return std::move(image);
    }
  }
  return NotFoundError("it has no image \"" + std::string(name) + "\"; it has: " + Join(names));
}

// A config lies under its digest: "<hex>.json" or "blobs/sha256/<hex>".
Status CheckConfigName(std::string name, const std::string& bytes) {
  name = name.substr(name.rfind('/') + 1);
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  if (!Digest::FromHex(name).ok() || Sha256::Of(bytes).ToHex() == name) return OkStatus();
  return DataLossError("the image config has other bytes than its name " + name + " says");
}

// --- repositories ------------------------------------------------------------------------------

Result<std::string> PickTopLayer(const Json& repositories, std::string_view name) {
  std::vector<std::string> names;
  std::string top;
  for (const auto& [repository, tags] : repositories.items()) {
    if (!tags.is_object()) return InvalidArgumentError("repositories: not names and tags");
    for (const auto& [tag, id] : tags.items()) {
      if (!id.is_string()) return InvalidArgumentError("repositories: a tag names no layer");
      names.push_back(repository + ":" + tag);
      const bool fits = NormaliseDockerName(names.back()) == NormaliseDockerName(name);
      if (fits || (name.empty() && top.empty())) {
        top = id.get<std::string>();
      } else if (name.empty() && top != id.get<std::string>()) {
        top = "?";
      }
    }
  }
  if (top == "?") {
    return InvalidArgumentError("it holds several images, name one: " + Join(names));
  }
  if (top.empty()) {
    return NotFoundError("it has no image \"" + std::string(name) + "\"; it has: " + Join(names));
  }
  return top;
}

// From the top down to the base, then turned round.
Result<std::vector<std::string>> LayerChain(const BlobFiles& files, std::string id, Json* top) {
  std::vector<std::string> chain;
  while (!id.empty()) {
    if (chain.size() == kMaxLayers) {
      return InvalidArgumentError("more than " + std::to_string(kMaxLayers) + " layers");
    }
    ESKER_ASSIGN_OR_RETURN(std::string text, files.ReadSmall(id + "/json"));
    ESKER_ASSIGN_OR_RETURN(Json json, ParseJsonObject(text, id + "/json"));
    chain.push_back(id + "/layer.tar");
    ESKER_ASSIGN_OR_RETURN(std::string parent, GetString(json, "parent", id + "/json"));
    if (chain.size() == 1) *top = std::move(json);
    id = std::move(parent);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

Result<std::string> DiffIdOf(const BlobFiles& files, const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(FileRange range, files.Find(path));
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> plain, PlainLayer::Open(std::move(range)));
  return HashingSource(*plain).DrainAndDigest();
}

// The image config that such an archive would have today.
Result<std::string> MakeConfig(const BlobFiles& files, const Json& top,
                               const std::vector<std::string>& layers) {
  Json config = {{"os", "linux"}, {"architecture", "amd64"}};
  for (const char* key : {"architecture", "os", "config", "created", "author"}) {
    if (auto found = top.find(key); found != top.end() && !found->is_null()) config[key] = *found;
  }
  Json diff_ids = Json::array();
  for (const std::string& path : layers) {
    ESKER_ASSIGN_OR_RETURN(std::string diff_id, DiffIdOf(files, path));
    diff_ids.push_back(std::move(diff_id));
  }
  config["rootfs"] = {{"type", "layers"}, {"diff_ids", std::move(diff_ids)}};
  return config.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Result<std::unique_ptr<ImageArchive>> OpenDockerManifest(std::unique_ptr<BlobFiles> files,
                                                         std::string_view name,
                                                         const ArchiveOptions& options) {
  ESKER_ASSIGN_OR_RETURN(std::string text, files->ReadSmall("manifest.json"));
  ESKER_ASSIGN_OR_RETURN(std::vector<SavedImage> all, ParseManifests(text));
  ESKER_ASSIGN_OR_RETURN(SavedImage picked, PickSaved(std::move(all), name));
  ESKER_ASSIGN_OR_RETURN(std::string config, files->ReadSmall(picked.config));
  ESKER_RETURN_IF_ERROR(CheckConfigName(picked.config, config));
  return Finish(
      std::make_unique<DockerImage>(std::move(files), std::move(config), std::move(picked.layers)),
      options);
}

Result<std::unique_ptr<ImageArchive>> OpenDockerRepositories(std::unique_ptr<BlobFiles> files,
                                                             std::string_view name,
                                                             const ArchiveOptions& options) {
  ESKER_ASSIGN_OR_RETURN(std::string text, files->ReadSmall("repositories"));
  ESKER_ASSIGN_OR_RETURN(Json repositories, ParseJsonObject(text, "repositories"));
  ESKER_ASSIGN_OR_RETURN(std::string id, PickTopLayer(repositories, name));
  Json top;
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> layers, LayerChain(*files, std::move(id), &top));
  ESKER_ASSIGN_OR_RETURN(std::string config, MakeConfig(*files, top, layers));
  return Finish(
      std::make_unique<DockerImage>(std::move(files), std::move(config), std::move(layers)),
      options);
}

}  // namespace esker::import_internal
