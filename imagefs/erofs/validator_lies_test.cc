// The validator's refusals: every lie that an image can tell has a name here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "testing/image_editor.h"

namespace esker::erofs {
namespace {

using ::testing::HasSubstr;

struct Lie {
  const char* name;
  std::function<void(ImageEditor&)> tell;
  const char* answer;  // part of the refusal
  bool keep_checksum = false;
};

const char* const kOther = "another type";

std::vector<Lie> SuperBlockLies() {
  auto super = [](std::function<void(SuperBlock&)> change) {
    return [change](ImageEditor& image) { image.EditSuper(change); };
  };
  return {
      {"magic", super([](auto& s) { s.magic ^= 1; }), "magic"},
      {"checksum", super([](auto& s) { s.checksum ^= 1; }), "checksum", true},
      {"no checksum feature", super([](auto& s) { s.feature_compat = 2; }), "features"},
      {"unknown compatible feature", super([](auto& s) { s.feature_compat |= 4; }), "features"},
      {"compression", super([](auto& s) { s.feature_incompat |= 1; }), "features"},
      {"tail packing", super([](auto& s) { s.feature_incompat |= 0x10; }), "features"},
      {"fragments", super([](auto& s) { s.feature_incompat |= 0x20; }), "features"},
      {"xattr prefixes", super([](auto& s) { s.feature_incompat |= 0x40; }), "features"},
      {"48 bit", super([](auto& s) { s.feature_incompat |= 0x80; }), "features"},
      {"metabox", super([](auto& s) { s.feature_incompat |= 0x100; }), "features"},
      {"future feature", super([](auto& s) { s.feature_incompat |= 1u << 31; }), "features"},
      {"no chunk feature", super([](auto& s) { s.feature_incompat = 8; }), "features"},
      {"block size", super([](auto& s) { s.block_bits = 9; }), "4096"},
      {"extension slots", super([](auto& s) { s.extension_slots = 1; }), "must be zero"},
      {"root elsewhere", super([](auto& s) { s.root_nid += 2; }), "root"},
      {"inode count", super([](auto& s) { s.inodes += 1; }), "inodes"},
      {"epoch nanoseconds", super([](auto& s) { s.epoch_nanos = 1'000'000'000; }), "nanoseconds"},
      {"blocks", super([](auto& s) { s.blocks += 1; }), "blocks"},
      {"metadata address", super([](auto& s) { s.meta_block = 1; }), "must be zero"},
      {"xattr address", super([](auto& s) { s.xattr_block = 1; }), "must be zero"},
      {"volume name", super([](auto& s) { std::memset(s.volume_name, 'x', 16); }), "must be zero"},
      {"implicit directories that are not there",
       super([](auto& s) { std::memcpy(s.volume_name, kImplicitVolumeName, 16); }), "implicit"},
      {"algorithms", super([](auto& s) { s.compression = 1; }), "must be zero"},
      {"two devices", super([](auto& s) { s.extra_devices = 2; }), "device"},
      {"no devices", super([](auto& s) { s.extra_devices = 0; }), "device"},
      {"device slot", super([](auto& s) { s.device_slot = 40; }), "device"},
      {"devices unannounced", super([](auto& s) { s.feature_incompat = 4; }), "devices"},
      {"directory blocks", super([](auto& s) { s.directory_block_bits = 1; }), "must be zero"},
      {"prefix count", super([](auto& s) { s.xattr_prefix_count = 1; }), "must be zero"},
      {"packed inode", super([](auto& s) { s.packed_nid = 130; }), "must be zero"},
      {"reserved", super([](auto& s) { s.reserved[23] = 1; }), "must be zero"},
      {"boot block", [](ImageEditor& i) { i.Set<uint8_t>(510, 0x55); }, "besides"},
      {"behind the device slot", [](ImageEditor& i) { i.Set<uint8_t>(1280, 1); }, "besides"},
      {"device tag", [](ImageEditor& i) { i.Set<uint8_t>(1152, '/'); }, "device slot"},
      {"device mapped", [](ImageEditor& i) { i.Set<uint32_t>(1152 + 68, 1); }, "device slot"},
      {"device of no blocks", [](ImageEditor& i) { i.Set<uint32_t>(1152 + 64, 0); }, "device slot"},
      {"device of all blocks", [](ImageEditor& i) { i.Set<uint32_t>(1152 + 64, ~0u); },
       "device slot"},
      {"device larger than the data",
       [](ImageEditor& i) { i.Set<uint32_t>(1152 + 64, kSampleDeviceBlocks + 1); },
       "wants a data device"},
      {"half a block", [](ImageEditor& i) { i.mutable_bytes() += std::string(2048, '\0'); },
       "bytes"},
      {"a block too many", [](ImageEditor& i) { i.mutable_bytes() += std::string(4096, '\0'); },
       "blocks"},
      {"a block missing", [](ImageEditor& i) { i.mutable_bytes().resize(i.bytes().size() - 4096); },
       "blocks"},
      {"only block 0", [](ImageEditor& i) { i.mutable_bytes().resize(4096); }, "bytes"},
      {"nothing", [](ImageEditor& i) { i.mutable_bytes().clear(); }, "bytes"},
  };
}

std::vector<Lie> InodeLies() {
  auto inode = [](const char* path, std::function<void(ExtendedInode&)> change) {
    return [=](ImageEditor& image) { image.EditInode(path, change); };
  };
  return {
      {"unknown layout", inode("dir/file", [](auto& i) { i.format = 1 | 5 << 1; }), "layout"},
      {"compressed", inode("dir/file", [](auto& i) { i.format = 1 | 1 << 1; }), "layout"},
      {"compressed compact", inode("dir/file", [](auto& i) { i.format = 1 | 3 << 1; }), "layout"},
      {"dot omitted", inode("dir", [](auto& i) { i.format |= 1 << 4; }), "layout"},
      {"no type", inode("dir/file", [](auto& i) { i.mode = 0644; }), "mode"},
      {"impossible type", inode("dir/file", [](auto& i) { i.mode = 0170644; }), "mode"},
      {"root is a file", inode("/", [](auto& i) { i.mode = 0100644; }), "inode 128"},
      {"reserved", inode("dir/file", [](auto& i) { i.reserved = 1; }), "reserved"},
      {"reserved tail", inode("dir/file", [](auto& i) { i.reserved2[15] = 1; }), "reserved"},
      {"inode number", inode("dir/file", [](auto& i) { i.ino = 7; }), "reserved"},
      {"compact time",
       [](ImageEditor& image) {
         image.Edit<CompactInode>(image.At("big/name1000").offset,
                                  [](auto& i) { i.mtime_delta = 1; });
       },
       "reserved"},
      {"nanoseconds", inode("dir/file", [](auto& i) { i.mtime_nanos = ~0u; }), "nanoseconds"},
      {"no owner", inode("dir/file", [](auto& i) { i.uid = ~0u; }), "owner"},
      {"no group", inode("dir/file", [](auto& i) { i.gid = ~0u; }), "owner"},
      {"no links", inode("hard", [](auto& i) { i.nlink = 0; }), "links"},
      {"too many links", inode("hard", [](auto& i) { i.nlink = 3; }), "3 links, but 2 names"},
      {"too few links", inode("hard", [](auto& i) { i.nlink = 1; }), "more names"},
      {"directory links", inode("dir", [](auto& i) { i.nlink = 5; }), "subdirectories"},
      {"all links", inode("hard", [](auto& i) { i.nlink = ~0u; }), "links"},

      {"flat file", inode("dir/file", [](auto& i) { i.format = 1; }), "chunk-based"},
      {"inline file", inode("dir/file", [](auto& i) { i.format = 1 | 2 << 1; }), "chunk-based"},
      {"negative size", inode("dir/file", [](auto& i) { i.size = ~0ull; }), "bytes"},
      {"huge size", inode("dir/file", [](auto& i) { i.size = 1ull << 62; }), "beyond the image"},
      {"one chunk more", inode("dir/file", [](auto& i) { i.size += kBlockSize * 8; }), "inode"},
      {"no index flag", inode("dir/file", [](auto& i) { i.u = 0; }), "chunk format"},
      {"48-bit chunks", inode("dir/file", [](auto& i) { i.u |= 0x40; }), "chunk format"},
      {"chunk reserved", inode("dir/file", [](auto& i) { i.u |= 0x10000; }), "chunk format"},
      {"empty file with block", inode("dir/empty", [](auto& i) { i.u = 9; }), "block"},
      {"empty file with chunks", inode("dir/empty", [](auto& i) { i.format = 1 | 4 << 1; }),
       "content"},

      {"empty symlink", inode("link", [](auto& i) { i.size = 0; }), "empty"},
      {"symlink too long", inode("link", [](auto& i) { i.size = 4096; }), "4096 bytes"},
      {"symlink crosses", inode("link", [](auto& i) { i.size = 4050; }), "crosses"},
      {"symlink with NUL", [](ImageEditor& i) { i.Set<uint8_t>(i.At("link").tail_offset + 2, 0); },
       "NUL"},
      {"symlink cut short", inode("link", [](auto& i) { i.size -= 1; }), "behind"},
      {"long symlink cut short", inode("long", [](auto& i) { i.size -= 1; }), "behind"},
      {"symlink of chunks", inode("link", [](auto& i) { i.format = 1 | 4 << 1; }), "chunks"},
      {"symlink into the super block", inode("long", [](auto& i) { i.u = 0; }), "outside"},
      {"symlink outside", inode("long", [](auto& i) { i.u = 1u << 30; }), "outside"},
      {"symlink shares inodes' block", inode("long", [](auto& i) { i.u = 1; }), "inode"},
      {"inline with a block", inode("link", [](auto& i) { i.u = 3; }), "block number"},

      {"device with size", inode("device", [](auto& i) { i.size = 1; }), "content"},
      {"device with layout", inode("device", [](auto& i) { i.format = 1 | 2 << 1; }), "content"},
      {"fifo with device number", inode("fifo", [](auto& i) { i.u = 1; }), "number"},

      {"directory of chunks", inode("dir", [](auto& i) { i.format = 1 | 4 << 1; }), "chunks"},
      {"directory without content", inode("dir", [](auto& i) { i.size = 0; }), "empty"},
      {"directory beyond", inode("big", [](auto& i) { i.size = 1ull << 40; }), "larger"},
      {"directory outside", inode("big", [](auto& i) { i.u = 0xFFFFFFF0; }), "outside"},
      {"directory in the super block", inode("big", [](auto& i) { i.u = 0; }), "outside"},
      {"directory shares blocks",
       [](ImageEditor& image) {
         const auto blocks = static_cast<uint32_t>(image.At("big").first_block);
         image.EditInode("long", [=](auto& i) { i.u = blocks; });
       },
       "inode"},
  };
}

std::vector<Lie> ChunkLies() {
  auto chunk = [](int number, std::function<void(ChunkIndex&)> change) {
    return [=](ImageEditor& image) {
      image.Edit<ChunkIndex>(image.At("dir/file").tail_offset + number * sizeof(ChunkIndex),
                             change);
    };
  };
  return {
      {"beyond the device", chunk(0, [](auto& c) { c.block = kSampleDeviceBlocks; }), "outside"},
      {"last block but one", chunk(0, [](auto& c) { c.block = kSampleDeviceBlocks - 1; }),
       "outside"},
      {"nearly null", chunk(0, [](auto& c) { c.block = 0xFFFFFFFE; }), "outside"},
      {"high bits", chunk(0, [](auto& c) { c.block_high = 1; }), "malformed"},
      {"primary device", chunk(0, [](auto& c) { c.device = 0; }), "malformed"},
      {"other device", chunk(0, [](auto& c) { c.device = 2; }), "malformed"},
      {"masked device", chunk(0, [](auto& c) { c.device = 3; }), "malformed"},
      {"hole with a device", chunk(1, [](auto& c) { c.device = 1; }), "malformed"},
  };
}

std::vector<Lie> DirectoryLies() {
  auto entry = [](const char* directory, const char* name, std::function<void(Dirent&)> change) {
    return [=](ImageEditor& image) { image.EditEntry(directory, name, change); };
  };
  auto rename = [](const char* directory, const char* from, std::string to) {
    return [=](ImageEditor& image) {
      ASSERT_EQ(std::strlen(from), to.size());
      std::memcpy(image.mutable_bytes().data() + image.NameOffset(directory, from), to.data(),
                  to.size());
    };
  };
  auto point = [](const char* directory, const char* name, const char* target) {
    return [=](ImageEditor& image) {
      const uint64_t nid = image.At(target).nid;
      image.EditEntry(directory, name, [=](auto& e) { e.nid = nid; });
    };
  };
  return {
      {"slash", rename("dir", "file", "f/le"), "no file can have"},
      {"NUL inside", rename("dir", "file", std::string("f\0le", 4)), "no file can have"},
      {"NUL at the start of the last name", rename("dir", "two", std::string("\0wo", 3)),
       "malformed"},
      {"last name cut", rename("dir", "two", std::string("tw\0", 3)), "behind the last name"},
      {"out of order", rename("dir", "file", "zile"), "out of order"},
      {"twice", rename("dir", "hard", "file"), "twice"},
      {"out of order across blocks", rename("big", "name1300", "nama1300"), "out of order"},
      {"no dot dot", rename("dir/sub", "..", ". "), "two names"},
      {"a name of slashes", rename("dir", "hard", "////"), "no file can have"},
      {"false dot", point("dir", ".", "dir/sub"), "false \".\""},
      {"false dot dot", point("dir/sub", "..", "dir/two"), "false \"..\""},
      {"root's parent", point("/", "..", "dir"), "false \"..\""},
      {"dot is a file", entry("dir", ".", [](auto& e) { e.file_type = 1; }), "false \".\""},
      {"reserved", entry("dir", "file", [](auto& e) { e.reserved = 1; }), "malformed"},
      {"type: file as directory", entry("dir", "file", [](auto& e) { e.file_type = 2; }),
       "not a directory"},
      {"type: directory as file", entry("dir", "sub", [](auto& e) { e.file_type = 1; }), kOther},
      {"type: file as symlink", entry("dir", "file", [](auto& e) { e.file_type = 7; }), kOther},
      {"type: unknown", entry("dir", "file", [](auto& e) { e.file_type = 0; }), kOther},
      {"type: beyond", entry("dir", "file", [](auto& e) { e.file_type = 8; }), kOther},

      {"nid in the super block", entry("dir", "file", [](auto& e) { e.nid = 32; }), "outside"},
      {"nid outside", entry("dir", "file", [](auto& e) { e.nid = 1ull << 40; }), "outside"},
      {"nid wraps", entry("dir", "file", [](auto& e) { e.nid = (1ull << 59) + kRootNid; }),
       "outside"},
      {"nid in a metabox", entry("dir", "file", [](auto& e) { e.nid |= 1ull << 63; }), "outside"},
      {"nid in the middle", entry("dir", "file", [](auto& e) { e.nid += 1; }), "inode"},
      {"nid nowhere",
       [](ImageEditor& image) {
         const uint64_t last = image.bytes().size() / kSlotSize - 1;
         image.EditEntry("dir", "empty", [=](auto& e) { e.nid = last; });
       },
       "inode"},
      {"second name for a directory", point("dir", "two", "dir/sub"), "two names"},
      {"cycle", point("dir/sub", "deep", "dir"), "two names"},
      {"itself", point("dir/sub", "deep", "dir/sub"), "two names"},
      {"the root inside", point("dir", "two", "/"), "two names"},
      {"second name for a file", point("dir", "empty", "dir/file"), "more names"},
      {"one name less", point("dir", "hard", "dir/empty"), "names"},
      {"names begin nowhere", entry("dir", ".", [](auto& e) { e.name_offset = 13; }), "names"},
      {"no names", entry("dir", ".", [](auto& e) { e.name_offset = 0; }), "names"},
      {"names beyond", entry("dir", ".", [](auto& e) { e.name_offset = 1200; }), "names"},
      {"fewer entries", entry("dir", ".", [](auto& e) { e.name_offset = 24; }), "directory block"},
      {"empty name",
       [](ImageEditor& image) {
         const auto next = image.Get<Dirent>(image.EntryOffset("dir", "file")).name_offset;
         image.EditEntry("dir", "empty", [=](auto& e) { e.name_offset = next; });
       },
       "malformed"},
      {"names overlap", entry("dir", "file", [](auto& e) { e.name_offset -= 1; }), "out of order"},
      {"name beyond the block", entry("dir", "file", [](auto& e) { e.name_offset = 65535; }),
       "malformed"},
      {"directory cut",
       [](ImageEditor& image) { image.EditInode("dir", [](auto& i) { i.size -= 1; }); }, "inode"},
      {"behind a full block",
       [](ImageEditor& image) {
         const uint64_t end = (image.At("big").first_block + 1) * kBlockSize;
         ASSERT_EQ(image.Get<uint8_t>(end - 1), 0) << "the sample's block has no room";
         image.Set<uint8_t>(end - 1, 'x');
       },
       "behind the last name"},
  };
}

std::vector<Lie> XattrLies() {
  // The body is a header of 12 bytes, then entries of trusted.a (4 + 1 + 5 padded to 12), user.b
  // (4 + 1 + 5 padded to 12) and user.c (4 + 1 + 3).
  auto at = [](uint64_t offset, auto value) {
    return
        [=](ImageEditor& image) { image.Set(image.At("attributes").xattr_offset + offset, value); };
  };
  auto opaque = [](uint64_t offset, auto value) {
    return [=](ImageEditor& image) { image.Set(image.At("opaque").xattr_offset + offset, value); };
  };
  return {
      {"filter", at(0, uint32_t{1}), "filtered"},
      {"shared", at(4, uint8_t{1}), "shared"},
      {"header reserved", at(5, uint8_t{1}), "shared or filtered"},
      {"unknown prefix", at(12 + 1, uint8_t{7}), "name index 7"},
      {"lustre", at(12 + 1, uint8_t{5}), "name index 5"},
      {"no prefix", at(12 + 1, uint8_t{0}), "name index 0"},
      {"long prefix", at(12 + 1, uint8_t{0x81}), "name index 129"},
      {"ACL with a name", at(12 + 1, uint8_t{2}), "name index 2"},
      {"name beyond", at(12, uint8_t{255}), "beyond"},
      {"value beyond", at(12 + 2, uint16_t{65535}), "beyond"},
      {"twice", at(36 + 4, 'b'), "out of order"},
      {"out of order", at(24 + 4, 'd'), "out of order"},
      {"NUL in a name", at(24 + 4, '\0'), "NUL"},
      {"padding", at(22, 'x'), "behind"},
      {"empty list",
       [](ImageEditor& image) {
         image.EditInode("attributes", [](auto& i) { i.xattr_count = 1; });
       },
       "empty list"},
      {"list cut",
       [](ImageEditor& image) {
         image.EditInode("attributes", [](auto& i) { i.xattr_count -= 1; });
       },
       "inode"},
      {"list longer",
       [](ImageEditor& image) {
         image.EditInode("attributes", [](auto& i) { i.xattr_count += 1; });
       },
       "inode"},
      {"list of everything",
       [](ImageEditor& image) {
         image.EditInode("attributes", [](auto& i) { i.xattr_count = 0xFFFF; });
       },
       "beyond the image"},
      {"opaque with another value", opaque(12 + 4 + 14, 'x'), "steer the overlay"},
      {"another overlay attribute", opaque(12 + 4 + 8, 'O'), "steer the overlay"},
      {"opaque file",
       [](ImageEditor& image) {
         image.EditInode("opaque", [](auto& i) {
           i.mode = 0100644;
           i.size = 0;
           i.format = 1;
           i.nlink = 1;
         });
         image.EditEntry("/", "opaque", [](auto& e) { e.file_type = 1; });
       },
       "inode"},
  };
}

void ExpectAllRefused(const std::vector<Lie>& lies) {
  const ImageEditor honest = SampleImage();
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.name);
    ImageEditor image = honest;
    lie.tell(image);
    if (::testing::Test::HasFatalFailure()) return;
    if (!lie.keep_checksum && image.bytes().size() >= kBlockSize) image.FixChecksum();
    auto result = Validate(Bytes(image.bytes()), kSampleLimits);
    if (result.ok()) {
      ADD_FAILURE() << "accepted";
      continue;
    }
    EXPECT_EQ(result.status().code(), Code::kDataLoss) << result.status().ToString();
    EXPECT_THAT(result.status().message(), HasSubstr(lie.answer));
  }
}

TEST(ValidatorLies, RefusesLiesOfTheSuperBlock) { ExpectAllRefused(SuperBlockLies()); }
TEST(ValidatorLies, RefusesLiesOfInodes) { ExpectAllRefused(InodeLies()); }
TEST(ValidatorLies, RefusesLiesOfChunks) { ExpectAllRefused(ChunkLies()); }
TEST(ValidatorLies, RefusesLiesOfDirectories) { ExpectAllRefused(DirectoryLies()); }
TEST(ValidatorLies, RefusesLiesOfXattrs) { ExpectAllRefused(XattrLies()); }

}  // namespace
}  // namespace esker::erofs
