// A layer with files of all sizes in a store, and the cache directory of a node, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/io.h"
#include "base/temp_dir.h"
#include "imagefs/blob_map.h"
#include "imagefs/cache_layout.h"
#include "imagefs/erofs.h"
#include "imagefs/layer_cache.h"
#include "imagefs/manifest.h"
#include "imagefs/pack.h"
#include "imagefs/store.h"

namespace esker::testing {

#define LAYER_ASSERT_OK(expr)                                              \
  do {                                                                     \
    ::esker::Status esker_test_status_ = (expr);                           \
    ASSERT_TRUE(esker_test_status_.ok()) << esker_test_status_.ToString(); \
  } while (false)

#define LAYER_EXPECT_OK(expr)                                              \
  do {                                                                     \
    ::esker::Status esker_test_status_ = (expr);                           \
    EXPECT_TRUE(esker_test_status_.ok()) << esker_test_status_.ToString(); \
  } while (false)

class LayerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<TempDir> dir = TempDir::Create();
    ASSERT_TRUE(dir.ok()) << dir.status().ToString();
    dir_ = std::make_unique<TempDir>(std::move(*dir));
    LAYER_ASSERT_OK(Store::Initialise(dir_->path() + "/store"));
    Result<std::unique_ptr<Store>> store = Store::Open(dir_->path() + "/store");
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(*store);
    cache_.root = dir_->path() + "/cache";
    layers_ = OpenCache();
  }

  std::unique_ptr<LayerCache> OpenCache() {
    Result<std::unique_ptr<LayerCache>> cache =
        LayerCache::Open(cache_.root, *store_, [this](const BlobId& id) -> Result<BlobMap> {
          ++maps_asked_;
          auto found = maps_.find(id);
          if (found == maps_.end()) return NotFoundError("no blob " + id.ToHex());
          return found->second;
        });
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    return std::move(*cache);
  }

  // Publishes a layer of one flat directory; `files_` remembers names and content.
  ImageLayer PublishLayer(uint64_t seed, size_t file_count, size_t largest) {
    std::mt19937_64 random(seed);
    erofs::Tree tree;
    BlobChunks data;
    uint64_t data_bytes = 0;
    auto writer = PackWriter::Create(*store_);
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    for (size_t i = 0; i < file_count; ++i) {
      std::string content(i == 0 ? largest : 1 + random() % largest, '\0');
      for (size_t at = 0; at < content.size(); at += 8) {
        uint64_t word = random();
        if (i % 3 == 1) word &= 0x0303030303030303ull;  // shrinks
        std::memcpy(content.data() + at, &word, std::min<size_t>(8, content.size() - at));
      }
      erofs::Node node;
      node.size = content.size();
      node.extents.push_back({0, content.size(), data_bytes});
      AddChunks(**writer, content, &data);
      data_bytes += AlignToBlock(content.size());
      std::string name = "file" + std::to_string(i);
      Status put = tree.Put(name, node);
      EXPECT_TRUE(put.ok()) << put.ToString();
      files_[name] = std::move(content);
    }
    Result<std::string> metadata = erofs::WriteMetadata(tree, {data_bytes});
    EXPECT_TRUE(metadata.ok()) << metadata.status().ToString();
    return Publish(std::move(*writer), data, *metadata, data_bytes);
  }

  ImageLayer Publish(std::unique_ptr<PackWriter> writer, const BlobChunks& data,
                     const std::string& metadata, uint64_t data_bytes) {
    BlobChunks meta;
    AddChunks(*writer, metadata, &meta);
    writer->AddBlob(data);
    writer->AddBlob(meta);
    auto published = writer->Finish();
    EXPECT_TRUE(published.ok()) << published.status().ToString();
    pack_ = published->id;
    std::map<Digest, ChunkLocation> where;
    for (const PackChunk& chunk : published->footer.chunks) {
      where[chunk.ref.digest] = published->footer.Locate(published->id, chunk);
    }
    ImageLayer layer;
    for (const BlobChunks* list : std::initializer_list<const BlobChunks*>{&meta, &data}) {
      std::vector<ChunkLocation> locations;
      for (const ChunkRef& ref : list->chunks) locations.push_back(where.at(ref.digest));
      BlobMap map = BlobMap::Make(*list, locations);
      maps_[map.id] = map;
      (list == &meta ? layer.metadata : layer.data) = map.id;
    }
    layer.metadata_bytes = metadata.size();
    layer.data_bytes = data_bytes;
    return layer;
  }

  static void AddChunks(PackWriter& writer, const std::string& bytes, BlobChunks* list) {
    for (size_t at = 0; at < bytes.size(); at += kMaxChunkSize) {
      std::string_view piece = std::string_view(bytes).substr(at, kMaxChunkSize);
      ChunkRef ref{Sha256::Of(piece), static_cast<uint32_t>(piece.size())};
      Status added =
          writer.AddChunk(ref, {reinterpret_cast<const uint8_t*>(piece.data()), piece.size()});
      EXPECT_TRUE(added.ok()) << added.ToString();
      list->chunks.push_back(ref);
    }
  }

  std::string PackPath() const {
    std::string hex = pack_.ToHex();
    return store_->path() + "/packs/" + hex.substr(0, 2) + "/" + hex + ".pack";
  }

  std::unique_ptr<TempDir> dir_;
  std::unique_ptr<Store> store_;
  CacheLayout cache_;
  std::unique_ptr<LayerCache> layers_;
  std::map<BlobId, BlobMap> maps_;
  std::atomic<int> maps_asked_{0};
  std::map<std::string, std::string> files_;
  PackId pack_;
};

}  // namespace esker::testing
