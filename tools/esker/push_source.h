// Where a push comes from: an OCI layout, a tar file or a directory of the client's machine.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "esker/v1/image.pb.h"
#include "imagefs/import.h"

namespace esker::cli {

class PushSource {
 public:
  // "oci:PATH[:TAG]", "tar:FILE", "dir:PATH".
  static Result<std::unique_ptr<PushSource>> Open(const std::string& reference,
                                                  const std::string& platform);
  virtual ~PushSource() = default;
  virtual void FillBegin(v1::PushRequest::Begin* begin) const = 0;
  virtual Result<std::unique_ptr<ByteSource>> OpenLayer(uint32_t layer) = 0;
  virtual uint64_t LayerBytes(uint32_t layer) const = 0;  // 0: not known
};

}  // namespace esker::cli
