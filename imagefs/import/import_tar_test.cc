// The tar as a stream: compression, digests, ends, damage, huge claims, cancelling.
#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "testing/import_fixture.h"
#include "testing/tar_builder.h"

namespace esker {
namespace {

using testing::ImportTest;
using testing::ReadBackLayer;
using testing::TarBuilder;
using testing::TarItem;

std::string Noise(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

std::string Compressed(const std::string& plain, int (*filter)(archive*)) {
  archive* a = archive_write_new();
  archive_write_set_format_raw(a);
  EXPECT_EQ(filter(a), ARCHIVE_OK);
  std::string out(plain.size() + (1 << 20), '\0');
  size_t used = 0;
  archive_write_set_bytes_in_last_block(a, 1);
  EXPECT_EQ(archive_write_open_memory(a, out.data(), out.size(), &used), ARCHIVE_OK);
  archive_entry* entry = archive_entry_new();
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_write_header(a, entry);
  archive_write_data(a, plain.data(), plain.size());
  archive_entry_free(entry);
  EXPECT_EQ(archive_write_close(a), ARCHIVE_OK);
  archive_write_free(a);
  out.resize(used);
  return out;
}

std::string OciDigest(std::string_view bytes) { return "sha256:" + Sha256::Of(bytes).ToHex(); }

std::string Sample() {
  return TarBuilder()
      .Dir("etc/", 0750)
      .File("etc/passwd", "root:x:0:0\n", 0600)
      .Add({.name = "bin/su", .content = "su", .mode = 04755, .uid = 7, .gid = 8})
      .Symlink("lib", "usr/lib")
      .Link("bin/su2", "bin/su")
      .Add({.name = "dev/null", .type = '3', .mode = 0666, .major = 1, .minor = 3})
      .Add({.name = "dev/loop0", .type = '4', .mode = 0660, .major = 7, .minor = 0})
      .Add({.name = "run/fifo", .type = '6', .mode = 0600})
      .File("big", Noise((3 << 20) + 12345, 1))
      .File("empty", "")
      .End();
}

TEST_F(ImportTest, OrdinaryEntriesSurvive) {
  const std::string tar = Sample();
  ReadBackLayer layer = Layer(tar);
  EXPECT_EQ(layer.Find("etc")->mode, 0750);
  EXPECT_EQ(layer.Content("etc/passwd"), "root:x:0:0\n");
  EXPECT_EQ(layer.Find("etc/passwd")->mtime_seconds, 1'600'000'000);
  EXPECT_EQ(layer.Find("bin/su")->mode, 04755);
  EXPECT_EQ(layer.Find("bin/su")->uid, 7u);
  EXPECT_EQ(layer.Find("bin/su")->gid, 8u);
  EXPECT_EQ(layer.Content("bin/su2"), "su");
  EXPECT_EQ(layer.tree().LinkCount("bin/su"), 2u);
  EXPECT_EQ(layer.Find("lib")->symlink_target, "usr/lib");
  EXPECT_EQ(layer.Find("dev/null")->type, erofs::FileType::kCharDevice);
  EXPECT_EQ(layer.Find("dev/null")->device_minor, 3u);
  EXPECT_EQ(layer.Find("dev/loop0")->type, erofs::FileType::kBlockDevice);
  EXPECT_EQ(layer.Find("run/fifo")->type, erofs::FileType::kFifo);
  EXPECT_TRUE(layer.Content("big") == Noise((3 << 20) + 12345, 1));
  EXPECT_EQ(layer.Find("big")->extents.size(), 1u) << "a contiguous file is one extent";
  EXPECT_EQ(layer.Find("empty")->size, 0u);
}

TEST_F(ImportTest, TheSameTarAgainGivesTheSameIdsAndStoresNothing) {
  const std::string tar = Sample();
  Result<ImportedLayer> first = Import(tar);
  Result<ImportedLayer> second = Import(tar, {}, 1000);
  Result<ImportedLayer> third = Import(Compressed(tar, archive_write_add_filter_gzip));
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  for (const auto* other : {&*second, &*third}) {
    EXPECT_EQ(first->layer.data, other->layer.data);
    EXPECT_EQ(first->layer.metadata, other->layer.metadata);
    EXPECT_EQ(first->layer.diff_id, other->layer.diff_id);
    EXPECT_EQ(other->totals.bytes_stored, 0u);
    EXPECT_EQ(other->totals.bytes_deduplicated, first->totals.bytes_plain);
    EXPECT_TRUE(other->pack.footer.chunks.empty());
    EXPECT_EQ(other->pack.footer.blobs.size(), 2u);
  }
  EXPECT_EQ(second->pack.id, third->pack.id);
  EXPECT_EQ(first->layer.diff_id, OciDigest(tar));
  EXPECT_EQ(first->totals.entries, 10u);
  EXPECT_EQ(first->totals.bytes_read, tar.size());
}

TEST_F(ImportTest, AnyCompressionIsRecognisedByContent) {
  const std::string tar = Sample();
  ImportOptions options;
  options.expected_diff_id = OciDigest(tar);
  for (auto* filter : {archive_write_add_filter_gzip, archive_write_add_filter_zstd,
                       archive_write_add_filter_xz}) {
    const std::string packed = Compressed(tar, filter);
    options.expected_digest = OciDigest(packed);
    Result<ImportedLayer> layer = Import(packed, options, 777);
    ASSERT_TRUE(layer.ok()) << layer.status().ToString();
    EXPECT_EQ(layer->layer.source_digest, OciDigest(packed));
    EXPECT_EQ(layer->totals.bytes_read, packed.size());
    // Two members in a row, and bytes behind the end, belong to the stream.
    if (filter == archive_write_add_filter_gzip) {
      const std::string split =
          Compressed(tar.substr(0, 5000), filter) + Compressed(tar.substr(5000), filter);
      options.expected_digest = OciDigest(split);
      Status status = Import(split, options).status();
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    // Cut off anywhere: an error, never a shorter layer.
    for (size_t size : {packed.size() - 1, packed.size() / 2, size_t{20}, size_t{4}}) {
      ESKER_EXPECT_CODE(Refusal(packed.substr(0, size)), Code::kDataLoss);
    }
    std::string damaged = packed;
    damaged[packed.size() / 2] = static_cast<char>(damaged[packed.size() / 2] ^ 0x55);
    options.expected_digest.clear();
    ESKER_EXPECT_CODE(Import(damaged, options).status(), Code::kDataLoss);
  }
}

TEST_F(ImportTest, DigestsThatDoNotMatchAreNamed) {
  ImportOptions options;
  options.expected_digest = OciDigest("other");
  Status status = Import(Sample(), options).status();
  ESKER_EXPECT_CODE(status, Code::kDataLoss);
  EXPECT_NE(status.message().find(options.expected_digest), std::string::npos);
  options = {};
  options.expected_diff_id = OciDigest("other");
  ESKER_EXPECT_CODE(Import(Sample(), options).status(), Code::kDataLoss);
  EXPECT_TRUE(store_->ListPacks()->empty());
}

TEST_F(ImportTest, EmptyLayersAreEmptyRoots) {
  for (const std::string& tar :
       {std::string(), std::string(1024, '\0'), std::string(10240, '\0'),
        Compressed(std::string(1024, '\0'), archive_write_add_filter_gzip)}) {
    Result<ImportedLayer> imported = Import(tar);
    ASSERT_TRUE(imported.ok()) << imported.status().ToString();
    EXPECT_FALSE(imported->layer.has_data());
    EXPECT_EQ(imported->layer.data, BlobId{});
    Result<ReadBackLayer> layer = Load(imported->layer);
    ASSERT_TRUE(layer.ok()) << layer.status().ToString();
    EXPECT_EQ(layer->tree().inode_count(), 1u);
  }
}

TEST_F(ImportTest, ACutOffTarIsAnErrorAMissingEndIsNot) {
  const std::string whole =
      TarBuilder().File("a", std::string(1000, 'a')).File("b", std::string(700, 'b')).Unended();
  EXPECT_EQ(Layer(whole).Content("b"), std::string(700, 'b'));
  EXPECT_EQ(Layer(whole + std::string(512, '\0')).Content("b"), std::string(700, 'b'));
  const size_t second = 512 + 1024;  // where the second header stands
  for (size_t size = 1; size < whole.size(); size += 61) {
    if (size == second) continue;
    ESKER_EXPECT_CODE(Refusal(whole.substr(0, size)), Code::kDataLoss);
  }
  // Bytes behind the end of the archive belong to the digest only.
  const std::string trailing = whole + std::string(1024, '\0') + "garbage";
  Result<ImportedLayer> imported = Import(trailing);
  ASSERT_TRUE(imported.ok());
  EXPECT_EQ(imported->layer.diff_id, OciDigest(trailing));
  ESKER_EXPECT_CODE(Refusal(whole + std::string(512, '\0') + whole), Code::kDataLoss);
  ESKER_EXPECT_CODE(
      Refusal(TarBuilder().Add({.name = "h", .type = 'x', .content = "11 path=ab\n"}).End()),
      Code::kDataLoss);
}

TEST_F(ImportTest, MalformedHeadersAreDataLoss) {
  const std::string good = TarBuilder().File("a", "a").End();
  for (size_t at : {0, 110, 130, 150, 156, 260, 340}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] + 1);
    ESKER_EXPECT_CODE(Refusal(bad), Code::kDataLoss);
  }
  for (const char* body : {"x", "5 a=b", "11 path=a\n", "999 path=a\n", "7 =abc\n", "7 abcd\n",
                           "99999999999999999999 a=b\n", " a=b\n", "-1 a=b\n"}) {
    ESKER_EXPECT_CODE(
        Refusal(TarBuilder().Add({.name = "h", .type = 'x', .content = body}).File("a", "a").End()),
        Code::kDataLoss);
  }
  ESKER_EXPECT_CODE(Refusal(std::string(512, 'x')), Code::kDataLoss);
  ESKER_EXPECT_CODE(Refusal(TarBuilder().Add({.name = "a", .size_field = "99999999999"}).End()),
                    Code::kDataLoss);
}

TEST_F(ImportTest, HugeClaimsCostNothing) {
  // 8 exabytes in the header, nothing behind it.
  TarItem item = {.name = "a",
                  .size_field = std::string("\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12)};
  ESKER_EXPECT_CODE(Refusal(TarBuilder().Add(item).End()), Code::kDataLoss);
  item.type = 'x';
  ESKER_EXPECT_CODE(Refusal(TarBuilder().Add(item).End()), Code::kInvalidArgument);
  item.type = 'L';
  ESKER_EXPECT_CODE(Refusal(TarBuilder().Add(item).End()), Code::kInvalidArgument);
}

TEST_F(ImportTest, ZerosBecomeHolesAndEqualFilesShareTheirPlace) {
  std::string mixed = Noise(100'000, 1) + std::string(3 << 20, '\0') + Noise(5000, 2);
  std::string small_gap = Noise(8192, 3) + std::string(8192, '\0') + Noise(100, 4);
  Result<ImportedLayer> imported = Import(TarBuilder()
                                              .File("mixed", mixed)
                                              .File("zeros", std::string(5 << 20, '\0'))
                                              .File("one_zero", std::string(1, '\0'))
                                              .File("gap", small_gap)
                                              .File("copy", mixed)
                                              .End());
  ASSERT_TRUE(imported.ok()) << imported.status().ToString();
  Result<ReadBackLayer> layer = Load(imported->layer);
  ASSERT_TRUE(layer.ok());
  EXPECT_TRUE(layer->Content("mixed") == mixed);
  EXPECT_TRUE(layer->Content("copy") == mixed);
  EXPECT_TRUE(layer->Content("zeros") == std::string(5 << 20, '\0'));
  EXPECT_TRUE(layer->Content("gap") == small_gap);
  EXPECT_TRUE(layer->Find("zeros")->extents.empty());
  EXPECT_TRUE(layer->Find("one_zero")->extents.empty());
  EXPECT_EQ(layer->Find("gap")->extents.size(), 1u) << "a short run of zeros is not worth a hole";
  EXPECT_EQ(layer->Find("copy")->extents[0].device_offset,
            layer->Find("mixed")->extents[0].device_offset);
  EXPECT_LT(imported->layer.data_bytes, 150'000u);
}

TEST_F(ImportTest, ProgressAndCancelling) {
  ImportOptions options;
  int calls = 0;
  ImportProgress last;
  options.on_progress = [&](const ImportProgress& progress) {
    ++calls;
    last = progress;
  };
  ASSERT_TRUE(Import(Sample(), options).ok());
  EXPECT_GE(calls, 1);
  EXPECT_EQ(last.entries, 10u);
  int polls = 0;
  options.cancelled = [&] { return ++polls > 4; };
  ESKER_EXPECT_CODE(Import(Sample(), options).status(), Code::kCancelled);
}

TEST_F(ImportTest, SpaceIsCheckedBeforeAnythingIsRead) {
  class Untouchable : public ByteSource {
   public:
    Result<size_t> Read(void*, size_t) override {
      ADD_FAILURE() << "it was read";
      return size_t{0};
    }
  };
  ImportOptions options;
  options.source_bytes = uint64_t{1} << 60;
  Untouchable source;
  Status status = ImportTar(source, *store_, lookup_, options).status();
  ESKER_EXPECT_CODE(status, Code::kResourceExhausted);
  EXPECT_NE(status.message().find(path()), std::string::npos) << status.message();
}

TEST_F(ImportTest, ASourceThatFailsIsReportedAsItself) {
  class Broken : public ByteSource {
   public:
    explicit Broken(std::string start) : start_(std::move(start)) {}
    Result<size_t> Read(void* buffer, size_t size) override {
      if (start_.empty()) return UnavailableError("the network went away");
      size_t n = std::min(size, start_.size());
      std::memcpy(buffer, start_.data(), n);
      start_.erase(0, n);
      return n;
    }
    std::string start_;
  };
  for (const std::string& start :
       {Sample().substr(0, 3000),
        Compressed(Sample(), archive_write_add_filter_gzip).substr(0, 900000)}) {
    Broken source(start);
    Status status = ImportTar(source, *store_, lookup_, {}).status();
    ESKER_EXPECT_CODE(status, Code::kUnavailable);
  }
}

TEST_F(ImportTest, AHundredThousandNamesInOneDirectoryAreLinear) {
  auto cpu_seconds_for = [&](int names) {
    TarBuilder tar;
    for (int i = 0; i < names; ++i) tar.File("d/file-" + std::to_string(i), "");
    const std::string archive = tar.End();
    const std::clock_t begin = std::clock();
    Result<ImportedLayer> imported = Import(archive);
    const std::clock_t end = std::clock();
    EXPECT_TRUE(imported.ok()) << imported.status().ToString();
    Result<ReadBackLayer> layer = Load(imported->layer);
    EXPECT_TRUE(layer.ok());
    EXPECT_EQ(layer->tree().Children("d").size(), static_cast<size_t>(names));
    return static_cast<double>(end - begin) / CLOCKS_PER_SEC;
  };
  const double quarter = cpu_seconds_for(25'000);
  const double whole = cpu_seconds_for(100'000);
  // Four times is linear, sixteen times is not.
  EXPECT_LT(whole, 9 * quarter + 0.2) << quarter << " s for a quarter";
}

}  // namespace
}  // namespace esker
