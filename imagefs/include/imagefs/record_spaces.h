// Spaces of the store's records that more than one component knows.
#pragma once

#include <string_view>

namespace esker {

// What the first starts of an image read, under the image's id in hex: written by nodes, removed by
// garbage collection with the image. docs/formats/start-record.md.
inline constexpr std::string_view kStartRecordSpace = "prefetch";

}  // namespace esker
