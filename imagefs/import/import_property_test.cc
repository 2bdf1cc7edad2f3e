// Random entries, written as tars by several writers, must become the layer that simple rules say.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "testing/import_fixture.h"
#include "testing/random_archive.h"

namespace esker {
namespace {

using testing::ArchiveWriter;
using testing::ExpectedNode;
using testing::RandomEntry;
using testing::ReadBackLayer;
using Kind = RandomEntry::Kind;

erofs::FileType TypeOf(Kind kind) {
  switch (kind) {
    case Kind::kDirectory:
      return erofs::FileType::kDirectory;
    case Kind::kSymlink:
      return erofs::FileType::kSymlink;
    case Kind::kCharDevice:
      return erofs::FileType::kCharDevice;
    case Kind::kBlockDevice:
      return erofs::FileType::kBlockDevice;
    case Kind::kFifo:
      return erofs::FileType::kFifo;
    default:
      return erofs::FileType::kRegular;
  }
}

std::map<std::string, std::string> ExpectedXattrs(const ExpectedNode& node) {
  auto xattrs = node.entry.xattrs;
  if (node.opaque) xattrs["trusted.overlay.opaque"] = "y";
  if (!node.described && !node.new_directory) xattrs["trusted.esker.implicit"] = "y";
  return xattrs;
}

std::string NodeDifference(const ReadBackLayer& layer, const std::string& path,
                           const ExpectedNode& expected) {
  const erofs::Node* node = layer.Find(path);
  if (node == nullptr) return "missing";
  const RandomEntry& entry = expected.entry;
  if (node->type != TypeOf(entry.kind)) return "type";
  if (node->mode != entry.mode) return "mode";
  if (node->uid != entry.uid || node->gid != entry.gid) return "owner";
  if (node->mtime_seconds != entry.seconds || node->mtime_nanos != entry.nanos) return "time";
  if (node->device_major != entry.major || node->device_minor != entry.minor) return "device";
  if (node->xattrs != ExpectedXattrs(expected)) return "attributes";
  if (entry.kind == Kind::kSymlink && node->symlink_target != entry.target) return "target";
  if (entry.kind == Kind::kFile && layer.Content(path) != entry.Content()) return "content";
  return "";
}

// Counts the names in the tree, without those that `expected` has not.
std::string UnexpectedName(const erofs::Tree& tree,
                           const std::map<std::string, ExpectedNode>& expected) {
  std::vector<std::string> pending = {""};
  while (!pending.empty()) {
    const std::string directory = std::move(pending.back());
    pending.pop_back();
    for (const auto& [name, node] : tree.Children(directory)) {
      const std::string path = directory.empty() ? name : directory + "/" + name;
      if (!expected.contains(path)) return path;
      if (node->type == erofs::FileType::kDirectory) pending.push_back(path);
    }
  }
  return "";
}

std::string Difference(const ReadBackLayer& layer,
                       const std::map<std::string, ExpectedNode>& expected) {
  std::map<int, uint32_t> names;
  std::map<int, const erofs::Node*> files;
  for (const auto& [path, node] : expected) {
    if (std::string why = NodeDifference(layer, path, node); !why.empty()) {
      return "\"" + path + "\": " + why;
    }
    if (node.entry.kind == Kind::kDirectory) continue;
    ++names[node.file];
    const erofs::Node* found = layer.Find(path);
    if (files.emplace(node.file, found).first->second != found) return path + ": not one file";
  }
  for (const auto& [path, node] : expected) {
    if (node.entry.kind != Kind::kDirectory &&
        layer.tree().LinkCount(path) != names.at(node.file)) {
      return "\"" + path + "\": link count";
    }
  }
  const std::string more = UnexpectedName(layer.tree(), expected);
  return more.empty() ? "" : "\"" + more + "\" should not be there";
}

class ImportPropertyTest : public testing::ImportTest {
 protected:
  // Hundreds of imports, each with its fsyncs: in memory where there is such a file system.
  std::string parent() const override { return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ""; }

  std::string WhatIsWrong(const std::vector<RandomEntry>& entries, ArchiveWriter writer,
                          uint32_t seed) {
    const std::string tar = testing::WriteArchive(entries, writer, seed);
    // Pieces of odd sizes show what a reader takes for granted.
    Result<ImportedLayer> imported = Import(tar, {}, seed % 3 == 0 ? 1 + seed % 4000 : SIZE_MAX);
    if (!imported.ok()) return imported.status().ToString();
    Result<ReadBackLayer> layer = Load(imported->layer);
    if (!layer.ok()) return layer.status().ToString();
    return Difference(*layer, testing::ExpectedLayer(entries));
  }

  // Leaves out entries as long as something stays wrong. A link whose target went would be refused
  // for that, so it goes with it.
  std::vector<RandomEntry> Shrink(std::vector<RandomEntry> entries, ArchiveWriter writer,
                                  uint32_t seed) {
    for (size_t i = entries.size(); i-- > 0;) {
      std::vector<RandomEntry> fewer = entries;
      fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(i));
      const std::string wrong = WhatIsWrong(fewer, writer, seed);
      if (!wrong.empty() && wrong.find("hard link") == wrong.npos) entries = std::move(fewer);
    }
    return entries;
  }

  void Check(uint32_t seed, ArchiveWriter writer) {
    const auto entries = testing::RandomEntries(seed, testing::LimitsOf(writer));
    const std::string wrong = WhatIsWrong(entries, writer, seed);
    if (wrong.empty()) return;
    const auto least = Shrink(entries, writer, seed);
    std::string text;
    for (const RandomEntry& entry : least) text += "  " + testing::Describe(entry) + "\n";
    ADD_FAILURE() << "seed " << seed << ", " << testing::NameOf(writer) << ": " << wrong
                  << "\nshrunk to (" << WhatIsWrong(least, writer, seed) << "):\n"
                  << text;
  }
};

TEST_F(ImportPropertyTest, LayersAreWhatTheirEntriesSay) {
  // ESKER_SEEDS=N tries more; ESKER_SEED=N begins elsewhere.
  const char* count = std::getenv("ESKER_SEEDS");
  const char* first = std::getenv("ESKER_SEED");
  const uint32_t begin = first == nullptr ? 1 : static_cast<uint32_t>(std::atoi(first));
  const uint32_t seeds = count == nullptr ? 40 : static_cast<uint32_t>(std::atoi(count));
  for (uint32_t seed = begin; seed < begin + seeds && !HasFailure(); ++seed) {
    for (ArchiveWriter writer : testing::kAllArchiveWriters) Check(seed, writer);
  }
}

}  // namespace
}  // namespace esker
