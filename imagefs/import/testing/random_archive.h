// Random layers for property tests: a list of entries, what they must become, and the tars that
// several writers make of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "imagefs/erofs.h"

namespace esker::testing {

struct RandomEntry {
  enum class Kind {
    kFile,
    kDirectory,
    kSymlink,
    kHardLink,
    kCharDevice,
    kBlockDevice,
    kFifo,
    kWhiteout,  // of `path`
    kOpaque,    // marker in the directory `path`
  };
  Kind kind = Kind::kFile;
  std::string path;
  std::string spelling;  // the path as the archive has it: "./a//b", "/a/b", "a/x/../b"
  std::string target;    // of links
  uint32_t mode = 0, uid = 0, gid = 0;
  int64_t seconds = 0;
  uint32_t nanos = 0;
  uint32_t major = 0, minor = 0;
  std::map<std::string, std::string> xattrs;
  // Content: `size` bytes, zeros but for these runs.
  uint64_t size = 0;
  std::map<uint64_t, std::string> runs;

  std::string Content() const;
};
std::string Describe(const RandomEntry& entry);

// What a format can say; entries are drawn within it.
struct ArchiveLimits {
  bool long_names = true;
  bool any_bytes = true;  // in names
  bool nanos = true;
  bool wide_owners = true;  // beyond 2^18
  bool wide_times = true;   // before 1970 and beyond 2242
  bool xattrs = true;
  bool special = true;  // devices and fifos
};

enum class ArchiveWriter {
  kPaxByHand,  // ours: extended headers for what does not fit
  kGnuByHand,  // ours: long names, base-256 numbers
  kPax,        // libarchive
  kGnu,
  kUstar,
  kV7,
};
inline constexpr ArchiveWriter kAllArchiveWriters[] = {
    ArchiveWriter::kPaxByHand, ArchiveWriter::kGnuByHand, ArchiveWriter::kPax,
    ArchiveWriter::kGnu,       ArchiveWriter::kUstar,     ArchiveWriter::kV7};
const char* NameOf(ArchiveWriter writer);
ArchiveLimits LimitsOf(ArchiveWriter writer);

// The same seed gives the same entries.
std::vector<RandomEntry> RandomEntries(uint32_t seed, const ArchiveLimits& limits);
// `seed` chooses among spellings of the same thing (sparse formats, octal or binary numbers).
std::string WriteArchive(const std::vector<RandomEntry>& entries, ArchiveWriter writer,
                         uint32_t seed);

// What the entries must become, worked out on whole paths by the rules of README.md.
struct ExpectedNode {
  RandomEntry entry;  // of directories nobody described: the default attributes
  bool described = true;
  bool opaque = false;
  bool new_directory = false;  // a whiteout of the same layer removed the lower one
  int file = 0;                // equal for names of one file
};
std::map<std::string, ExpectedNode> ExpectedLayer(const std::vector<RandomEntry>& entries);

}  // namespace esker::testing
