// Layers in a store and an index, resolved as a push does it.
#include "implicit_layers.h"

#include <sys/stat.h>

#include "imagefs/erofs.h"
#include "imagefs/implicit_directories.h"
#include "imagefs/read_blob.h"
#include "testing/index_fixture.h"
#include "testing/tar_maker.h"

namespace esker::testing {
namespace {

class ImplicitLayersTest : public IndexFixture {
 protected:
  // A layer of one directory with an entry of its own.
  static std::string TarOfDirectory(const std::string& path, const std::string& mode) {
    std::string tar = MakeTar({{path + "/", ""}});
    tar.replace(100, 7, "0000" + mode);
    tar[156] = '5';
    tar.replace(148, 8, 8, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(tar[i]);
    char text[8];
    std::snprintf(text, sizeof(text), "%06o", sum);
    tar.replace(148, 7, std::string_view(text, 7));
    return tar;
  }
  ImageLayer Import(ImportSession& session, const std::string& tar) {
    StringSource source(tar);
    ImportedLayer imported = Must(ImportTar(source, *store_, session, {}));
    Must(index_->RegisterPack(imported.pack));
    Must(session.RememberLayer(imported.layer));
    return imported.layer;
  }
  std::string Metadata(const ImageLayer& layer) {
    return Must(ReadBlob(*store_, Must(index_->GetBlobMap(layer.metadata)), UINT64_MAX));
  }
  uint16_t ModeOf(const ImageLayer& layer, const std::string& path) {
    const std::string image = Metadata(layer);
    erofs::Tree tree =
        Must(erofs::ReadTree({reinterpret_cast<const uint8_t*>(image.data()), image.size()}));
    return tree.Find(path) == nullptr ? 0xffff : tree.Find(path)->mode;
  }

  const std::string upper_ = MakeTar({{"d/file", "content"}});
};

TEST_F(ImplicitLayersTest, TheSameLayerOverOthersSharesItsData) {
  auto session = index_->StartImport();
  const ImageLayer upper = Import(*session, upper_);
  std::vector<ImageLayer> strict = {Import(*session, TarOfDirectory("d", "700")), upper};
  std::vector<ImageLayer> open = {Import(*session, TarOfDirectory("d", "777")), upper};
  std::vector<ImageLayer> alone = {upper};
  const std::vector<ImageLayer> strict_before = strict;
  Must(ResolveImplicitDirectories(*store_, *index_, *session, strict));
  Must(ResolveImplicitDirectories(*store_, *index_, *session, open));
  Must(ResolveImplicitDirectories(*store_, *index_, *session, alone));
  EXPECT_EQ(ModeOf(strict[1], "d"), 0700);
  EXPECT_EQ(ModeOf(open[1], "d"), 0777);
  EXPECT_EQ(alone[0].metadata, upper.metadata);
  EXPECT_EQ(strict[0].metadata, strict_before[0].metadata);
  for (const ImageLayer& layer : {strict[1], open[1]}) {
    EXPECT_EQ(layer.data, upper.data);
    EXPECT_EQ(layer.diff_id, upper.diff_id);
    EXPECT_NE(layer.metadata, upper.metadata);
    EXPECT_EQ(Metadata(layer).size(), layer.metadata_bytes);
  }
  // What came out goes in again: no change, no pack.
  const uint64_t packs = store_->ListPacks()->size();
  std::vector<ImageLayer> again = strict;
  Must(ResolveImplicitDirectories(*store_, *index_, *session, again));
  EXPECT_EQ(again[1].metadata, strict[1].metadata);
  EXPECT_EQ(store_->ListPacks()->size(), packs);
  std::vector<ImageLayer> moved = {open[0], strict[1]};
  Must(ResolveImplicitDirectories(*store_, *index_, *session, moved));
  EXPECT_EQ(moved[1].metadata, open[1].metadata);
}

TEST_F(ImplicitLayersTest, ResolvedBlobsLiveAsLongAsTheirImage) {
  Manifest manifest;
  ImageId id;
  {
    auto session = index_->StartImport();
    manifest.layers = {Import(*session, TarOfDirectory("d", "700")), Import(*session, upper_)};
    Must(ResolveImplicitDirectories(*store_, *index_, *session, manifest.layers));
    EXPECT_EQ(Collect().packs_deleted, 0u) << "the session keeps them";
    id = Must(index_->PublishImage(manifest));
    Must(index_->SetTag("app:1", id));
  }
  EXPECT_EQ(ModeOf(manifest.layers[1], "d"), 0700);
  Collect();
  EXPECT_EQ(ModeOf(manifest.layers[1], "d"), 0700);
  Must(index_->DeleteImage(id, true));
  Collect();
  ExpectEmptyStore();
}

}  // namespace
}  // namespace esker::testing
