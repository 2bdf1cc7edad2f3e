#include "base/digest.h"
#include "imagefs/import.h"
#include "oci_json.h"

namespace esker {
namespace import_internal {
namespace {

Status WrongType(const char* key, const std::string& what, const char* wanted) {
  return InvalidArgumentError(what + ": \"" + key + "\" is not " + wanted);
}

const Json* Find(const Json& object, const char* key) {
  auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

}  // namespace

Result<Json> ParseJsonObject(std::string_view text, const std::string& what) {
  if (text.size() > kMaxOciJsonBytes) {
    return InvalidArgumentError(what + " has " + std::to_string(text.size()) +
                                " bytes, more than " + std::to_string(kMaxOciJsonBytes));
  }
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgumentError(what + " is not a JSON object");
  return json;
}

Result<std::string> GetString(const Json& object, const char* key, const std::string& what) {
  const Json* value = Find(object, key);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return WrongType(key, what, "a string");
  return value->get<std::string>();
}

Result<uint64_t> GetUnsigned(const Json& object, const char* key, const std::string& what) {
  const Json* value = Find(object, key);
  if (value == nullptr) return uint64_t{0};
  if (!value->is_number_unsigned()) return WrongType(key, what, "a whole number");
  return value->get<uint64_t>();
}

Result<const Json*> GetArray(const Json& object, const char* key, const std::string& what) {
  const Json* value = Find(object, key);
  if (value != nullptr && !value->is_array()) return WrongType(key, what, "a list");
  return value;
}

Result<const Json*> GetObject(const Json& object, const char* key, const std::string& what) {
  const Json* value = Find(object, key);
  if (value != nullptr && !value->is_object()) return WrongType(key, what, "an object");
  return value;
}

Status CheckOciDigest(std::string_view digest) {
  constexpr std::string_view kPrefix = "sha256:";
  if (digest.starts_with(kPrefix) && Digest::FromHex(digest.substr(kPrefix.size())).ok()) {
    return OkStatus();
  }
  return InvalidArgumentError("\"" + std::string(digest) + "\" is not a sha256 digest");
}

}  // namespace import_internal

namespace {

using import_internal::Json;

constexpr size_t kMaxLayers = 500;
constexpr size_t kMaxItems = 10'000;
constexpr size_t kMaxMoreBytes = 1u << 20;

Result<std::vector<std::string>> GetStrings(const Json& object, const char* key) {
  ESKER_ASSIGN_OR_RETURN(const Json* list, import_internal::GetArray(object, key, "image config"));
  std::vector<std::string> out;
  if (list == nullptr) return out;
  for (const Json& item : *list) {
    if (!item.is_string() || out.size() == kMaxItems) {
      return InvalidArgumentError(std::string("image config: \"") + key +
                                  "\" is not a short list of strings");
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

Status ReadRunConfig(const Json& json, ImageConfig& config) {
  ESKER_ASSIGN_OR_RETURN(const Json* run,
                         import_internal::GetObject(json, "config", "image config"));
  if (run == nullptr) return OkStatus();
  auto text = [&](const char* key) {
    return import_internal::GetString(*run, key, "image config");
  };
  ESKER_ASSIGN_OR_RETURN(config.env, GetStrings(*run, "Env"));
  ESKER_ASSIGN_OR_RETURN(config.user, text("User"));
  ESKER_ASSIGN_OR_RETURN(config.working_dir, text("WorkingDir"));
  ESKER_ASSIGN_OR_RETURN(config.entrypoint, GetStrings(*run, "Entrypoint"));
  ESKER_ASSIGN_OR_RETURN(config.cmd, GetStrings(*run, "Cmd"));
  ESKER_ASSIGN_OR_RETURN(config.stop_signal, text("StopSignal"));
  ESKER_ASSIGN_OR_RETURN(const Json* labels,
                         import_internal::GetObject(*run, "Labels", "image config"));
  if (labels != nullptr) {
    for (const auto& [key, value] : labels->items()) {
      if (!value.is_string() || config.labels.size() == kMaxItems) {
        return InvalidArgumentError("image config: label \"" + key + "\" is not a string");
      }
      config.labels.emplace(key, value.get<std::string>());
    }
  }
  ESKER_ASSIGN_OR_RETURN(const Json* volumes,
                         import_internal::GetObject(*run, "Volumes", "image config"));
  if (volumes != nullptr) {
    for (const auto& [key, value] : volumes->items()) config.volumes.push_back(key);
    if (config.volumes.size() > kMaxItems) return InvalidArgumentError("too many volumes");
  }
  return OkStatus();
}

// What the config holds beyond the members that ImageConfig has.
Result<std::string> ReadMore(std::string_view config_json) {
  ESKER_ASSIGN_OR_RETURN(std::string whole, CanonicalJsonObject(config_json));
  ESKER_ASSIGN_OR_RETURN(Json more, import_internal::ParseJsonObject(whole, "image config"));
  for (const char* key : {"architecture", "os", "rootfs"}) more.erase(key);
  if (auto run = more.find("config"); run != more.end() && run->is_object()) {
    for (const char* key :
         {"Env", "User", "WorkingDir", "Entrypoint", "Cmd", "Labels", "StopSignal", "Volumes"}) {
      run->erase(key);
    }
    std::erase_if(run->get_ref<Json::object_t&>(),
                  [](const auto& m) { return m.second.is_null(); });
    if (run->empty()) more.erase("config");
  }
  std::erase_if(more.get_ref<Json::object_t&>(), [](const auto& m) { return m.second.is_null(); });
  if (more.empty()) return std::string();
  std::string text = more.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kMaxMoreBytes) return text;
  return InvalidArgumentError("image config: " + std::to_string(text.size()) +
                              " bytes of history and the like, more than " +
                              std::to_string(kMaxMoreBytes));
}

Result<std::vector<std::string>> ReadDiffIds(const Json& json) {
  ESKER_ASSIGN_OR_RETURN(const Json* rootfs,
                         import_internal::GetObject(json, "rootfs", "image config"));
  if (rootfs == nullptr) return InvalidArgumentError("image config: it has no \"rootfs\"");
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> diff_ids, GetStrings(*rootfs, "diff_ids"));
  for (const std::string& diff_id : diff_ids) {
    ESKER_RETURN_IF_ERROR(import_internal::CheckOciDigest(diff_id).Wrap("image config: diff id"));
  }
  return diff_ids;
}

// The media type says what kind of thing a layer is; not how it is compressed, which content shows.
Status CheckLayerType(const std::string& type) {
  if (type.find("+encrypted") != type.npos) {
    return UnimplementedError("layers of type " + type + " are encrypted");
  }
  for (std::string_view prefix :
       {"application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs."}) {
    if (type.starts_with(prefix)) return OkStatus();
  }
  return InvalidArgumentError("\"" + type + "\" is not the type of a file system layer");
}

Result<OciLayer> ReadLayer(const Json& json, const std::string& what) {
  if (!json.is_object()) return InvalidArgumentError(what + " is not an object");
  OciLayer layer;
  ESKER_ASSIGN_OR_RETURN(layer.media_type, import_internal::GetString(json, "mediaType", what));
  ESKER_ASSIGN_OR_RETURN(layer.digest, import_internal::GetString(json, "digest", what));
  ESKER_ASSIGN_OR_RETURN(layer.size, import_internal::GetUnsigned(json, "size", what));
  ESKER_RETURN_IF_ERROR(import_internal::CheckOciDigest(layer.digest).Wrap(what));
  ESKER_RETURN_IF_ERROR(CheckLayerType(layer.media_type).Wrap(what));
  return layer;
}

}  // namespace

Result<OciImage> ParseOciImage(std::string_view manifest_json, std::string_view config_json) {
  ESKER_ASSIGN_OR_RETURN(Json manifest,
                         import_internal::ParseJsonObject(manifest_json, "image manifest"));
  ESKER_ASSIGN_OR_RETURN(Json config,
                         import_internal::ParseJsonObject(config_json, "image config"));
  ESKER_ASSIGN_OR_RETURN(uint64_t schema,
                         import_internal::GetUnsigned(manifest, "schemaVersion", "image manifest"));
  if (schema != 2) {
    return InvalidArgumentError("image manifest: schema version " + std::to_string(schema) +
                                " is not 2");
  }
  OciImage image;
  image.manifest_digest = "sha256:" + Sha256::Of(manifest_json).ToHex();
  ESKER_ASSIGN_OR_RETURN(image.config.architecture,
                         import_internal::GetString(config, "architecture", "image config"));
  ESKER_ASSIGN_OR_RETURN(image.config.os, import_internal::GetString(config, "os", "image config"));
  ESKER_RETURN_IF_ERROR(ReadRunConfig(config, image.config));
  Result<std::string> more = ReadMore(config_json);
  if (!more.ok()) return std::move(more).status().Wrap("image config");
  image.config.more = std::move(*more);
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> diff_ids, ReadDiffIds(config));
  ESKER_ASSIGN_OR_RETURN(const Json* layers,
                         import_internal::GetArray(manifest, "layers", "image manifest"));
  const size_t count = layers == nullptr ? 0 : layers->size();
  if (layers == nullptr || count > kMaxLayers || count != diff_ids.size()) {
    return InvalidArgumentError("image manifest: " + std::to_string(count) +
                                " layers, the config has " + std::to_string(diff_ids.size()) +
                                " diff ids, at most " + std::to_string(kMaxLayers) +
                                " can be used");
  }
  for (size_t i = 0; i < count; ++i) {
    ESKER_ASSIGN_OR_RETURN(OciLayer layer,
                           ReadLayer((*layers)[i], "image manifest: layer " + std::to_string(i)));
    layer.diff_id = diff_ids[i];
    image.layers.push_back(std::move(layer));
  }
  return image;
}

}  // namespace esker
