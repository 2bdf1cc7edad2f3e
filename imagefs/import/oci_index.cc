#include "oci_index.h"

#include <algorithm>
#include <optional>
#include <set>

#include "oci_json.h"

namespace esker::import_internal {
namespace {

constexpr int kMaxIndexDepth = 4;
constexpr size_t kMaxManifests = 1000;
constexpr size_t kMaxIndexes = 100;
constexpr const char* kRefName = "org.opencontainers.image.ref.name";
constexpr const char* kImageName = "io.containerd.image.name";
constexpr const char* kAttestation = "vnd.docker.reference.type";

bool IsIndex(const std::string& type) {
  return type == "application/vnd.oci.image.index.v1+json" ||
         type == "application/vnd.docker.distribution.manifest.list.v2+json";
}

Result<OciDescriptor> ReadDescriptor(const Json& json) {
  const std::string what = "image index: a descriptor";
  if (!json.is_object()) return InvalidArgumentError(what + " is not an object");
  OciDescriptor out;
  ESKER_ASSIGN_OR_RETURN(out.media_type, GetString(json, "mediaType", what));
  ESKER_ASSIGN_OR_RETURN(out.digest, GetString(json, "digest", what));
  ESKER_RETURN_IF_ERROR(CheckOciDigest(out.digest).Wrap(what));
  ESKER_ASSIGN_OR_RETURN(const Json* notes, GetObject(json, "annotations", what));
  if (notes != nullptr) {
    ESKER_ASSIGN_OR_RETURN(out.ref_name, GetString(*notes, kRefName, what));
    ESKER_ASSIGN_OR_RETURN(out.image_name, GetString(*notes, kImageName, what));
    out.is_attestation = notes->contains(kAttestation);
  }
  ESKER_ASSIGN_OR_RETURN(const Json* platform, GetObject(json, "platform", what));
  if (platform != nullptr) {
    ESKER_ASSIGN_OR_RETURN(out.platform.os, GetString(*platform, "os", what));
    ESKER_ASSIGN_OR_RETURN(out.platform.architecture, GetString(*platform, "architecture", what));
    ESKER_ASSIGN_OR_RETURN(out.platform.variant, GetString(*platform, "variant", what));
    out.platform = Normalise(std::move(out.platform));
  }
  return out;
}

std::string JoinNames(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    if (name.empty()) continue;
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out.empty() ? "none" : out;
}

const std::string& NameOf(const OciDescriptor& one) {
  return one.image_name.empty() ? one.ref_name : one.image_name;
}

std::string NamesOf(const std::vector<OciDescriptor>& all) {
  std::set<std::string> names;
  for (const OciDescriptor& one : all) names.insert(NameOf(one));
  return JoinNames(names);
}

// The manifests below some descriptors, flat.
class Gatherer {
 public:
  explicit Gatherer(const ReadBlobFunction& read) : read_(read) {}

  Status Add(const std::vector<OciDescriptor>& descriptors, const Platform& from_above, int depth) {
    if (depth > kMaxIndexDepth) {
      return InvalidArgumentError("image indexes are nested too deeply");
    }
    for (const OciDescriptor& one : descriptors) {
      Platform platform = one.platform.empty() ? from_above : one.platform;
      if (IsIndex(one.media_type)) {
        // An index may stand in many places: what is read must be bounded, not only the depth.
        if (++indexes_ > kMaxIndexes) return InvalidArgumentError("too many image indexes");
        ESKER_ASSIGN_OR_RETURN(std::string text, read_(one.digest));
        ESKER_ASSIGN_OR_RETURN(std::vector<OciDescriptor> nested, ParseOciIndex(text));
        ESKER_RETURN_IF_ERROR(Add(nested, platform, depth + 1));
        continue;
      }
      // Attestations stand beside images under the platform unknown/unknown.
      if (one.is_attestation) continue;
      if (found_.size() == kMaxManifests) {
        return InvalidArgumentError("an image index of more than " + std::to_string(kMaxManifests) +
                                    " manifests");
      }
      found_.push_back(one);
      found_.back().platform = std::move(platform);
    }
    return OkStatus();
  }
  const std::vector<OciDescriptor>& found() const { return found_; }

