// One layer in the making: tree, content and pack together. Private to import.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "content_writer.h"
#include "imagefs/erofs.h"
#include "imagefs/import.h"

namespace esker::import_internal {

class LayerBuilder {
 public:
  static Result<std::unique_ptr<LayerBuilder>> Create(Store& store, ChunkLookup& lookup,
                                                      const ImportOptions& options);

  erofs::Tree& tree() { return tree_; }
  ContentWriter& content() { return content_; }
  ImportProgress& progress() { return progress_; }

  // Reports progress when it is time, and gives CANCELLED when that was asked for. Call it for
  // every entry; content does so for every chunk.
  Status Tick();

  // Writes the metadata image, publishes the pack. `layer` carries source_digest and diff_id in.
  using ExtraManifest = std::function<std::optional<std::string>(const ImageLayer&)>;
  Result<ImportedLayer> Finish(ImageLayer layer, const ExtraManifest& extra_manifest);

 private:
  LayerBuilder(std::unique_ptr<PackWriter> pack, ChunkLookup& lookup, const ImportOptions& options);
  Status StoreMetadata(ImageLayer& layer);

  const ImportOptions& options_;
  ImportProgress progress_;
  std::unique_ptr<PackWriter> pack_;
  erofs::Tree tree_;
  ContentWriter content_;
  std::chrono::steady_clock::time_point next_report_;
};

}  // namespace esker::import_internal
