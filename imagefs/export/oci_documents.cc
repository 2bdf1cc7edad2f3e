#include <nlohmann/json.hpp>

#include "imagefs/export.h"

namespace esker {
namespace {

using Json = nlohmann::json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void PutText(Json& object, const char* key, const std::string& value) {
  if (!value.empty()) object[key] = value;
}
template <typename T>
void PutList(Json& object, const char* key, const T& value) {
  if (!value.empty()) object[key] = value;
}

// The part that a runtime uses.
void FillRunConfig(const ImageConfig& config, Json& run) {
  PutList(run, "Env", config.env);
  PutText(run, "User", config.user);
  PutText(run, "WorkingDir", config.working_dir);
  PutList(run, "Entrypoint", config.entrypoint);
  PutList(run, "Cmd", config.cmd);
  PutList(run, "Labels", config.labels);
  PutText(run, "StopSignal", config.stop_signal);
  for (const std::string& volume : config.volumes) run["Volumes"][volume] = Json::object();
}

// A history that says how many layers it is about must be about these: snapshots add some.
void FixHistory(Json& config, size_t layers) {
  auto history = config.find("history");
  if (history == config.end()) return;
  if (!history->is_array()) {
    config.erase("history");
    return;
  }
  size_t told = 0;
  for (const Json& step : *history) {
    const bool empty = step.is_object() && step.contains("empty_layer") &&
                       step["empty_layer"].is_boolean() && step["empty_layer"].get<bool>();
    told += empty ? 0 : 1;
  }
  if (told > layers) {
    config.erase("history");
    return;
  }
  for (; told < layers; ++told) history->push_back({{"created_by", "esker snapshot"}});
}

}  // namespace

OciDocuments MakeOciDocuments(const Manifest& manifest, const std::vector<ExportedLayer>& layers) {
  const ImageConfig& from = manifest.config;
  Json config = Json::parse(from.more.empty() ? "{}" : from.more, nullptr, false);
  if (!config.is_object()) config = Json::object();
  config["architecture"] = from.architecture.empty() ? "amd64" : from.architecture;
  config["os"] = from.os.empty() ? "linux" : from.os;
  if (!config.contains("config") || !config["config"].is_object())
    config["config"] = Json::object();
  FillRunConfig(from, config["config"]);
  Json diff_ids = Json::array();
  Json descriptors = Json::array();
  for (const ExportedLayer& layer : layers) {
    diff_ids.push_back(layer.diff_id);
    descriptors.push_back(
        {{"mediaType", layer.media_type}, {"digest", layer.digest}, {"size", layer.size}});
  }
  config["rootfs"] = {{"type", "layers"}, {"diff_ids", std::move(diff_ids)}};
  FixHistory(config, layers.size());
  OciDocuments out;
  out.config_json = Dump(config);
  out.manifest_json = Dump({{"schemaVersion", 2},
                            {"mediaType", "application/vnd.oci.image.manifest.v1+json"},
                            {"config",
                             {{"mediaType", "application/vnd.oci.image.config.v1+json"},
                              {"digest", "sha256:" + Sha256::Of(out.config_json).ToHex()},
                              {"size", out.config_json.size()}}},
                            {"layers", std::move(descriptors)}});
  return out;
}

}  // namespace esker
