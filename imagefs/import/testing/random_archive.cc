#include "testing/random_archive.h"

#include <fmt/format.h>

#include <random>
#include <set>

namespace esker::testing {
namespace {

using Kind = RandomEntry::Kind;

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "" : path.substr(0, slash);
}

// The layer that entries make, as a flat map of paths; slow and simple.
class Model {
 public:
  void Add(const RandomEntry& entry) {
    switch (entry.kind) {
      case Kind::kWhiteout:
        hidden_.insert(entry.path);
        return;
      case Kind::kOpaque:
        opaque_.insert(entry.path);
        return;
      case Kind::kHardLink: {
        if (entry.path == entry.target) return;
        const ExpectedNode target = nodes_.at(entry.target);
        Put(entry.path, target);
        return;
      }
      default:
        Put(entry.path, {.entry = entry, .file = next_file_++});
    }
  }
  bool IsFile(const std::string& path) const {
    auto it = nodes_.find(path);
    return it != nodes_.end() && it->second.entry.kind != Kind::kDirectory;
  }
  std::map<std::string, ExpectedNode> Finish() && {
    if (!nodes_.contains("")) nodes_[""] = Implicit();
    for (const std::string& path : opaque_) {
      if (BlockedByFile(path)) continue;
      if (!nodes_.contains(path)) Put(path, Implicit());
      nodes_[path].opaque = true;
    }
    for (const std::string& path : hidden_) {
      if (BlockedByFile(path)) continue;
      if (auto it = nodes_.find(path); it != nodes_.end()) {
        it->second.opaque = true;
        it->second.new_directory = true;
        continue;
      }
      RandomEntry whiteout;
      whiteout.kind = Kind::kCharDevice;
      Put(path, {.entry = whiteout, .file = next_file_++});
    }
    return std::move(nodes_);
  }

 private:
  static ExpectedNode Implicit() {
    ExpectedNode node;
    node.entry.kind = Kind::kDirectory;
    node.entry.mode = 0755;
    node.described = false;
    return node;
  }
  // A file stands at the path or in its way.
  bool BlockedByFile(std::string path) const {
    for (; !path.empty(); path = ParentOf(path)) {
      if (IsFile(path)) return true;
    }
    return false;
  }
  void Drop(const std::string& path) {
    nodes_.erase(path);
    const std::string prefix = path + "/";
    for (auto it = nodes_.lower_bound(prefix);
         it != nodes_.end() && it->first.starts_with(prefix);) {
      it = nodes_.erase(it);
    }
  }
  void Put(const std::string& path, ExpectedNode node) {
    if (!path.empty()) {
      const std::string parent = ParentOf(path);
      auto it = nodes_.find(parent);
      if (it == nodes_.end() || it->second.entry.kind != Kind::kDirectory) Put(parent, Implicit());
    }
    auto it = nodes_.find(path);
    const bool both_directories = it != nodes_.end() && node.entry.kind == Kind::kDirectory &&
                                  it->second.entry.kind == Kind::kDirectory;
    if (it != nodes_.end() && !both_directories) Drop(path);
    nodes_[path] = std::move(node);
  }

  std::map<std::string, ExpectedNode> nodes_;
  std::set<std::string> hidden_, opaque_;
  int next_file_ = 1;
};

class Generator {
 public:
  Generator(uint32_t seed, const ArchiveLimits& limits) : random_(seed), limits_(limits) {}

