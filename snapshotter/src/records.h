// The contents of the store's numbered records. docs/formats/records.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "imagefs/store.h"
#include "imagefs/types.h"

namespace esker {

inline constexpr std::string_view kTagSpace = "tags";
inline constexpr std::string_view kImageSpace = "images";

struct TagRecord {
  std::optional<ImageId> image;     // nothing: deleted
  std::optional<ImageId> replaces;  // the image that had the name before
  std::string Encode() const;
  static Result<TagRecord> Parse(std::string_view content);
};

// An image's tombstone, or that it was published again after one.
std::string EncodeImageState(bool deleted);
Result<bool> ParseImageState(std::string_view content);  // true: deleted

// Publishes the record after `last`; when a number is taken (by a writer whose end we did not see,
// perhaps ourselves before a crash) the one after the newest. Returns the number.
Result<uint64_t> PublishNextRecord(Store& store, std::string_view space, const std::string& name,
                                   uint64_t last, const std::string& content);

}  // namespace esker
