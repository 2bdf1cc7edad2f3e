#include "imagefs/manifest.h"

#include <nlohmann/json.hpp>
#include <set>

namespace esker {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxJsonBytes = 4u << 20;
constexpr size_t kMaxLayers = 500;
constexpr size_t kMaxListItems = 10'000;
constexpr int kMaxDepth = 64;
constexpr std::string_view kSha256Prefix = "sha256:";

// What is not UTF-8 cannot be said in JSON: it becomes U+FFFD rather than an exception.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool DepthIsBelow(const Json& json, int limit) {
  if (!json.is_structured()) return true;
  if (limit == 0) return false;
  for (const Json& item : json) {
    if (!DepthIsBelow(item, limit - 1)) return false;
  }
  return true;
}

Json LayerToJson(const ImageLayer& layer) {
  return {{"data", layer.data.ToHex()},
          {"data_bytes", layer.data_bytes},
          {"diff_id", layer.diff_id},
          {"metadata", layer.metadata.ToHex()},
          {"metadata_bytes", layer.metadata_bytes},
          {"source_digest", layer.source_digest}};
}

Json ConfigToJson(const ImageConfig& config) {
  Json json = {{"architecture", config.architecture},
               {"cmd", config.cmd},
               {"entrypoint", config.entrypoint},
               {"env", config.env},
               {"labels", config.labels},
               {"os", config.os},
               {"stop_signal", config.stop_signal},
               {"user", config.user},
               {"volumes", config.volumes},
               {"working_dir", config.working_dir}};
  // Absent when empty, as in manifests from before it existed.
  if (!config.more.empty()) {
    json["more"] = Json::parse(config.more, nullptr, /*allow_exceptions=*/false);
  }
  return json;
}

// Takes the members of one object by name and type. The first thing that is wrong is kept; Finish
// also refuses members that nobody asked for.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) Fail("is not an object");
  }

  void Get(const char* key, std::string& out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(std::string(key) + " is not a string");
    out = value->get<std::string>();
  }
  void Get(const char* key, uint64_t& out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_number_unsigned()) return Fail(std::string(key) + " is not a whole number");
    out = value->get<uint64_t>();
  }
  void Get(const char* key, BlobId& out) {
    std::string hex;
    Get(key, hex);
    if (!status_.ok()) return;
    Result<BlobId> id = BlobId::FromHex(hex);
    if (!id.ok()) return Fail(std::string(key) + " is not a digest");
    out = *id;
  }
  void Get(const char* key, std::vector<std::string>& out) {
    const Json* value = FindSized(key, Json::value_t::array);
    if (value == nullptr) return;
    for (const Json& item : *value) {
      if (!item.is_string()) return Fail(std::string(key) + " holds something else than strings");
      out.push_back(item.get<std::string>());
    }
  }
  void Get(const char* key, std::map<std::string, std::string>& out) {
    const Json* value = FindSized(key, Json::value_t::object);
    if (value == nullptr) return;
    for (const auto& [name, item] : value->items()) {
      if (!item.is_string()) return Fail(std::string(key) + " holds something else than strings");
      out.emplace(name, item.get<std::string>());
    }
  }
  // "" or "sha256:" and 64 hex digits.
  void GetOciDigest(const char* key, std::string& out) {
    Get(key, out);
    if (!status_.ok() || out.empty()) return;
    if (!out.starts_with(kSha256Prefix) ||
        !Digest::FromHex(std::string_view(out).substr(kSha256Prefix.size())).ok()) {
      Fail(std::string(key) + " is not a sha256 digest");
    }
  }
  const Json* Find(const char* key) {
    if (!status_.ok()) return nullptr;
    taken_.insert(key);
    auto it = json_.find(key);
    if (it == json_.end()) {
      Fail(std::string(key) + " is missing");
      return nullptr;
    }
    return &*it;
  }
  void Fail(const std::string& why) {
    if (status_.ok()) status_ = DataLossError("manifest: " + where_ + ": " + why);
  }
  Status Finish() {
    if (!status_.ok()) return status_;
    for (const auto& [name, value] : json_.items()) {
      if (!taken_.contains(name)) Fail("unknown member \"" + name + "\"");
    }
    return status_;
  }

 private:
  const Json* FindSized(const char* key, Json::value_t type) {
    const Json* value = Find(key);
    if (value == nullptr) return nullptr;
    if (value->type() != type || value->size() > kMaxListItems) {
      Fail(std::string(key) + " has a wrong type or too many items");
      return nullptr;
    }
    return value;
  }

  const Json& json_;
  std::string where_;
  std::set<std::string> taken_;
  Status status_;
};