  std::vector<RandomEntry> Run() {
    std::vector<RandomEntry> entries;
    const uint64_t count = 1 + Below(40);
    while (entries.size() < count) {
      RandomEntry entry = Entry();
      if (entry.kind == Kind::kHardLink && !PickTarget(entry)) continue;
      model_.Add(entry);
      if (!entry.path.empty()) paths_.push_back(entry.path);
      entries.push_back(std::move(entry));
    }
    return entries;
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  bool PickTarget(RandomEntry& entry) {
    for (int tries = 0; tries < 10 && !paths_.empty(); ++tries) {
      entry.target = paths_[Below(paths_.size())];
      if (model_.IsFile(entry.target)) return true;
    }
    return false;
  }

  std::string Name() {
    if (limits_.long_names && OneIn(15)) {
      return std::string(OneIn(2) ? 255 : 90 + Below(30), static_cast<char>('l' + Below(2)));
    }
    if (limits_.any_bytes && OneIn(8)) {
      std::string name;
      for (uint64_t i = 1 + Below(8); i > 0; --i) {
        const char c = static_cast<char>(1 + Below(255));
        name += c == '/' ? '+' : c;
      }
      const bool special = name == "." || name == ".." || name.starts_with(".wh.");
      return special ? "dots" : name;
    }
    return std::string(1 + Below(2), static_cast<char>('a' + Below(5)));
  }
  std::string Path() {
    if (!paths_.empty() && OneIn(4)) return paths_[Below(paths_.size())];  // once more
    std::string path = Name();
    while (!OneIn(3)) path += "/" + Name();
    return path;
  }
  std::string Spell(const std::string& path) {
    std::string out = OneIn(3) ? "./" : OneIn(4) ? "/" : OneIn(6) ? "../" : "";
    for (size_t at = 0; at < path.size();) {
      const size_t end = std::min(path.find('/', at), path.size());
      if (OneIn(12)) out += "./";
      if (OneIn(15)) out += "x/../";
      out += path.substr(at, end - at);
      if (end < path.size()) out += OneIn(10) ? "//" : "/";
      at = end + 1;
    }
    return out.empty() ? "./" : out;
  }

  RandomEntry Entry() {
    RandomEntry entry;
    static constexpr Kind kOften[] = {
        Kind::kFile,       Kind::kFile,    Kind::kFile,       Kind::kFile,     Kind::kDirectory,
        Kind::kDirectory,  Kind::kSymlink, Kind::kHardLink,   Kind::kWhiteout, Kind::kOpaque,
        Kind::kCharDevice, Kind::kFifo,    Kind::kBlockDevice};
    entry.kind = kOften[Below(limits_.special ? std::size(kOften) : 10)];
    entry.path = entry.kind == Kind::kDirectory && OneIn(8) ? "" : Path();
    entry.spelling = Spell(entry.path);
    entry.mode = static_cast<uint32_t>(Below(010000));
    const uint64_t ids = limits_.wide_owners && OneIn(3) ? 0xffffffff : OneIn(2) ? 1 : 200'000;
    entry.uid = static_cast<uint32_t>(Below(ids));
    entry.gid = static_cast<uint32_t>(Below(ids));
    entry.seconds = OneIn(4) ? 0 : static_cast<int64_t>(Below(1ull << 32));
    if (limits_.wide_times && OneIn(4)) {
      entry.seconds = static_cast<int64_t>(Below(1ull << 36)) - (1ll << 34);
    }
    if (limits_.nanos && OneIn(2)) entry.nanos = static_cast<uint32_t>(Below(1'000'000'000));
    if (entry.kind == Kind::kSymlink) {
      const bool long_target = limits_.long_names && OneIn(5);
      entry.target = std::string(long_target ? 1 + Below(4000) : 1 + Below(60), 't');
      if (OneIn(2)) entry.target = "../" + entry.target.substr(0, 90);
    }
    if (entry.kind == Kind::kCharDevice || entry.kind == Kind::kBlockDevice) {
      entry.major = 1 + static_cast<uint32_t>(Below(4095));
      entry.minor = static_cast<uint32_t>(Below(limits_.wide_owners ? 1 << 20 : 1 << 18));
    }
    if (entry.kind == Kind::kFile) AddContent(entry);
    const bool takes_xattrs =
        entry.kind == Kind::kFile || entry.kind == Kind::kDirectory || entry.kind == Kind::kSymlink;
    if (limits_.xattrs && takes_xattrs && OneIn(4)) AddXattrs(entry);
    return entry;
  }

  void AddXattrs(RandomEntry& entry) {
    static const char* const kPrefixes[] = {"user.", "security.", "trusted."};
    for (uint64_t i = 1 + Below(3); i > 0; --i) {
      std::string value(1 + Below(OneIn(6) ? 5000 : 30), '\0');
      for (char& c : value) c = static_cast<char>(random_());
      entry.xattrs[kPrefixes[Below(3)] + std::string(1 + Below(20), 'n')] = value;
    }
  }

  std::string Noise(uint64_t size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random_() | 1);
    return bytes;
  }
  void AddContent(RandomEntry& entry) {
    if (OneIn(4)) return;
    entry.size = OneIn(20) ? Below(3u << 20) : OneIn(3) ? Below(200'000) : Below(6000);
    if (OneIn(6)) {  // the same bytes as others have
      entry.size = 5000;
      entry.runs[0] = std::string(5000, 's');
      return;
    }
    if (!OneIn(3)) {
      if (entry.size > 0) entry.runs[0] = Noise(entry.size);
      return;
    }
    for (uint64_t at = Below(100'000); at < entry.size; at += 1 + Below(300'000)) {
      std::string run = Noise(1 + Below(std::min<uint64_t>(entry.size - at, 9000)));
      const uint64_t length = run.size();
      entry.runs[at] = std::move(run);
      at += length;
    }
  }

  std::mt19937 random_;
  const ArchiveLimits limits_;
  Model model_;
  std::vector<std::string> paths_;
};

}  // namespace

std::string RandomEntry::Content() const {
  std::string content(size, '\0');
  for (const auto& [at, bytes] : runs) content.replace(at, bytes.size(), bytes);
  return content;
}

std::string Describe(const RandomEntry& entry) {
  static const char* const kNames[] = {"file",  "directory", "symlink",  "hard link", "char",
                                       "block", "fifo",      "whiteout", "opaque"};
  std::string shown;
  for (char c : entry.spelling) {
    const bool plain = c > ' ' && c < '\x7f';
    shown += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  }
  std::string text =
      fmt::format("{} \"{}\" mode {:o} owner {}:{} time {}.{:09} size {} in {} runs",
                  kNames[static_cast<int>(entry.kind)], shown, entry.mode, entry.uid, entry.gid,
                  entry.seconds, entry.nanos, entry.size, entry.runs.size());
  if (!entry.target.empty()) text += " -> " + entry.target.substr(0, 60);
  for (const auto& [name, value] : entry.xattrs) {
    text += fmt::format(" {}[{}]", name, value.size());
  }
  return text;
}

std::vector<RandomEntry> RandomEntries(uint32_t seed, const ArchiveLimits& limits) {
  return Generator(seed, limits).Run();
}

std::map<std::string, ExpectedNode> ExpectedLayer(const std::vector<RandomEntry>& entries) {
  Model model;
  for (const RandomEntry& entry : entries) {
    // A shrunk list may have lost a link's target.
    if (entry.kind == Kind::kHardLink && !model.IsFile(entry.target)) continue;
    model.Add(entry);
  }
  return std::move(model).Finish();
}

}  // namespace esker::testing
