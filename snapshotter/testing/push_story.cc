#include "crash_story.h"

namespace esker::testing {

std::vector<Step> PushStory() { return {}; }

}  // namespace esker::testing
