// Compresses a stream, deterministically. Private to export.
#pragma once

#include <memory>

#include "imagefs/export.h"

namespace esker::export_internal {

class Compressor {
 public:
  static Result<std::unique_ptr<Compressor>> Create(LayerCompression kind, ByteSink sink);
  virtual ~Compressor() = default;
  virtual Status Write(std::string_view bytes) = 0;
  virtual Status Finish() = 0;
};

}  // namespace esker::export_internal