Result<ImageLayer> LayerFromJson(const Json& json, const std::string& where) {
  ImageLayer layer;
  ObjectReader in(json, where);
  in.Get("data", layer.data);
  in.Get("data_bytes", layer.data_bytes);
  in.GetOciDigest("diff_id", layer.diff_id);
  in.Get("metadata", layer.metadata);
  in.Get("metadata_bytes", layer.metadata_bytes);
  in.GetOciDigest("source_digest", layer.source_digest);
  ESKER_RETURN_IF_ERROR(in.Finish());
  constexpr uint64_t kMaxBytes = uint64_t{1} << 50;
  if (layer.metadata_bytes == 0 || layer.metadata_bytes % kBlockSize != 0 ||
      layer.data_bytes % kBlockSize != 0 || layer.metadata_bytes > kMaxBytes ||
      layer.data_bytes > kMaxBytes) {
    in.Fail("impossible sizes");
  }
  if ((layer.data == BlobId{}) != (layer.data_bytes == 0)) in.Fail("data and data_bytes disagree");
  ESKER_RETURN_IF_ERROR(in.Finish());
  return layer;
}

Result<ImageConfig> ConfigFromJson(const Json& json) {
  ImageConfig config;
  ObjectReader in(json, "config");
  in.Get("architecture", config.architecture);
  in.Get("cmd", config.cmd);
  in.Get("entrypoint", config.entrypoint);
  in.Get("env", config.env);
  in.Get("labels", config.labels);
  in.Get("os", config.os);
  in.Get("stop_signal", config.stop_signal);
  in.Get("user", config.user);
  in.Get("volumes", config.volumes);
  in.Get("working_dir", config.working_dir);
  if (json.is_object() && json.contains("more")) {
    const Json* more = in.Find("more");
    if (more != nullptr && (!more->is_object() || !DepthIsBelow(*more, kMaxDepth))) {
      in.Fail("more is not an object of bounded depth");
    } else if (more != nullptr) {
      config.more = Dump(*more);
    }
  }
  ESKER_RETURN_IF_ERROR(in.Finish());
  return config;
}

Status CheckSchema(const Json& json) {
  auto schema = json.is_object() ? json.find("schema") : json.end();
  if (schema == json.end() || !schema->is_number_unsigned()) {
    return DataLossError("manifest: not an object with a schema number");
  }
  if (*schema != static_cast<unsigned>(Manifest::kSchema)) {
    return FailedPreconditionError("manifest: schema " + schema->dump() +
                                   " is not known to this version, which reads schema " +
                                   std::to_string(Manifest::kSchema));
  }
  return OkStatus();
}

Status LayersFromJson(const Json& json, std::vector<ImageLayer>& layers) {
  if (!json.is_array() || json.size() > kMaxLayers) {
    return DataLossError("manifest: layers must be a list of at most " +
                         std::to_string(kMaxLayers));
  }
  for (const Json& item : json) {
    ESKER_ASSIGN_OR_RETURN(ImageLayer layer,
                           LayerFromJson(item, "layer " + std::to_string(layers.size())));
    layers.push_back(std::move(layer));
  }
  return OkStatus();
}

}  // namespace

Result<std::string> CanonicalJsonObject(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgumentError("not a JSON object");
  if (!DepthIsBelow(json, kMaxDepth)) {
    return InvalidArgumentError("JSON of more than " + std::to_string(kMaxDepth) + " levels");
  }
  return Dump(json);
}

std::string Manifest::ToJson() const {
  Json layer_list = Json::array();
  for (const ImageLayer& layer : layers) layer_list.push_back(LayerToJson(layer));
  return Dump({{"config", ConfigToJson(config)},
               {"kind", kind},
               {"layers", std::move(layer_list)},
               {"origin", origin},
               {"parent", parent},
               {"schema", static_cast<unsigned>(kSchema)},
               {"tier", tier}});
}

ImageId Manifest::Id() const { return ImageId{Sha256::Of(ToJson())}; }

Result<Manifest> Manifest::FromJson(std::string_view text) {
  if (text.size() > kMaxJsonBytes) {
    return DataLossError("manifest: larger than " + std::to_string(kMaxJsonBytes) + " bytes");
  }
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return DataLossError("manifest: not JSON");
  ESKER_RETURN_IF_ERROR(CheckSchema(json));
  Manifest manifest;
  ObjectReader in(json, "top level");
  const Json* config = in.Find("config");
  in.Get("kind", manifest.kind);
  const Json* layers = in.Find("layers");
  in.Get("origin", manifest.origin);
  in.Get("parent", manifest.parent);
  in.Find("schema");
  in.Get("tier", manifest.tier);
  ESKER_RETURN_IF_ERROR(in.Finish());
  if (manifest.kind != "image" && manifest.kind != "snapshot") {
    return DataLossError("manifest: unknown kind \"" + manifest.kind + "\"");
  }
  if (!manifest.parent.empty() && !ImageId::FromHex(manifest.parent).ok()) {
    return DataLossError("manifest: parent is not an image id");
  }
  ESKER_RETURN_IF_ERROR(LayersFromJson(*layers, manifest.layers));
  ESKER_ASSIGN_OR_RETURN(manifest.config, ConfigFromJson(*config));
  // One manifest, one spelling: else two ids would name the same image.
  if (manifest.ToJson() != text) return DataLossError("manifest: not in its canonical form");
  return manifest;
}

}  // namespace esker
