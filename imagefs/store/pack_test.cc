#include "imagefs/pack.h"

#include <fcntl.h>

#include <fstream>
#include <random>

#include "base/failpoint.h"
#include "pack_format.h"
#include "testing/golden.h"
#include "testing/store_fixture.h"

namespace esker {
namespace {

using testing::StoreTest;

std::string Text(size_t size, int seed) {
  std::string out;
  while (out.size() < size)
    out += "line " + std::to_string(seed) + " " + std::to_string(out.size());
  out.resize(size);
  return out;
}

std::string Noise(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

ChunkRef RefOf(std::string_view bytes) {
  return {Sha256::Of(bytes), static_cast<uint32_t>(bytes.size())};
}

Status Add(PackWriter& writer, std::string_view bytes) {
  return writer.AddChunk(RefOf(bytes),
                         {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

class PackTest : public StoreTest {
 protected:
  std::unique_ptr<PackWriter> NewWriter() {
    Result<std::unique_ptr<PackWriter>> writer = PackWriter::Create(*store_);
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    return std::move(*writer);
  }
  PackWriter::Published Write(const std::vector<std::string>& chunks) {
    std::unique_ptr<PackWriter> writer = NewWriter();
    BlobChunks blob;
    for (const std::string& chunk : chunks) {
      EXPECT_TRUE(Add(*writer, chunk).ok());
      blob.chunks.push_back(RefOf(chunk));
    }
    writer->AddBlob(blob);
    writer->AddManifest("{\"a\":1}");
    Result<PackWriter::Published> published = writer->Finish();
    EXPECT_TRUE(published.ok()) << published.status().ToString();
    return std::move(*published);
  }
  std::string PackFile(const PackId& id) {
    return path() + "/packs/" + id.ToHex().substr(0, 2) + "/" + id.ToHex() + ".pack";
  }
};

TEST_F(PackTest, RoundTripOfAllKindsOfChunks) {
  std::vector<std::string> chunks = {"x",
                                     Text(300, 1),
                                     Text(1 << 20, 2),
                                     Noise(500, 3),
                                     Noise(1 << 20, 4),
                                     Text(128 << 10, 5),
                                     Text(5000, 6),
                                     Text((128 << 10) + 1, 7)};
  for (int i = 0; i < 200; ++i) chunks.push_back(Text(3000 + static_cast<size_t>(i), 100 + i));
  chunks.push_back(chunks[0]);  // a second time: stored once
  PackWriter::Published published = Write(chunks);
  Result<PackFooter> footer = ReadPackFooter(*store_, published.id);
  ASSERT_TRUE(footer.ok()) << footer.status().ToString();
  EXPECT_EQ(footer->Serialise(), published.footer.Serialise());
  EXPECT_EQ(footer->chunks.size(), chunks.size() - 1);
  ASSERT_EQ(footer->blobs.size(), 1u);
  EXPECT_EQ(footer->blobs[0].chunks.size(), chunks.size());
  EXPECT_EQ(footer->manifests, std::vector<std::string>{"{\"a\":1}"});
  UniqueFd fd = *store_->OpenPack(published.id);
  EXPECT_EQ(static_cast<uint64_t>(::lseek(fd.get(), 0, SEEK_END)), published.file_bytes);
  std::map<Digest, std::string> found;
  for (const PackChunk& chunk : footer->chunks) {
    Result<std::vector<uint8_t>> frame = ReadFrame(fd.get(), footer->Locate(published.id, chunk));
    ASSERT_TRUE(frame.ok()) << frame.status().ToString();
    found[chunk.ref.digest] = std::string(frame->begin() + chunk.offset,
                                          frame->begin() + chunk.offset + chunk.ref.length);
  }
  for (const std::string& chunk : chunks) EXPECT_TRUE(found[RefOf(chunk).digest] == chunk);
  // Text was compressed, noise was not, small chunks share frames.
  EXPECT_LT(footer->frames.size(), 12u);
  EXPECT_LT(published.file_bytes, 3u << 20);
}

TEST_F(PackTest, TheSameChunksGiveTheSamePack) {
  std::vector<std::string> chunks;
  for (int i = 0; i < 40; ++i) chunks.push_back(Text(100'000 + static_cast<size_t>(i), i));
  EXPECT_EQ(Write(chunks).id, Write(chunks).id);
  EXPECT_EQ(store_->ListPacks()->size(), 1u);
}

TEST_F(PackTest, AnEmptyPackIsAPack) {
  PackWriter::Published published = Write({});
  Result<PackFooter> footer = ReadPackFooter(*store_, published.id);
  ASSERT_TRUE(footer.ok());
  EXPECT_TRUE(footer->chunks.empty());
  ESKER_EXPECT_CODE(ReadPackFooter(*store_, PackId{Sha256::Of("no")}).status(), Code::kNotFound);
}

TEST_F(PackTest, BlobsMayNameChunksOfOtherPacks) {
  std::unique_ptr<PackWriter> writer = NewWriter();
  ESKER_ASSERT_OK(Add(*writer, "here"));
  BlobChunks blob{{RefOf("elsewhere"), RefOf("here")}};
  writer->AddBlob(blob);
  Result<PackWriter::Published> published = writer->Finish();
  ASSERT_TRUE(published.ok());
  Result<PackFooter> footer = ReadPackFooter(*store_, published->id);
  ASSERT_TRUE(footer.ok());
  EXPECT_EQ(footer->blobs[0].Id(), blob.Id());
}

TEST_F(PackTest, AnUnfinishedOrFailedWriterLeavesNothing) {
  {
    std::unique_ptr<PackWriter> writer = NewWriter();
    for (int i = 0; i < 20; ++i)
      ESKER_ASSERT_OK(Add(*writer, Noise(1 << 20, 7 + static_cast<uint32_t>(i))));
  }
  for (const char* point :
       {"pack.before_footer", "pack.before_verify", "store.publish.before_link"}) {
    std::unique_ptr<PackWriter> writer = NewWriter();
    ESKER_ASSERT_OK(Add(*writer, "x"));
    ESKER_ASSERT_OK(ArmFailPoints(std::string(point) + "=error:28"));
    ESKER_EXPECT_CODE(writer->Finish().status(), Code::kResourceExhausted);
    ESKER_EXPECT_CODE(writer->Finish().status(), Code::kResourceExhausted);
    ESKER_ASSERT_OK(ArmFailPoints(""));
  }
  EXPECT_TRUE(store_->ListPacks()->empty());
}

TEST_F(PackTest, AChunkThatIsNotItsDigestIsCaughtBeforePublishing) {
  std::unique_ptr<PackWriter> writer = NewWriter();
  ESKER_ASSERT_OK(Add(*writer, "good"));
  ChunkRef wrong = {Sha256::Of("other"), 4};
  ESKER_ASSERT_OK(writer->AddChunk(wrong, {reinterpret_cast<const uint8_t*>("evil"), 4}));
  ESKER_EXPECT_CODE(writer->Finish().status(), Code::kDataLoss);
  EXPECT_TRUE(store_->ListPacks()->empty());
  std::unique_ptr<PackWriter> second = NewWriter();
  ESKER_EXPECT_CODE(second->AddChunk(wrong, {}), Code::kInvalidArgument);
}

TEST_F(PackTest, DamageAnywhereInHeaderFooterOrTrailerIsDataLoss) {
  PackWriter::Published published = Write({"hello", Text(4000, 1), Noise(100, 2)});
  const std::string file = PackFile(published.id);
  const std::string good = *ReadFileToString(file);
  const uint64_t frames_end =
      published.footer.frames.back().offset + published.footer.frames.back().stored;
  int unnoticed = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    std::ofstream(file, std::ios::binary) << bad;
    Result<PackFooter> footer = ReadPackFooter(*store_, published.id);
    if (i < pack_format::kHeaderBytes || i >= frames_end) {
      ESKER_EXPECT_CODE(footer.status(), Code::kDataLoss);
      continue;
    }
    // In a frame: the chunk is wrong, and shows it (a few bits of zstd's mean nothing).
    ASSERT_TRUE(footer.ok());
    UniqueFd fd = *store_->OpenPack(published.id);
    bool noticed = false;
    for (const PackChunk& chunk : footer->chunks) {
      Result<std::vector<uint8_t>> frame = ReadFrame(fd.get(), footer->Locate(published.id, chunk));
      noticed = noticed || !frame.ok() ||
                Sha256::Of(frame->data() + chunk.offset, chunk.ref.length) != chunk.ref.digest;
    }
    unnoticed += noticed ? 0 : 1;
  }
  EXPECT_LT(unnoticed, 5);
  for (size_t size = 0; size < good.size(); ++size) {
    std::ofstream(file, std::ios::binary) << good.substr(0, size);
    ESKER_EXPECT_CODE(ReadPackFooter(*store_, published.id).status(), Code::kDataLoss);
  }
  std::ofstream(file, std::ios::binary) << good << "x";
  ESKER_EXPECT_CODE(ReadPackFooter(*store_, published.id).status(), Code::kDataLoss);
}

PackFooter SmallFooter() {
  PackFooter footer;
  footer.frames = {{16, 10, 10, kCodecRaw}, {26, 50, 100, kCodecZstd}};
  footer.chunks = {{RefOf("a"), 0, 0}, {RefOf("bb"), 0, 8}, {{Sha256::Of("c"), 100}, 1, 0}};
  footer.blobs = {BlobChunks{{RefOf("a"), RefOf("else"), {Sha256::Of("c"), 100}}}, BlobChunks{}};
  footer.manifests = {"{}"};
  return footer;
}

TEST(PackFooterTest, GoldenBytes) {
  testing::ExpectGolden("footer-1.bin", SmallFooter().Serialise());
}

TEST(PackFooterTest, EachBadFieldIsDataLoss) {
  ASSERT_TRUE(PackFooter::Parse(SmallFooter().Serialise()).ok());
  using Edit = void (*)(PackFooter&);
  const Edit edits[] = {
      [](PackFooter& f) { f.frames[0].offset = 15; },
      [](PackFooter& f) { f.frames[1].offset = 25; },
      [](PackFooter& f) { f.frames[1].offset = UINT64_MAX - 10; },
      [](PackFooter& f) { f.frames[0].stored = 9; },
      [](PackFooter& f) { f.frames[1].stored = 0; },
      [](PackFooter& f) { f.frames[1].stored = 100; },
      [](PackFooter& f) { f.frames[1].plain = 0; },
      [](PackFooter& f) { f.frames[1].plain = kMaxChunkSize + 1; },
      [](PackFooter& f) { f.frames[0].codec = 2; },
      [](PackFooter& f) { f.chunks[0].frame = 2; },
      [](PackFooter& f) { f.chunks[0].ref.length = 0; },
      [](PackFooter& f) { f.chunks[0].ref.length = kMaxChunkSize + 1; },
      [](PackFooter& f) { f.chunks[1].offset = 9; },
      [](PackFooter& f) { f.chunks[1].offset = UINT32_MAX; },
      [](PackFooter& f) { f.blobs[0].chunks[1].length = 0; },
      [](PackFooter& f) { f.blobs[0].chunks[1].length = kMaxChunkSize + 1; },
      [](PackFooter& f) { f.manifests[0].resize(pack_format::kMaxManifestBytes + 1); },
  };
  for (size_t i = 0; i < std::size(edits); ++i) {
    PackFooter footer = SmallFooter();
    edits[i](footer);
    Status status = PackFooter::Parse(footer.Serialise()).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << "edit " << i << " " << status.ToString();
  }
}

TEST(PackFooterTest, EveryCutAndHostileCountIsDataLoss) {
  const std::string good = SmallFooter().Serialise();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(PackFooter::Parse(good.substr(0, size)).status().code(), Code::kDataLoss);
  }
  EXPECT_EQ(PackFooter::Parse(good + "x").status().code(), Code::kDataLoss);
  // Any 4 bytes turned into a huge count must neither crash nor allocate.
  for (size_t i = 0; i + 4 <= good.size(); ++i) {
    std::string bad = good;
    bad.replace(i, 4, "\xff\xff\xff\x7f");
    Result<PackFooter> footer = PackFooter::Parse(bad);
    if (footer.ok()) {
      EXPECT_LE(footer->Serialise().size(), bad.size() + 100);
    }
  }
}

TEST(PackFooterTest, TwoHundredThousandChunksStayModest) {
  PackFooter footer;
  BlobChunks blob;
  for (uint32_t i = 0; i < 200'000; ++i) {
    ChunkRef ref = {Sha256::Of(&i, sizeof(i)), 5000};
    if (i % 50 == 0)
      footer.frames.push_back({16 + uint64_t{i} * 1000, 100'000, 250'000, kCodecZstd});
    footer.chunks.push_back({ref, i / 50, i % 50 * 5000});
    blob.chunks.push_back(ref);
  }
  footer.blobs.push_back(blob);
  pack_format::Packed packed = pack_format::Compress(footer.Serialise());
  EXPECT_EQ(packed.codec, kCodecZstd);
  EXPECT_LT(packed.bytes.size(), 200'000u * 44);
}

TEST(ReadFrameTest, HostileLocationsAreRefusedBeforeAnythingIsAllocated) {
  UniqueFd fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const ChunkLocation bad[] = {{{}, 0, 100, 0xffffffff, kCodecZstd, 0},
                               {{}, 0, 0xffffffff, 1 << 20, kCodecZstd, 0},
                               {{}, 0, 10, 11, kCodecRaw, 0},
                               {{}, 0, 0, 0, kCodecRaw, 0},
                               {{}, 0, 10, 100, 7, 0},
                               {{}, UINT64_MAX - 5, 10, 10, kCodecRaw, 0},
                               {{}, 1ull << 40, 10, 10, kCodecRaw, 0},
                               {{}, 0, 10, 100, kCodecZstd, 0}};
  for (const ChunkLocation& location : bad) {
    EXPECT_EQ(ReadFrame(fd.get(), location).status().code(), Code::kDataLoss);
  }
}

TEST_F(PackTest, AFrameThatDecompressesToAnotherSizeIsDataLoss) {
  PackWriter::Published published = Write({Text(4000, 1)});
  UniqueFd fd = *store_->OpenPack(published.id);
  ChunkLocation location = published.footer.Locate(published.id, published.footer.chunks[0]);
  ASSERT_TRUE(ReadFrame(fd.get(), location).ok());
  for (int delta : {-1, 1}) {
    ChunkLocation bad = location;
    bad.frame_plain = static_cast<uint32_t>(4000 + delta);
    EXPECT_EQ(ReadFrame(fd.get(), bad).status().code(), Code::kDataLoss);
  }
}

}  // namespace
}  // namespace esker
