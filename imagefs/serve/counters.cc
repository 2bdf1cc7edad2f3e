#include "counters.h"

#include "base/log.h"

namespace esker {

void Counters::Log() const {
  LogInfo("blob-server-counters", {{"reads", reads.load()},
                                   {"reads_from_cache", reads_from_cache.load()},
                                   {"bytes_asked", bytes_asked.load()},
                                   {"fetches", fetches.load()},
                                   {"bytes_fetched", bytes_fetched.load()},
                                   {"store_retries", store_retries.load()},
                                   {"wrong_digests", wrong_digests.load()},
                                   {"errors", errors.load()},
                                   {"blobs_completed", blobs_completed.load()}});
}

}  // namespace esker
