// The small files of an OCI layout and of a docker archive.
#pragma once

#include <string>

#include "base/status.h"

namespace esker::cli {

inline constexpr const char* kOciLayoutFile = R"({"imageLayoutVersion":"1.0.0"})";

// "sha256:..." of some bytes, and where a layout keeps a blob.
std::string DigestOf(const std::string& bytes);
std::string BlobPathOf(const std::string& digest);

// index.json with the image under `tag`; what `before` ("" = none) has under other tags stays.
// `docker_name`: "name:tag" by which docker finds it, "" for none.
Result<std::string> MakeIndex(const std::string& before, const std::string& manifest_json,
                              const std::string& config_json, const std::string& tag,
                              const std::string& docker_name = "");
// manifest.json of `docker save` over the same blobs. `name` "" = none.
Result<std::string> MakeDockerManifest(const std::string& manifest_json, const std::string& name);

}  // namespace esker::cli
