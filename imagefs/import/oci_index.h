// Choosing one image of an OCI index. Private to import.
// https://github.com/opencontainers/image-spec/blob/main/image-index.md
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "platform.h"

namespace esker::import_internal {

// What an index offers.
struct OciDescriptor {
  std::string media_type;
  std::string digest;
  std::string ref_name;    // annotation org.opencontainers.image.ref.name
  std::string image_name;  // annotation io.containerd.image.name: "docker.io/library/x:tag"
  Platform platform;       // empty if it does not say
  bool is_attestation = false;
};

// UNIMPLEMENTED or INVALID_ARGUMENT, by name, for what cannot be an image.
Status CheckManifestType(const std::string& media_type);

Result<std::vector<OciDescriptor>> ParseOciIndex(std::string_view text);

// Those with that name; "" is fine while all have the same. NOT_FOUND lists what there is.
Result<std::vector<OciDescriptor>> PickNamed(std::vector<OciDescriptor> all, std::string_view name);

// "docker.io/library/x" and "x" and "x:latest" are one name.
std::string NormaliseDockerName(std::string_view name);

// A blob's bytes, compared with its digest.
using ReadBlobFunction = std::function<Result<std::string>(const std::string& digest)>;

// The manifest that fits the platform best, through nested indexes. Manifests whose descriptor does
// not say a platform are asked for their config's.
struct PickedManifest {
  std::string digest;
  std::string manifest_json;
  std::string config_json;
};
Result<PickedManifest> PickPlatform(const std::vector<OciDescriptor>& candidates,
                                    const Platform& wanted, const ReadBlobFunction& read);

}  // namespace esker::import_internal