 private:
  const ReadBlobFunction& read_;
  std::vector<OciDescriptor> found_;
  size_t indexes_ = 0;
};

Result<PickedManifest> ReadManifest(const OciDescriptor& one, const ReadBlobFunction& read) {
  ESKER_RETURN_IF_ERROR(CheckManifestType(one.media_type));
  PickedManifest out;
  out.digest = one.digest;
  ESKER_ASSIGN_OR_RETURN(out.manifest_json, read(one.digest));
  ESKER_ASSIGN_OR_RETURN(Json manifest, ParseJsonObject(out.manifest_json, "image manifest"));
  ESKER_ASSIGN_OR_RETURN(std::string own_type, GetString(manifest, "mediaType", "image manifest"));
  ESKER_RETURN_IF_ERROR(CheckManifestType(own_type));
  ESKER_ASSIGN_OR_RETURN(std::string artifact,
                         GetString(manifest, "artifactType", "image manifest"));
  if (!artifact.empty()) {
    return UnimplementedError("the manifest is an artifact of type " + artifact + ", not an image");
  }
  if (manifest.contains("fsLayers")) {
    return UnimplementedError("a Docker manifest of schema 1 cannot be imported");
  }
  ESKER_ASSIGN_OR_RETURN(const Json* config, GetObject(manifest, "config", "image manifest"));
  if (config == nullptr) return InvalidArgumentError("image manifest: it has no \"config\"");
  ESKER_ASSIGN_OR_RETURN(std::string type, GetString(*config, "mediaType", "image manifest"));
  if (!type.empty() && type != "application/vnd.oci.image.config.v1+json" &&
      type != "application/vnd.docker.container.image.v1+json") {
    return UnimplementedError("the manifest's config is of type " + type +
                              ": an artifact, not an image");
  }
  ESKER_ASSIGN_OR_RETURN(std::string digest,
                         GetString(*config, "digest", "image manifest: config"));
  ESKER_RETURN_IF_ERROR(CheckOciDigest(digest).Wrap("image manifest: config"));
  ESKER_ASSIGN_OR_RETURN(out.config_json, read(digest));
  return out;
}

Result<Platform> PlatformOfConfig(const std::string& config_json) {
  ESKER_ASSIGN_OR_RETURN(Json config, ParseJsonObject(config_json, "image config"));
  Platform out;
  ESKER_ASSIGN_OR_RETURN(out.os, GetString(config, "os", "image config"));
  ESKER_ASSIGN_OR_RETURN(out.architecture, GetString(config, "architecture", "image config"));
  ESKER_ASSIGN_OR_RETURN(out.variant, GetString(config, "variant", "image config"));
  return Normalise(std::move(out));
}

}  // namespace

Status CheckManifestType(const std::string& type) {
  if (type.empty() || type == "application/vnd.oci.image.manifest.v1+json" ||
      type == "application/vnd.docker.distribution.manifest.v2+json") {
    return OkStatus();
  }
  if (type == "application/vnd.docker.distribution.manifest.v1+json" ||
      type == "application/vnd.docker.distribution.manifest.v1+prettyjws") {
    return UnimplementedError("a Docker manifest of schema 1 (" + type + ") cannot be imported");
  }
  if (type == "application/vnd.oci.artifact.manifest.v1+json") {
    return UnimplementedError("an artifact (" + type + ") is not an image");
  }
  return InvalidArgumentError("\"" + type + "\" is not the type of an image manifest");
}

Result<std::vector<OciDescriptor>> ParseOciIndex(std::string_view text) {
  ESKER_ASSIGN_OR_RETURN(Json index, ParseJsonObject(text, "image index"));
  ESKER_ASSIGN_OR_RETURN(const Json* list, GetArray(index, "manifests", "image index"));
  std::vector<OciDescriptor> out;
  if (list == nullptr) return out;
  for (const Json& item : *list) {
    ESKER_ASSIGN_OR_RETURN(OciDescriptor descriptor, ReadDescriptor(item));
    out.push_back(std::move(descriptor));
  }
  return out;
}

std::string NormaliseDockerName(std::string_view name) {
  for (std::string_view prefix : {"docker.io/", "library/"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  std::string out(name);
  const size_t colon = out.rfind(':');
  const bool tagged = colon != std::string::npos && out.find('/', colon) == std::string::npos;
  return tagged || out.empty() ? out : out + ":latest";
}

Result<std::vector<OciDescriptor>> PickNamed(std::vector<OciDescriptor> all,
                                             std::string_view name) {
  if (name.empty()) {
    for (const OciDescriptor& one : all) {
      if (NameOf(one) != NameOf(all[0]) && one.digest != all[0].digest) {
        return InvalidArgumentError("it holds several images, name one: " + NamesOf(all));
      }
    }
    if (all.empty()) return NotFoundError("it holds no image");
    return all;
  }
  const std::string wanted = NormaliseDockerName(name);
  std::vector<OciDescriptor> by_name, by_tag;
  for (const OciDescriptor& one : all) {
    if (!one.image_name.empty() && NormaliseDockerName(one.image_name) == wanted) {
      by_name.push_back(one);
    }
    if (one.ref_name == name) by_tag.push_back(one);
  }
  std::vector<OciDescriptor>& fitting = by_name.empty() ? by_tag : by_name;
  if (fitting.empty()) {
    return NotFoundError("it has no image \"" + std::string(name) + "\"; it has: " + NamesOf(all));
  }
  return std::move(fitting);
}

Result<PickedManifest> PickPlatform(const std::vector<OciDescriptor>& candidates,
                                    const Platform& wanted, const ReadBlobFunction& read) {
  Gatherer gatherer(read);
  ESKER_RETURN_IF_ERROR(gatherer.Add(candidates, {}, 0));
  std::set<std::string> offered;
  std::optional<PickedManifest> best;
  int best_rank = 0;
  Status last;
  for (const OciDescriptor& one : gatherer.found()) {
    Platform platform = one.platform;
    std::optional<PickedManifest> manifest;
    if (platform.empty()) {
      Result<PickedManifest> found = ReadManifest(one, read);
      // One that is no image must not hide those beside it.
      if (!found.ok()) {
        last = std::move(found).status();
        continue;
      }
      ESKER_ASSIGN_OR_RETURN(platform, PlatformOfConfig(found->config_json));
      manifest = std::move(*found);
    }
    offered.insert(platform.ToString());
    const int rank = PlatformRank(wanted, platform);
    if (rank <= best_rank) continue;
    if (!manifest) {
      ESKER_ASSIGN_OR_RETURN(manifest, ReadManifest(one, read));
    }
    best = std::move(manifest);
    best_rank = rank;
  }
  if (best) {
    // The config has the last word: descriptors are only hints.
    ESKER_ASSIGN_OR_RETURN(Platform built_for, PlatformOfConfig(best->config_json));
    if (built_for.os == wanted.os && built_for.architecture == wanted.architecture) {
      return std::move(*best);
    }
    return NotFoundError("the image is for " + built_for.ToString() + ", not for " +
                         wanted.ToString());
  }
  if (offered.empty() && !last.ok()) return last;
  return NotFoundError("the image is not there for " + wanted.ToString() +
                       "; it is there for: " + JoinNames(offered));
}

}  // namespace esker::import_internal
