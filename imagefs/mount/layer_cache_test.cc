#include "imagefs/layer_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "base/failpoint.h"
#include "testing/layer_fixture.h"

namespace esker {
namespace {

class LayerCacheTest : public testing::LayerTest {
 protected:
  void TearDown() override { LAYER_ASSERT_OK(ArmFailPoints("")); }
  std::vector<std::string> MetaFiles() { return *ListDirectory(cache_.MetaDirectory()); }
};

TEST_F(LayerCacheTest, FetchesOnceAndIsThereForTheNextProcess) {
  ImageLayer layer = PublishLayer(1, 20, 300'000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      Result<LocalLayer> local = layers_->Ensure(layer);
      ASSERT_TRUE(local.ok()) << local.status().ToString();
      EXPECT_EQ(local->data_blob, layer.data.ToHex());
      EXPECT_EQ(local->data_bytes, layer.data_bytes);
      EXPECT_FALSE(local->data_complete);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(maps_asked_, 2);
  Result<std::string> metadata = ReadFileToString(cache_.MetaPath(layer.metadata));
  ASSERT_TRUE(metadata.ok());
  EXPECT_TRUE(
      erofs::Validate({reinterpret_cast<const uint8_t*>(metadata->data()), metadata->size()},
                      {.data_device_bytes = layer.data_bytes})
          .ok());
  Result<BlobMap> map = BlobMap::Parse(*ReadFileToString(cache_.MapPath(layer.data)));
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  EXPECT_EQ(map->id, layer.data);
  // Neither pack nor the metadata's map is needed again.
  ASSERT_EQ(::unlink(PackPath().c_str()), 0);
  maps_.erase(layer.metadata);
  auto next = OpenCache();
  Result<LocalLayer> local = next->Ensure(layer);
  ASSERT_TRUE(local.ok()) << local.status().ToString();
}

TEST_F(LayerCacheTest, LayersOfAnImageComeSideBySideAndTheirMapsFirst) {
  std::vector<ImageLayer> layers;
  for (uint64_t i = 0; i < 12; ++i) layers.push_back(PublishLayer(40 + i, 5, 20'000));
  int told = 0;
  Result<std::vector<LocalLayer>> local = layers_->EnsureAll(layers, [&] {
    ++told;
    for (const ImageLayer& layer : layers) EXPECT_TRUE(PathExists(cache_.MapPath(layer.data)));
    EXPECT_TRUE(MetaFiles().empty());
  });
  ASSERT_TRUE(local.ok()) << local.status().ToString();
  EXPECT_EQ(told, 1);
  ASSERT_EQ(local->size(), layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ((*local)[i].data_blob, layers[i].data.ToHex());
  }
  EXPECT_EQ(maps_asked_, 24);
  ASSERT_TRUE(layers_->EnsureAll(layers, [] {}).ok());
  EXPECT_EQ(maps_asked_, 24);
  maps_.clear();
  layers.push_back(PublishLayer(60, 2, 100));
  maps_.clear();
  EXPECT_EQ(layers_->EnsureAll(layers, [] {}).status().code(), Code::kNotFound);
}

TEST_F(LayerCacheTest, UnknownBlobIsNotFound) {
  ImageLayer layer = PublishLayer(2, 2, 1000);
  maps_.clear();
  EXPECT_EQ(layers_->Ensure(layer).status().code(), Code::kNotFound);
  EXPECT_TRUE(MetaFiles().empty());
}

TEST_F(LayerCacheTest, WrongBytesInTheStoreLeaveNothingBehindAndHeal) {
  ImageLayer layer = PublishLayer(3, 5, 1000);
  ASSERT_EQ(::chmod(PackPath().c_str(), 0600), 0);
  Result<UniqueFd> pack = OpenFile(PackPath(), O_RDWR | O_CLOEXEC);
  ASSERT_TRUE(pack.ok());
  const ChunkLocation where = maps_.at(layer.metadata).entries[0].location;
  std::string whole(where.frame_stored, '\0'), bad(where.frame_stored, 'x');
  LAYER_ASSERT_OK(PReadExact(pack->get(), whole.data(), whole.size(), where.frame_offset, "pack"));
  LAYER_ASSERT_OK(PWriteFull(pack->get(), bad.data(), bad.size(), where.frame_offset));
  EXPECT_EQ(layers_->Ensure(layer).status().code(), Code::kDataLoss);
  EXPECT_TRUE(MetaFiles().empty());
  LAYER_ASSERT_OK(PWriteFull(pack->get(), whole.data(), whole.size(), where.frame_offset));
  Result<LocalLayer> local = layers_->Ensure(layer);
  EXPECT_TRUE(local.ok()) << local.status().ToString();
}

TEST_F(LayerCacheTest, HostileMetadataNeverGetsItsName) {
  erofs::Tree tree;
  erofs::Node node;
  node.size = 8192;
  node.extents.push_back({0, 8192, 0});
  LAYER_ASSERT_OK(tree.Put("file", node));
  Result<std::string> metadata = erofs::WriteMetadata(tree, {8192});
  ASSERT_TRUE(metadata.ok());
  (*metadata)[1024] ^= 1;  // the super block's magic
  auto writer = PackWriter::Create(*store_);
  ASSERT_TRUE(writer.ok());
  BlobChunks data;
  AddChunks(**writer, std::string(8192, 'd'), &data);
  ImageLayer layer = Publish(std::move(*writer), data, *metadata, 8192);
  EXPECT_EQ(layers_->Ensure(layer).status().code(), Code::kDataLoss);
  EXPECT_TRUE(MetaFiles().empty());
}

TEST_F(LayerCacheTest, ManifestsThatLieAboutSizesAreRefused) {
  ImageLayer layer = PublishLayer(4, 10, 50'000);
  ASSERT_TRUE(layers_->Ensure(layer).ok());
  // The same, validated metadata over less data, or with other sizes.
  ImageLayer small = PublishLayer(5, 1, 100), lie = layer;
  small.metadata = layer.metadata;
  small.metadata_bytes = layer.metadata_bytes;
  EXPECT_EQ(layers_->Ensure(small).status().code(), Code::kDataLoss);
  lie.metadata_bytes += kBlockSize;
  EXPECT_EQ(OpenCache()->Ensure(lie).status().code(), Code::kDataLoss);
  lie = layer;
  lie.data_bytes += kBlockSize;
  EXPECT_EQ(OpenCache()->Ensure(lie).status().code(), Code::kDataLoss);
}

TEST_F(LayerCacheTest, ACrashAtAnyDurableStepLeavesNothingThatIsTrusted) {
  ImageLayer layer = PublishLayer(6, 5, 10'000);
  for (const char* point : {"imagefs.cache.sync_metadata", "imagefs.cache.record_metadata",
                            "imagefs.cache.write_map"}) {
    LAYER_ASSERT_OK(ArmFailPoints(std::string(point) + "=error:5"));
    EXPECT_FALSE(OpenCache()->Ensure(layer).ok()) << point;
    LAYER_ASSERT_OK(ArmFailPoints(""));
    Result<LocalLayer> local = OpenCache()->Ensure(layer);
    EXPECT_TRUE(local.ok()) << point << ": " << local.status().ToString();
    LAYER_ASSERT_OK(layers_->Retain({}));
  }
}

TEST_F(LayerCacheTest, ADamagedRecordOrACutImageMeansFetchingAgain) {
  ImageLayer layer = PublishLayer(7, 5, 10'000);
  ASSERT_TRUE(layers_->Ensure(layer).ok());
  const std::string path = cache_.MetaPath(layer.metadata);
  const std::string good = *ReadFileToString(path);
  ASSERT_EQ(::truncate(path.c_str(), 4096), 0);
  ASSERT_TRUE(OpenCache()->Ensure(layer).ok());
  EXPECT_EQ(*ReadFileToString(path), good);
  LAYER_ASSERT_OK(ReplaceFileDurably(
      cache_.MetaDirectory() + "/" + layer.metadata.ToHex() + ".valid", "ESKRMETA"));
  ASSERT_TRUE(OpenCache()->Ensure(layer).ok());
  EXPECT_EQ(*ReadFileToString(path), good);
}

TEST_F(LayerCacheTest, RetainDropsWhatNoLayerNeeds) {
  ImageLayer keep = PublishLayer(8, 3, 10'000), drop = PublishLayer(9, 3, 10'000);
  ASSERT_TRUE(layers_->Ensure(keep).ok());
  ASSERT_TRUE(layers_->Ensure(drop).ok());
  LAYER_ASSERT_OK(ReplaceFileDurably(cache_.PartPath(drop.data), "data"));
  LAYER_ASSERT_OK(layers_->Retain({keep}));
  EXPECT_TRUE(PathExists(cache_.MetaPath(keep.metadata)));
  EXPECT_TRUE(PathExists(cache_.MapPath(keep.data)));
  EXPECT_FALSE(PathExists(cache_.MetaPath(drop.metadata)));
  EXPECT_FALSE(PathExists(cache_.MapPath(drop.data)));
  EXPECT_FALSE(PathExists(cache_.PartPath(drop.data)));
  EXPECT_EQ(MetaFiles().size(), 2u);
  Result<LocalLayer> again = layers_->Ensure(drop);
  EXPECT_TRUE(again.ok()) << again.status().ToString();
}

TEST_F(LayerCacheTest, RefreshMapWritesOnlyNewerMaps) {
  ImageLayer layer = PublishLayer(10, 3, 10'000);
  ASSERT_TRUE(layers_->Ensure(layer).ok());
  maps_.at(layer.data).generation = 4;
  LAYER_ASSERT_OK(layers_->RefreshMap(layer.data));
  EXPECT_EQ(BlobMap::Parse(*ReadFileToString(cache_.MapPath(layer.data)))->generation, 4u);
  maps_.at(layer.data).generation = 3;
  LAYER_ASSERT_OK(layers_->RefreshMap(layer.data));
  EXPECT_EQ(BlobMap::Parse(*ReadFileToString(cache_.MapPath(layer.data)))->generation, 4u);
}

}  // namespace
}  // namespace esker
