#include "export_documents.h"

#include <nlohmann/json.hpp>

#include "base/digest.h"

namespace esker::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kRefName = "org.opencontainers.image.ref.name";

Result<Json> ParseObject(const std::string& text, const char* what) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return DataLossError(std::string(what) + " is not a JSON object");
  return json;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string TagOf(const Json& descriptor) {
  const Json* notes = descriptor.is_object() && descriptor.contains("annotations")
                          ? &descriptor["annotations"]
                          : nullptr;
  if (notes == nullptr || !notes->is_object() || !notes->contains(kRefName)) return "";
  const Json& tag = (*notes)[kRefName];
  return tag.is_string() ? tag.get<std::string>() : "";
}

// "app:1" is short for "docker.io/library/app:1"; a first part with a dot or a port, or localhost,
// is a host already.
std::string WithRegistry(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos) return "docker.io/library/" + name;
  const std::string first = name.substr(0, slash);
  const bool host = first == "localhost" || first.find_first_of(".:") != std::string::npos;
  return host ? name : "docker.io/" + name;
}

}  // namespace

std::string DigestOf(const std::string& bytes) { return "sha256:" + Sha256::Of(bytes).ToHex(); }

std::string BlobPathOf(const std::string& digest) {
  return "blobs/sha256/" + digest.substr(digest.find(':') + 1);
}

Result<std::string> MakeIndex(const std::string& before, const std::string& manifest_json,
                              const std::string& config_json, const std::string& tag,
                              const std::string& docker_name) {
  Json index = {{"schemaVersion", 2}, {"manifests", Json::array()}};
  if (!before.empty()) {
    ESKER_ASSIGN_OR_RETURN(index, ParseObject(before, "the layout's index.json"));
    if (!index.contains("manifests") || !index["manifests"].is_array()) {
      return DataLossError("the layout's index.json has no list of manifests");
    }
  }
  ESKER_ASSIGN_OR_RETURN(Json config, ParseObject(config_json, "the image config"));
  Json platform = {{"os", config.value("os", "linux")},
                   {"architecture", config.value("architecture", "amd64")}};
  if (config.contains("variant")) platform["variant"] = config["variant"];
  Json notes = {{kRefName, tag}};
  if (!docker_name.empty()) notes["io.containerd.image.name"] = WithRegistry(docker_name);
  auto& manifests = index["manifests"].get_ref<Json::array_t&>();
  std::erase_if(manifests, [&](const Json& one) { return TagOf(one) == tag; });
  manifests.push_back({{"mediaType", "application/vnd.oci.image.manifest.v1+json"},
                       {"digest", DigestOf(manifest_json)},
                       {"size", manifest_json.size()},
                       {"platform", std::move(platform)},
                       {"annotations", std::move(notes)}});
  return Dump(index);
}

Result<std::string> MakeDockerManifest(const std::string& manifest_json, const std::string& name) {
  ESKER_ASSIGN_OR_RETURN(Json manifest, ParseObject(manifest_json, "the image manifest"));
  Json layers = Json::array();
  for (const Json& layer : manifest["layers"]) {
    layers.push_back(BlobPathOf(layer["digest"].get<std::string>()));
  }
  Json names = Json::array();
  if (!name.empty()) names.push_back(name);
  return Dump(Json::array({{{"Config", BlobPathOf(manifest["config"]["digest"].get<std::string>())},
                            {"RepoTags", std::move(names)},
                            {"Layers", std::move(layers)}}}));
}

}  // namespace esker::cli
