// Blobs in a store and in a cache directory, for tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/temp_dir.h"
#include "imagefs/blob_map.h"
#include "imagefs/cache_layout.h"
#include "imagefs/pack.h"
#include "imagefs/store.h"

namespace esker::testing {

#define SERVE_ASSERT_OK(expr)                                              \
  do {                                                                     \
    ::esker::Status esker_test_status_ = (expr);                           \
    ASSERT_TRUE(esker_test_status_.ok()) << esker_test_status_.ToString(); \
  } while (false)

struct TestBlob {
  BlobMap map;
  std::string bytes;  // the blob's address space
  PackId pack;
};

// Random bytes; every second chunk is text that shrinks, so that both codecs occur.
inline std::string ChunkBytes(std::mt19937_64& random, uint32_t length, bool shrinks) {
  std::string bytes(length, '\0');
  for (size_t i = 0; i < length; i += 8) {
    uint64_t word = random();
    if (shrinks) word &= 0x0101010101010101ull;
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, length - i));
  }
  return bytes;
}

// Chunk lengths from one byte to a whole chunk, many small ones.
inline std::vector<uint32_t> RandomLengths(std::mt19937_64& random, size_t count) {
  std::vector<uint32_t> lengths;
  for (size_t i = 0; i < count; ++i) {
    switch (random() % 4) {
      case 0:
        lengths.push_back(1 + random() % 5000);
        break;
      case 1:
        lengths.push_back(1 + random() % 100'000);
        break;
      case 2:
        lengths.push_back(kBlockSize * (1 + random() % 20));
        break;
      default:
        lengths.push_back(1 + random() % kMaxChunkSize);
    }
  }
  return lengths;
}

inline TestBlob PublishBlob(Store& store, uint64_t seed, const std::vector<uint32_t>& lengths) {
  std::mt19937_64 random(seed);
  TestBlob blob;
  BlobChunks list;
  auto writer = PackWriter::Create(store);
  EXPECT_TRUE(writer.ok()) << writer.status().ToString();
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::string bytes = ChunkBytes(random, lengths[i], i % 2 == 1);
    ChunkRef ref{Sha256::Of(bytes), lengths[i]};
    Status added =
        (*writer)->AddChunk(ref, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    EXPECT_TRUE(added.ok()) << added.ToString();
    list.chunks.push_back(ref);
    blob.bytes += bytes;
    blob.bytes.resize(AlignToBlock(blob.bytes.size()));
  }
  (*writer)->AddBlob(list);
  auto published = (*writer)->Finish();
  EXPECT_TRUE(published.ok()) << published.status().ToString();
  std::map<Digest, ChunkLocation> where;
  for (const PackChunk& chunk : published->footer.chunks) {
    where[chunk.ref.digest] = published->footer.Locate(published->id, chunk);
  }
  std::vector<ChunkLocation> locations;
  for (const ChunkRef& ref : list.chunks) locations.push_back(where.at(ref.digest));
  blob.map = BlobMap::Make(list, locations);
  blob.pack = published->id;
  EXPECT_EQ(blob.map.size_bytes, blob.bytes.size());
  return blob;
}

inline std::string PackPath(const Store& store, const PackId& id) {
  std::string hex = id.ToHex();
  return store.path() + "/packs/" + hex.substr(0, 2) + "/" + hex + ".pack";
}

// A store and a cache below one temporary directory.
class BlobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<TempDir> dir = TempDir::Create();
    ASSERT_TRUE(dir.ok()) << dir.status().ToString();
    dir_ = std::make_unique<TempDir>(std::move(*dir));
    SERVE_ASSERT_OK(Store::Initialise(StorePath()));
    Result<std::unique_ptr<Store>> store = Store::Open(StorePath());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(*store);
    cache_.root = dir_->path() + "/cache";
    SERVE_ASSERT_OK(cache_.MakeDirectories());
  }
  std::string StorePath() const { return dir_->path() + "/store"; }
  void PutMap(const BlobMap& map) {
    SERVE_ASSERT_OK(ReplaceFileDurably(cache_.MapPath(map.id), map.Serialise()));
  }
  TestBlob Publish(uint64_t seed, size_t chunks) {
    std::mt19937_64 random(seed);
    TestBlob blob = PublishBlob(*store_, seed, RandomLengths(random, chunks));
    PutMap(blob.map);
    return blob;
  }
  std::string PackFile(const TestBlob& blob) const { return PackPath(*store_, blob.pack); }

  std::unique_ptr<TempDir> dir_;
  std::unique_ptr<Store> store_;
  CacheLayout cache_;
};

}  // namespace esker::testing
