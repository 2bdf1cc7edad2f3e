// Names of images: whose they are, and what nearest name a person may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "snapshotter/index.h"

namespace esker {

// The full names that a full reference may mean, in this order.
std::vector<std::string> NamesToTry(const std::string& full_name, const ImageView& view);
bool ShowsName(const ImageView& view, std::string_view full_name);

// Levenshtein distance of two byte strings, at most `limit` + 1.
size_t EditDistance(std::string_view a, std::string_view b, size_t limit);
// Up to three of `names`, nearest first, none that is plainly something else.
std::vector<std::string> NearestNames(std::string_view wanted,
                                      const std::vector<std::string>& names);

}  // namespace esker
