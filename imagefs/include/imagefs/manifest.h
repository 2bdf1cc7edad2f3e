// Image manifests: canonical JSON, content-addressed. docs/formats/manifest.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "imagefs/types.h"

namespace esker {

struct ImageLayer {
  BlobId metadata;  // an EROFS file system whose data lies in device 1
  BlobId data;      // its data blob; all-zero digest when the layer has no file data
  uint64_t metadata_bytes = 0;
  uint64_t data_bytes = 0;
  std::string source_digest;  // "sha256:..." of the OCI layer as pushed, "" for snapshots
  std::string diff_id;        // "sha256:..." of the uncompressed tar, "" for snapshots
  bool has_data() const { return data_bytes != 0; }
};

struct ImageConfig {             // the OCI image config's part that a sandbox uses
  std::vector<std::string> env;  // "NAME=value"
  std::string user;
  std::string working_dir;
  std::vector<std::string> entrypoint;
  std::vector<std::string> cmd;
  std::map<std::string, std::string> labels;
  std::string stop_signal;
  std::vector<std::string> volumes;
  std::string architecture;
  std::string os;
  // What else the OCI image config had (exposed ports, health check, shell, history, author, ...):
  // it in canonical JSON without the members above and without "rootfs"; "" when nothing is left.
  std::string more;
};

// A JSON object of strangers in one spelling: keys sorted, no white space. INVALID_ARGUMENT if it
// is none, or deeper than 64 levels (what is dumped again must not be deeper than a stack).
Result<std::string> CanonicalJsonObject(std::string_view text);

struct Manifest {
  static constexpr int kSchema = 1;
  std::string kind = "image";      // "image" or "snapshot"
  std::string tier = "container";  // the tier a snapshot was taken in
  std::vector<ImageLayer> layers;  // lowest first, as in OCI
  ImageConfig config;
  std::string parent;  // hex image id, "" for a root
  std::map<std::string, std::string>
      origin;  // e.g. sandbox, project, job, created (RFC 3339), oci digest

  // Keys sorted, no white space: the same manifest always gives the same bytes and id.
  std::string ToJson() const;
  ImageId Id() const;
  // From untrusted bytes: strict types, bounds (at most 500 layers), unknown schema refused.
  static Result<Manifest> FromJson(std::string_view json);
};

}  // namespace esker
