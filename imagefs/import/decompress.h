// Decompression recognised by content. Private to import.
#pragma once

#include <memory>

#include "imagefs/import.h"

namespace esker::import_internal {

// The plain bytes of `source`, which is gzip, zstd, xz or plain; the first bytes decide, whatever
// anybody claims. A compressed stream that is cut off or damaged gives DATA_LOSS. The source must
// outlive the result; reading to the end may leave trailing bytes of the source unread.
Result<std::unique_ptr<ByteSource>> Decompress(ByteSource& source);

// Whether Decompress would decompress it; takes the first bytes of the source.
Result<bool> IsCompressed(ByteSource& source);

}  // namespace esker::import_internal
