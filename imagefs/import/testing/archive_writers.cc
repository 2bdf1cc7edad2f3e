// Random entries as tars: by hand, with the spellings that each format allows, and by libarchive.
#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <random>

#include "testing/random_archive.h"
#include "testing/tar_builder.h"

namespace esker::testing {
namespace {

using Kind = RandomEntry::Kind;

char TypeOf(Kind kind) {
  switch (kind) {
    case Kind::kDirectory:
      return '5';
    case Kind::kSymlink:
      return '2';
    case Kind::kHardLink:
      return '1';
    case Kind::kCharDevice:
      return '3';
    case Kind::kBlockDevice:
      return '4';
    case Kind::kFifo:
      return '6';
    case Kind::kFile:
    case Kind::kWhiteout:
    case Kind::kOpaque:
      return '0';
  }
  return '0';
}

// The name in the archive, markers as the OCI specification spells them.
std::string ArchiveName(const RandomEntry& entry) {
  std::string name = entry.spelling;
  if (entry.kind == Kind::kOpaque) return name + "/.wh..wh..opq";
  if (entry.kind == Kind::kWhiteout) {
    const size_t slash = name.rfind('/');
    name.insert(slash == name.npos ? 0 : slash + 1, ".wh.");
  }
  if (entry.kind == Kind::kDirectory && !name.ends_with('/')) name += '/';
  return name;
}

std::string TimeText(const RandomEntry& entry) {
  if (entry.seconds >= 0 || entry.nanos == 0) {
    return fmt::format("{}.{:09}", entry.seconds, entry.nanos);
  }
  return fmt::format("-{}.{:09}", -(entry.seconds + 1), 1'000'000'000 - entry.nanos);
}

class HandWriter {
 public:
  HandWriter(bool pax, uint32_t seed) : pax_(pax), random_(seed) {}

  std::string Run(const std::vector<RandomEntry>& entries) {
    for (const RandomEntry& entry : entries) Add(entry);
    if (!OneIn(5)) out_ += std::string(1024, '\0');
    if (OneIn(5)) out_ += std::string(9216, '\0');
    return std::move(out_);
  }

 private:
  bool OneIn(uint64_t n) { return random_() % n == 0; }

  void Add(const RandomEntry& entry) {
    entry_ = &entry;
    records_.clear();
    block_ = TarBuilder::Header(
        {.name = "placeholder", .type = TypeOf(entry.kind), .mode = entry.mode, .mtime = 0});
    if (!pax_) block_.replace(257, 8, std::string("ustar  \0", 8));
    std::string data = entry.Content(), before;
    if (entry.kind == Kind::kFile && entry.runs.size() < 200 && OneIn(2)) data = Sparse(&before);
    PutText(0, 100, ArchiveName(entry), "path", 'L');
    if (!entry.target.empty()) PutText(157, 100, entry.target, "linkpath", 'K');
    PutNumber(108, 8, entry.uid, "uid");
    PutNumber(116, 8, entry.gid, "gid");
    PutTime();
    if (entry.kind == Kind::kCharDevice || entry.kind == Kind::kBlockDevice) {
      PutOctal(329, 8, entry.major);
      PutOctal(337, 8, entry.minor);
    }
    for (const auto& [name, value] : entry.xattrs) {
      records_.emplace_back("SCHILY.xattr." + name, value);
    }
    data = before + data;
    PutNumber(124, 12, static_cast<int64_t>(data.size()), "size");
    if (!records_.empty()) AddMember('x', TarBuilder::PaxBody(records_));
    TarBuilder::Seal(block_);
    out_ += block_ + extension_ + data;
    extension_.clear();
    Pad();
  }

  void Pad() { out_.resize((out_.size() + 511) / 512 * 512); }
  void AddMember(char type, const std::string& body) {
    out_ += TarBuilder::Header({.name = "././@Member", .type = type, .content = body}) + body;
    Pad();
  }

  void PutText(size_t at, size_t width, const std::string& text, const char* key, char gnu_type) {
    block_.replace(at, width, width, '\0');
    const bool fits = text.size() <= width;
    block_.replace(at, std::min(width, text.size()), text.substr(0, width));
    if (pax_ && (!fits || OneIn(5))) records_.emplace_back(key, text);
    if (!pax_ && (!fits || OneIn(5))) AddMember(gnu_type, text + '\0');
  }
  void PutOctal(size_t at, size_t width, uint64_t value) {
    block_.replace(at, width - 1, fmt::format("{:0{}o}", value, width - 1));
  }
  void PutBinary(size_t at, size_t width, int64_t value) {
    for (size_t i = 0; i < width; ++i) {
      const size_t shift = 8 * (width - 1 - i);
      block_[at + i] = static_cast<char>(shift > 63 ? (value < 0 ? -1 : 0) : value >> shift);
    }
    block_[at] = static_cast<char>(value < 0 ? 0xff : 0x80);
  }
  void PutNumber(size_t at, size_t width, int64_t value, const char* key) {
    const bool fits = value >= 0 && value < int64_t{1} << (3 * (width - 1));
    if (pax_ && (!fits || OneIn(5))) {
      records_.emplace_back(key, std::to_string(value));
    } else if (!fits || OneIn(5)) {
      PutBinary(at, width, value);
    } else {
      PutOctal(at, width, static_cast<uint64_t>(value));
    }
  }
  void PutTime() {
    if (pax_ && (entry_->nanos != 0 || OneIn(3))) {
      records_.emplace_back("mtime", TimeText(*entry_));
    } else {
      PutNumber(136, 12, entry_->seconds, "mtime");
    }
  }

  // Only the runs are stored. Returns them; `before` gets what stands in front of them.
  std::string Sparse(std::string* before) {
    std::string data;
    std::vector<std::pair<uint64_t, uint64_t>> map;
    for (const auto& [at, bytes] : entry_->runs) {
      map.emplace_back(at, bytes.size());
      data += bytes;
    }
    // A file that ends with a hole ends with an empty run.
    map.emplace_back(entry_->size, 0);
    if (pax_) {
      SparsePax(map, before);
    } else {
      SparseGnu(map);
    }
    return data;
  }
  void SparseGnu(const std::vector<std::pair<uint64_t, uint64_t>>& map) {
    block_[156] = 'S';
    size_t i = 0;
    for (; i < map.size() && i < 4; ++i) {
      PutOctal(386 + i * 24, 12, map[i].first);
      PutOctal(398 + i * 24, 12, map[i].second);
    }
    PutOctal(483, 12, entry_->size);
    block_[482] = i < map.size() ? 1 : 0;
    while (i < map.size()) {
      std::string block(512, '\0');
      for (size_t k = 0; k < 21 && i < map.size(); ++k, ++i) {
        block.replace(k * 24, 11, fmt::format("{:011o}", map[i].first));
        block.replace(k * 24 + 12, 11, fmt::format("{:011o}", map[i].second));
      }
      block[504] = i < map.size() ? 1 : 0;
      extension_ += block;
    }
  }
  void SparsePax(const std::vector<std::pair<uint64_t, uint64_t>>& map, std::string* before) {
    const std::string size = std::to_string(entry_->size);
    const std::string count = std::to_string(map.size());
    switch (random_() % 3) {
      case 0:
        records_.emplace_back("GNU.sparse.size", size);
        records_.emplace_back("GNU.sparse.numblocks", count);
        for (const auto& [at, length] : map) {
          records_.emplace_back("GNU.sparse.offset", std::to_string(at));
          records_.emplace_back("GNU.sparse.numbytes", std::to_string(length));
        }
        break;
      case 1: {
        std::string text;
        for (const auto& [at, length] : map) text += fmt::format(",{},{}", at, length);
        records_.emplace_back("GNU.sparse.size", size);
        records_.emplace_back("GNU.sparse.numblocks", count);
        records_.emplace_back("GNU.sparse.map", text.substr(1));
        break;
      }
      default:
        records_.emplace_back("GNU.sparse.major", "1");
        records_.emplace_back("GNU.sparse.minor", "0");
        records_.emplace_back("GNU.sparse.name", ArchiveName(*entry_));
        records_.emplace_back("GNU.sparse.realsize", size);
        *before = count + "\n";
        for (const auto& [at, length] : map) *before += fmt::format("{}\n{}\n", at, length);
        before->resize((before->size() + 511) / 512 * 512);
    }
  }

  const bool pax_;
  std::mt19937 random_;
  std::string out_;
  const RandomEntry* entry_ = nullptr;
  std::string block_, extension_;
  std::vector<std::pair<std::string, std::string>> records_;
};

void Must(archive* a, int result) {
  if (result == ARCHIVE_OK || result == ARCHIVE_WARN) return;
  std::fprintf(stderr, "libarchive: %s\n", archive_error_string(a));
  std::abort();
}

void FillEntry(const RandomEntry& entry, archive_entry* out) {
  archive_entry_set_pathname(out, ArchiveName(entry).c_str());
  static constexpr mode_t kTypes[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFREG, S_IFCHR,
                                      S_IFBLK, S_IFIFO, S_IFREG, S_IFREG};
  archive_entry_set_filetype(out, kTypes[static_cast<int>(entry.kind)]);
  archive_entry_set_perm(out, static_cast<mode_t>(entry.mode));
  archive_entry_set_uid(out, entry.uid);
  archive_entry_set_gid(out, entry.gid);
  archive_entry_set_mtime(out, entry.seconds, entry.nanos);
  if (entry.kind == Kind::kSymlink) archive_entry_set_symlink(out, entry.target.c_str());
  if (entry.kind == Kind::kHardLink) archive_entry_set_hardlink(out, entry.target.c_str());
  if (entry.kind == Kind::kCharDevice || entry.kind == Kind::kBlockDevice) {
    archive_entry_set_rdevmajor(out, entry.major);
    archive_entry_set_rdevminor(out, entry.minor);
  }
  archive_entry_set_size(out, static_cast<int64_t>(entry.size));
  for (const auto& [name, value] : entry.xattrs) {
    archive_entry_xattr_add_entry(out, name.c_str(), value.data(), value.size());
  }
}

std::string ByLibarchive(const std::vector<RandomEntry>& entries, int (*format)(archive*)) {
  archive* a = archive_write_new();
  Must(a, format(a));
  archive_write_set_bytes_in_last_block(a, 1);
  std::string out;
  auto append = [](archive*, void* to, const void* bytes, size_t size) -> ssize_t {
    static_cast<std::string*>(to)->append(static_cast<const char*>(bytes), size);
    return static_cast<ssize_t>(size);
  };
  Must(a, archive_write_open(a, &out, nullptr, append, nullptr));
  for (const RandomEntry& entry : entries) {
    archive_entry* header = archive_entry_new();
    FillEntry(entry, header);
    Must(a, archive_write_header(a, header));
    const std::string content = entry.Content();
    if (!content.empty() && archive_write_data(a, content.data(), content.size()) < 0) std::abort();
    archive_entry_free(header);
  }
  Must(a, archive_write_close(a));
  archive_write_free(a);
  return out;
}

}  // namespace

const char* NameOf(ArchiveWriter writer) {
  static const char* const kNames[] = {"pax by hand",    "gnu by hand",      "libarchive's pax",
                                       "libarchive gnu", "libarchive ustar", "libarchive v7"};
  return kNames[static_cast<int>(writer)];
}

ArchiveLimits LimitsOf(ArchiveWriter writer) {
  ArchiveLimits limits;
  switch (writer) {
    case ArchiveWriter::kPaxByHand:
      break;
    case ArchiveWriter::kPax:
      limits.wide_times = false;  // 3.6 writes the fraction of a time before 1970 wrong
      break;
    case ArchiveWriter::kGnuByHand:
      limits.nanos = limits.xattrs = false;
      break;
    case ArchiveWriter::kGnu:
      limits.nanos = limits.xattrs = limits.wide_owners = limits.wide_times = false;
      break;
    case ArchiveWriter::kUstar:
    case ArchiveWriter::kV7:
      limits = {.long_names = false,
                .any_bytes = true,
                .nanos = false,
                .wide_owners = false,
                .wide_times = false,
                .xattrs = false,
                .special = writer == ArchiveWriter::kUstar};
  }
  return limits;
}

std::string WriteArchive(const std::vector<RandomEntry>& entries, ArchiveWriter writer,
                         uint32_t seed) {
  switch (writer) {
    case ArchiveWriter::kPaxByHand:
      return HandWriter(/*pax=*/true, seed).Run(entries);
    case ArchiveWriter::kGnuByHand:
      return HandWriter(/*pax=*/false, seed).Run(entries);
    case ArchiveWriter::kPax:
      return ByLibarchive(entries, archive_write_set_format_pax);
    case ArchiveWriter::kGnu:
      return ByLibarchive(entries, archive_write_set_format_gnutar);
    case ArchiveWriter::kUstar:
      return ByLibarchive(entries, archive_write_set_format_ustar);
    case ArchiveWriter::kV7:
      return ByLibarchive(entries, archive_write_set_format_v7tar);
  }
  return "";
}

}  // namespace esker::testing
