// Images as other tools leave them on a machine: OCI layouts (a folder, or a tar of one) and what
// `docker save` writes. Everything in them is untrusted.
//
// An archive is one tar file. It is not unpacked: its members are indexed by offset. Where that
// cannot be (the archive is compressed, or comes through a pipe) its bytes go to one unnamed
// temporary file first, which the kernel removes with its last descriptor, whatever happens.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "imagefs/import.h"

namespace esker {

// "linux/amd64", "linux/arm64", "linux/arm/v7": what this machine runs.
std::string MachinePlatform();

struct ArchiveOptions {
  std::string platform;             // "os/arch[/variant]", "" = MachinePlatform()
  std::string temporary_directory;  // "" = $TMPDIR or /var/tmp
  uint64_t max_temporary_bytes = uint64_t{64} << 30;
};

// One image, chosen by name and platform. Thread-compatible; layers may be read side by side.
//
// Errors of all Open functions: NOT_FOUND (no such file, name, platform: the message lists what
// there is), INVALID_ARGUMENT (malformed, several images and no name), UNIMPLEMENTED (a media type
// that cannot be imported, by name), DATA_LOSS (cut off, a blob that has other bytes than its
// digest), RESOURCE_EXHAUSTED (no room for temporary bytes: what is needed and where).
class ImageArchive {
 public:
  // A folder. `tag` is the annotation org.opencontainers.image.ref.name; "" if there is just one.
  static Result<std::unique_ptr<ImageArchive>> OpenOciLayout(const std::string& path,
                                                             std::string_view tag,
                                                             const ArchiveOptions& options);
  // The same as a tar.
  static Result<std::unique_ptr<ImageArchive>> OpenOciArchive(const std::string& path,
                                                              std::string_view tag,
                                                              const ArchiveOptions& options);
  // `docker save` of any age: an OCI layout inside (Docker 25 and later), manifest.json (1.10 and
  // later), or only `repositories`. `name` is a "repository[:tag]", "" if there is just one image.
  static Result<std::unique_ptr<ImageArchive>> OpenDockerArchive(const std::string& path,
                                                                 std::string_view name,
                                                                 const ArchiveOptions& options);
  virtual ~ImageArchive() = default;

  // What ParseOciImage accepts. For a docker-archive without an OCI layout the manifest is made
  // here: uncompressed layers under their diff ids, so that archives of one image agree.
  virtual const OciImage& image() const = 0;
  virtual const std::string& manifest_json() const = 0;
  virtual const std::string& config_json() const = 0;
  // The layer's bytes as its digest in image() says. Must not outlive the archive.
  virtual Result<std::unique_ptr<ByteSource>> OpenLayer(size_t layer) const = 0;
  // As it lies in the archive (a progress bar's total).
  virtual uint64_t LayerBytes(size_t layer) const = 0;
};

}  // namespace esker
