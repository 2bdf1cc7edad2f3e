// Reads tar: v7, ustar, star, old GNU, GNU and PAX, sparse members included. Private to import.
//
// Written here rather than taken from libarchive because names are bytes: libarchive converts PAX
// names through the process's locale (and composes Unicode on the way), and only warns where an
// extended attribute or a record is malformed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "content_writer.h"
#include "imagefs/import.h"
#include "pax_records.h"
#include "tar_header.h"
#include "tar_sparse.h"

namespace esker::import_internal {

struct TarEntry {
  enum class Kind { kFile, kHardLink, kSymlink, kCharDevice, kBlockDevice, kDirectory, kFifo };
  Kind kind = Kind::kFile;
  std::string path;
  std::string link_target;
  uint32_t mode = 0;
  int64_t uid = 0, gid = 0;
  int64_t mtime_seconds = 0;
  uint32_t mtime_nanos = 0;
  int64_t device_major = 0, device_minor = 0;
  uint64_t size = 0;                          // of a file, holes included
  std::map<std::string, std::string> xattrs;  // as the archive has them, ACLs converted
};

class TarReader {
 public:
  // `source` gives the uncompressed tar.
  explicit TarReader(ByteSource& source);

  // The next entry; false at the end of the archive. Content that was not read is skipped.
  // DATA_LOSS (cut off, malformed), INVALID_ARGUMENT (a kind of entry that cannot be kept).
  Result<bool> Next(TarEntry& entry);
  // The content of the entry at hand, once.
  Status ReadContent(ContentWriter& content);

 private:
  Result<bool> ReadBlock();  // false: the stream ends here
  Result<bool> ReadHeader(TarHeader& header);
  Result<std::string> ReadBody(const TarHeader& header, size_t limit, const char* what);
  Status SkipBytes(uint64_t bytes);
  Status FinishEntry();
  Status Fill(TarHeader& header, TarEntry& entry);
  Status ApplyRecords(TarHeader& header, TarEntry& entry);
  static Status ApplyRecords(const PaxRecords& records, const TarHeader& plain, TarHeader& header,
                             TarEntry& entry);
  Status SetUpSparse(const TarHeader& header, TarEntry& entry);
  Status CutOff() const;
  std::string Where() const;

  ByteSource& source_;
  std::vector<char> block_;
  uint64_t offset_ = 0;         // in the tar
  uint64_t header_offset_ = 0;  // of the entry at hand
  PaxRecords global_;

  // Collected in front of an entry.
  PaxRecords local_;
  std::string long_name_, long_link_;

  // The entry at hand.
  uint64_t data_left_ = 0;  // stored bytes not yet read
  uint64_t padding_ = 0;
  SparseMap map_;
};

}  // namespace esker::import_internal
