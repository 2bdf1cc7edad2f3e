// Where an export goes: an OCI layout, or one tar with a layout in it. Nothing that looks whole is
// there before Finish: the index comes last, an archive gets its name last. A target that is
// destroyed unfinished removes what it wrote.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace esker::cli {

class ExportTarget {
 public:
  // "oci:PATH[:TAG]", "oci-archive:FILE[:TAG]", "docker-archive:FILE[:NAME[:TAG]]". `reference` is
  // the image's name as the user gave it, from which a name that is not said is made.
  static Result<std::unique_ptr<ExportTarget>> Open(const std::string& target,
                                                    const std::string& reference);
  virtual ~ExportTarget() = default;

  // One blob: any number of Write, then EndBlob. The caller has compared the digest.
  virtual Status Write(std::string_view bytes) = 0;
  virtual Status EndBlob(const std::string& digest) = 0;
  // After the layers. Durable on return.
  virtual Status Finish(const std::string& manifest_json, const std::string& config_json) = 0;
};

}  // namespace esker::cli
