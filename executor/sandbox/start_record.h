// StartRecord: what the first starts of an image read of its data blobs, kept beside the image in
// the store and fetched ahead at the next cold start. docs/formats/start-record.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "imagefs/blob_server_types.h"
#include "imagefs/record_spaces.h"

namespace esker {

struct StartRecord {
  uint32_t starts = 0;              // how many it was made from
  std::vector<BlobRanges> touched;  // by blob id; ranges ascending and apart

  static constexpr uint32_t kMostStarts = 3;
  static constexpr size_t kMostBlobs = 512;
  static constexpr size_t kMostRanges = 65536;  // of all blobs together

  std::string Serialise() const;
  // From untrusted bytes. DATA_LOSS says what is wrong.
  static Result<StartRecord> Parse(std::string_view bytes);
  // Adds what another start touched, up to kMostRanges.
  void Merge(const std::vector<BlobRanges>& more);
  uint64_t chunks() const;
};

}  // namespace esker
