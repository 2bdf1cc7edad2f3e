// Stories for crash tests: steps on a store and its index, each acknowledged when it returns. The
// driver program runs one and may be killed at any failure point; the test opens what is left.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker::testing {

struct Step {
  std::string name;
  std::function<Status(Store&, Index&)> run;
};

// Images, tags, deletions and collections, from packs written directly.
std::vector<Step> IndexStory();
// Pushes of OCI layers and commits of upper directories.
std::vector<Step> PushStory();
std::vector<Step> StoryByName(std::string_view name);

// Every chunk of every layer is where the index says, with the right bytes.
Status CheckLayers(Store& store, Index& index, const Manifest& manifest);

// What a user sees: the labels of all images that exist, with their tags; and that every chunk of
// every layer is there and right.
Result<std::string> Describe(Store& store, Index& index);

}  // namespace esker::testing
