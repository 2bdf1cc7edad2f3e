// Where a push comes from: an image archive, a tar file or a directory of the client's machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "esker/v1/image.pb.h"
#include "imagefs/image_archive.h"
#include "imagefs/import.h"

namespace CLI {
class App;
}

namespace esker::cli {

inline constexpr const char* kPushSources =
    "oci:PATH[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME[:TAG]], tar:FILE or "
    "dir:PATH";

// --platform, --tmp-dir, --tmp-max-gb. `options` must live as long as the application.
void AddArchiveOptions(CLI::App* verb, ArchiveOptions& options);

// "PATH[:NAME]", where either may have colons: the shortest path that exists counts.
struct PathAndName {
  std::string path, name;
};
PathAndName SplitPathAndName(const std::string& text);

class PushSource {
 public:
  // One of kPushSources.
  static Result<std::unique_ptr<PushSource>> Open(const std::string& reference,
                                                  const ArchiveOptions& options);
  virtual ~PushSource() = default;
  virtual void FillBegin(v1::PushRequest::Begin* begin) const = 0;
  virtual Result<std::unique_ptr<ByteSource>> OpenLayer(uint32_t layer) = 0;
  virtual uint64_t LayerBytes(uint32_t layer) const = 0;  // 0: not known

  // What says whether the store has it already, without reading layers: "" and nothing where only
  // the bytes could tell.
  virtual std::string ManifestDigest() const { return ""; }
  virtual std::vector<std::string> DiffIds() const { return {}; }
  // Of a single file, read whole for it; "" where there is none.
  virtual Result<std::string> StreamDigest() const { return std::string(); }
};

}  // namespace esker::cli
