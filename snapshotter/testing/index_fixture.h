// A real store and a real index in a temporary directory, and short ways to fill them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/io.h"
#include "base/temp_dir.h"
#include "imagefs/pack.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker::testing {

#define ASSERT_OK(expr)                                    \
  do {                                                     \
    ::esker::Status ok_status_ = (expr);                   \
    ASSERT_TRUE(ok_status_.ok()) << ok_status_.ToString(); \
  } while (false)
#define EXPECT_OK(expr)                                    \
  do {                                                     \
    ::esker::Status ok_status_ = (expr);                   \
    EXPECT_TRUE(ok_status_.ok()) << ok_status_.ToString(); \
  } while (false)

// The value, or a failed test and an exit: fixtures are no place to go on without.
template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << result.status().ToString();
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    std::abort();
  }
  return std::move(result).value();
}
inline void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

// What one pack holds, by the text of its chunks.
struct PackText {
  std::vector<std::string> chunks;              // written into the pack
  std::vector<std::vector<std::string>> blobs;  // lists; may name chunks that other packs hold
  std::vector<std::string> manifests;
};

inline ChunkRef RefOf(const std::string& text) {
  return ChunkRef{Sha256::Of(text), static_cast<uint32_t>(text.size())};
}
inline BlobChunks ListOf(const std::vector<std::string>& texts) {
  BlobChunks list;
  for (const std::string& text : texts) list.chunks.push_back(RefOf(text));
  return list;
}
inline BlobId BlobOf(const std::vector<std::string>& texts) { return ListOf(texts).Id(); }

// Published in the store, not registered.
inline PackWriter::Published WritePack(Store& store, const PackText& text) {
  auto writer = Must(PackWriter::Create(store));
  for (const std::string& chunk : text.chunks) {
    std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(chunk.data()), chunk.size());
    Must(writer->AddChunk(RefOf(chunk), bytes));
  }
  for (const auto& blob : text.blobs) writer->AddBlob(ListOf(blob));
  for (const std::string& manifest : text.manifests) writer->AddManifest(manifest);
  return Must(writer->Finish());
}

inline std::string DiffId(const std::string& text) { return "sha256:" + Sha256::Of(text).ToHex(); }

// A layer whose metadata blob is {"meta of <name>"} and whose data blob is the given texts.
inline ImageLayer LayerOf(const std::string& name, const std::vector<std::string>& data,
                          const std::string& diff_id = "") {
  ImageLayer layer;
  layer.metadata = BlobOf({"meta of " + name});
  layer.metadata_bytes = kBlockSize;
  if (!data.empty()) {
    layer.data = BlobOf(data);
    layer.data_bytes = ListOf(data).SizeBytes();
  }
  layer.diff_id = diff_id;
  return layer;
}

inline Manifest ManifestOf(const std::string& label, std::vector<ImageLayer> layers) {
  Manifest manifest;
  manifest.layers = std::move(layers);
  manifest.config.labels["label"] = label;
  return manifest;
}

class IndexFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_.emplace(Must(TempDir::Create()));
    Must(Store::Initialise(store_path()));
    store_ = Must(Store::Open(store_path()));
    Open();
  }
  void TearDown() override {
    index_.reset();
    store_.reset();
    EXPECT_OK(directory_->Remove());
  }

  std::string store_path() const { return directory_->path() + "/store"; }
  std::string db_path() const { return directory_->path() + "/index"; }
  IndexOptions Options() {
    IndexOptions options;
    options.db_directory = db_path();
    options.claimant = "test";
    options.clock = &clock_;
    return options;
  }
  void Open() {
    index_ = Must(Index::Open(*store_, Options()));
    index_->EnableGc();
  }
  void Reopen() {
    index_.reset();
    Open();
  }

  PackWriter::Published Register(const PackText& text) {
    PackWriter::Published pack = WritePack(*store_, text);
    Must(index_->RegisterPack(pack));
    return pack;
  }
  // One pack with a layer's blobs and all its chunks.
  ImageLayer AddLayer(const std::string& name, const std::vector<std::string>& data,
                      const std::string& diff_id = "") {
    PackText text;
    text.chunks = data;
    text.chunks.push_back("meta of " + name);
    text.blobs = {{"meta of " + name}};
    if (!data.empty()) text.blobs.push_back(data);
    Register(text);
    return LayerOf(name, data, diff_id);
  }
  ImageId AddImage(const std::string& label, std::vector<ImageLayer> layers) {
    return Must(index_->PublishImage(ManifestOf(label, std::move(layers))));
  }
  GcReport Collect(int64_t grace_ns = 0) {
    return Must(index_->CollectGarbage(GcOptions{.grace_ns = grace_ns}));
  }
  bool PackExists(const PackId& id) { return store_->OpenPack(id).ok(); }
  size_t PacksInStore() { return Must(store_->ListPacks()).size(); }
  // Nothing but the format, the owner's claims and empty directories.
  void ExpectEmptyStore() {
    EXPECT_EQ(PacksInStore(), 0u);
    EXPECT_TRUE(Must(store_->ListRecordNames("tags")).empty());
    EXPECT_TRUE(Must(store_->ListRecordNames("images")).empty());
    EXPECT_TRUE(Must(ListDirectory(store_path() + "/tmp")).empty());
  }

  std::optional<TempDir> directory_;
  FakeClock clock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Index> index_;
};

}  // namespace esker::testing
