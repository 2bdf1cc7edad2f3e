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

// What a tag names, and for whom. Written in form 2; form 1 (no project, no job) is still read.
struct TagRecord {
  std::optional<ImageId> image;  // nothing: the tag was deleted
  std::string project;           // whose name it is, "": shared; the same as in the full name
  std::string job;               // that gave the name, "": none was stated
  std::string Encode() const;
  // DATA_LOSS also when the record is another project's than the name it stands under.
  static Result<TagRecord> Parse(std::string_view full_name, std::string_view content);
};

// Whether an image is deleted. "Deleted with tag T at N" counts once T has record N or a later one
// (or none at all, having been removed since): so an image goes with its last tag in one step.
struct ImageStateRecord {
  bool deleted = false;
  std::string with_tag;  // "": without a condition
  uint64_t at_number = 0;
  std::string Encode() const;
  static Result<ImageStateRecord> Parse(std::string_view content);
};

// Publishes the record after `last`; when a number is taken (by a writer whose end we did not see,
// perhaps ourselves before a crash) the one after the newest. Returns the number.
Result<uint64_t> PublishNextRecord(Store& store, std::string_view space, const std::string& name,
                                   uint64_t last, const std::string& content);

}  // namespace esker
