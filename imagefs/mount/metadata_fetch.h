// Brings a metadata image from the store into the cache: verified, validated, durable.
#pragma once

#include "base/status.h"
#include "imagefs/cache_layout.h"
#include "imagefs/layer_cache.h"
#include "imagefs/manifest.h"
#include "imagefs/store.h"
#include "metadata_record.h"

namespace esker {

// Leaves meta/<id>.erofs and its record, or nothing. A store that fails is tried again for a
// bounded time, with a fresh map each time. DATA_LOSS: wrong bytes, or the validator refused.
Result<MetadataRecord> FetchMetadata(const CacheLayout& cache, Store& store,
                                     const LayerCache::MapSource& maps, const ImageLayer& layer);

}  // namespace esker
