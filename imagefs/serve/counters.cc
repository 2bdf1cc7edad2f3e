#include "counters.h"

#include "base/log.h"

namespace esker {

ReadCounts Counters::Counts() const {
  ReadCounts out;
  out.reads = reads;
  out.reads_from_cache = reads_from_cache;
  out.bytes_asked = bytes_asked;
  out.bytes_from_cache = bytes_from_cache;
  out.fetches = fetches;
  out.bytes_fetched = bytes_fetched;
  out.store_retries = store_retries;
  out.wrong_digests = wrong_digests;
  out.errors = errors;
  return out;
}

void ServerCounters::Log() const {
  LogInfo("blob-server-counters", {{"reads", reads.load()},
                                   {"reads_from_cache", reads_from_cache.load()},
                                   {"bytes_asked", bytes_asked.load()},
                                   {"bytes_from_cache", bytes_from_cache.load()},
                                   {"fetches", fetches.load()},
                                   {"bytes_fetched", bytes_fetched.load()},
                                   {"store_retries", store_retries.load()},
                                   {"wrong_digests", wrong_digests.load()},
                                   {"errors", errors.load()},
                                   {"prefetched_bytes", prefetched_bytes.load()},
                                   {"readahead_bytes", readahead_bytes.load()},
                                   {"blobs_completed", blobs_completed.load()}});
}

}  // namespace esker
