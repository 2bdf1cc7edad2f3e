// Pushing an image: the OCI image's layers that the store lacks become layers, then the manifest is
// published and tagged. And committing: a frozen upper becomes one more layer.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "imagefs/import.h"
#include "snapshotter/index.h"

namespace esker {

struct PushTotals {
  ImportProgress bytes;
  uint32_t layers = 0;
  uint32_t layers_reused = 0;  // already in the store: not even read
};

// One push. Not thread-safe, but any number of pushes run side by side; two that import the same
// layer at once do it once (the second waits) and both succeed.
class ImagePush {
 public:
  // Whether a layer of this diff_id that the store has may be taken by its name alone. If not, it
  // must be sent (proving that the sender has it), although it is stored once.
  using MayReuse = std::function<bool(const std::string& diff_id)>;
  // `image` came from ParseOciImage; or it is one tar without a manifest: a layer with no digest
  // and no diff_id, which are then not checked but found out. Without `may_reuse`: all may.
  static Result<std::unique_ptr<ImagePush>> Start(Store& store, Index& index, OciImage image,
                                                  MayReuse may_reuse = {});
  virtual ~ImagePush() = default;

  // Layers (index into the image's list) that must be fed, lowest first.
  virtual const std::vector<size_t>& missing() const = 0;
  // Durable on return. The layer's digest and diff_id are checked against the image's. While
  // another push imports the same layer this waits (options.cancelled is polled); if that one
  // brought it, OK is returned and `source` may not have been read at all. DATA_LOSS: not the
  // announced bytes; ABORTED: the same pack was garbage collected at that moment, send the layer
  // again.
  virtual Status ImportLayer(size_t layer, ByteSource& source, const ImportOptions& options) = 0;
  // Publishes manifest and tag (a full name, "" = none), which gets the job ("" = none).
  // FAILED_PRECONDITION names the first layer that was not sent. The same OCI image always gives
  // the same image id.
  virtual Result<ImageId> Finish(const std::string& tag, const std::string& job = "") = 0;
  virtual const PushTotals& totals() const = 0;
};

struct CommitRequest {
  ImageId parent;
  int upper_fd = -1;  // directory fd of a quiescent overlay upper (a clone, or frozen)
  std::string tier = "container";
  std::map<std::string, std::string> origin;  // sandbox, project, job, name, created
  std::vector<std::string> config_env;        // nothing: keep the parent's config
};
struct CommitResult {
  ImageId image;
  ImportProgress totals;
};
// Data, metadata, map and manifest go out as one pack: one fsync, one link. Durable on return.
// An empty upper still gives a new image (same layers, new manifest).
Result<CommitResult> CommitUpper(Store& store, Index& index, const CommitRequest& request,
                                 const ImportOptions& options);

}  // namespace esker
