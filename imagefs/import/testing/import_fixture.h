// Imports into a store of its own and reads layers back; for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "../../store/testing/store_fixture.h"
#include "imagefs/erofs.h"
#include "imagefs/import.h"
#include "memory_lookup.h"

namespace esker::testing {

class StringSource : public ByteSource {
 public:
  explicit StringSource(std::string_view bytes, size_t step = SIZE_MAX)
      : rest_(bytes), step_(step) {}
  Result<size_t> Read(void* buffer, size_t size) override {
    size_t n = std::min({size, step_, rest_.size()});
    std::memcpy(buffer, rest_.data(), n);
    rest_.remove_prefix(n);
    return n;
  }

 private:
  std::string_view rest_;
  size_t step_;  // at most so many bytes at once
};

// A layer read back: its tree, and its files' bytes.
class ReadBackLayer {
 public:
  ReadBackLayer(erofs::Tree tree, std::string data)
      : tree_(std::move(tree)), data_(std::move(data)) {}
  const erofs::Tree& tree() const { return tree_; }
  const erofs::Node* Find(std::string_view path) const { return tree_.Find(path); }
  std::string Content(std::string_view path) const {
    const erofs::Node* node = tree_.Find(path);
    if (node == nullptr) return "(missing)";
    std::string out(node->size, '\0');
    for (const erofs::Extent& extent : node->extents) {
      out.replace(extent.file_offset, extent.length,
                  std::string_view(data_).substr(extent.device_offset, extent.length));
    }
    return out;
  }
  bool IsWhiteout(std::string_view path) const {
    const erofs::Node* node = Find(path);
    return node != nullptr && node->type == erofs::FileType::kCharDevice &&
           node->device_major == 0 && node->device_minor == 0;
  }
  bool IsOpaque(std::string_view path) const {
    const erofs::Node* node = Find(path);
    return node != nullptr && node->xattrs.contains("trusted.overlay.opaque");
  }

 private:
  erofs::Tree tree_;
  std::string data_;
};

class ImportTest : public StoreTest {
 protected:
  Result<ImportedLayer> Import(std::string_view tar, const ImportOptions& options = {},
                               size_t step = SIZE_MAX) {
    StringSource source(tar, step);
    Result<ImportedLayer> layer = ImportTar(source, *store_, lookup_, options);
    if (layer.ok()) lookup_.Register(layer->pack);
    return layer;
  }
  Result<ReadBackLayer> Load(const ImageLayer& layer) {
    ESKER_ASSIGN_OR_RETURN(std::string metadata, lookup_.ReadBlob(*store_, layer.metadata));
    std::string data;
    if (layer.has_data()) {
      ESKER_ASSIGN_OR_RETURN(data, lookup_.ReadBlob(*store_, layer.data));
    }
    EXPECT_EQ(metadata.size(), layer.metadata_bytes);
    EXPECT_EQ(data.size(), layer.data_bytes);
    std::span<const uint8_t> image(reinterpret_cast<const uint8_t*>(metadata.data()),
                                   metadata.size());
    erofs::ValidateLimits limits;
    limits.data_device_bytes = data.size();
    ESKER_RETURN_IF_ERROR(erofs::Validate(image, limits).status());
    ESKER_ASSIGN_OR_RETURN(erofs::Tree tree, erofs::ReadTree(image));
    return ReadBackLayer(std::move(tree), std::move(data));
  }
  // Imports a tar that must be good and reads it back.
  ReadBackLayer Layer(std::string_view tar) {
    Result<ImportedLayer> imported = Import(tar);
    EXPECT_TRUE(imported.ok()) << imported.status().ToString();
    if (!imported.ok()) return ReadBackLayer({}, "");
    Result<ReadBackLayer> layer = Load(imported->layer);
    EXPECT_TRUE(layer.ok()) << layer.status().ToString();
    return layer.ok() ? std::move(*layer) : ReadBackLayer({}, "");
  }
  // The error of importing a tar that must be refused; nothing may become visible.
  Status Refusal(std::string_view tar) {
    size_t before = store_->ListPacks()->size();
    Result<ImportedLayer> imported = Import(tar);
    EXPECT_FALSE(imported.ok());
    EXPECT_EQ(store_->ListPacks()->size(), before);
    return imported.status();
  }

  MemoryLookup lookup_;
};

}  // namespace esker::testing
