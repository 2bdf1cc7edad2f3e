// Export gives back what import took: the tar that comes out, imported, is the same layer.
#include "imagefs/export.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "../import/testing/import_fixture.h"
#include "../import/testing/tar_builder.h"
#include "base/io.h"

namespace esker {
namespace {

using testing::ImportTest;
using testing::TarBuilder;
using testing::TarItem;

class ExportTest : public ImportTest {
 protected:
  struct Exported {
    std::string bytes;
    ExportedLayer layer;
  };
  Result<Exported> Export(const ImageLayer& layer, LayerCompression how = LayerCompression::kNone) {
    Exported out;
    const ExportSource source = {*store_, [this](const BlobId& id) { return lookup_.Map(id); }, {}};
    ESKER_ASSIGN_OR_RETURN(out.layer, ExportLayer(source, layer, how, [&](std::string_view bytes) {
                             out.bytes += bytes;
                             return OkStatus();
                           }));
    EXPECT_EQ(out.layer.digest, "sha256:" + Sha256::Of(out.bytes).ToHex());
    EXPECT_EQ(out.layer.size, out.bytes.size());
    return out;
  }
  void ExpectComesBack(const ImageLayer& layer) {
    for (LayerCompression how :
         {LayerCompression::kNone, LayerCompression::kGzip, LayerCompression::kZstd}) {
      Result<Exported> one = Export(layer, how);
      ASSERT_TRUE(one.ok()) << one.status().ToString();
      Result<Exported> two = Export(layer, how);
      ASSERT_TRUE(two.ok()) << two.status().ToString();
      EXPECT_TRUE(one->bytes == two->bytes);
      Result<ImportedLayer> back = Import(one->bytes);
      ASSERT_TRUE(back.ok()) << back.status().ToString();
      EXPECT_EQ(back->layer.metadata.ToHex(), layer.metadata.ToHex());
      EXPECT_EQ(back->layer.data.ToHex(), layer.data.ToHex());
      EXPECT_EQ(back->layer.diff_id, one->layer.diff_id);
      EXPECT_EQ(back->layer.source_digest, one->layer.digest);
    }
  }
  void ExpectComesBack(const std::string& tar) {
    Result<ImportedLayer> layer = Import(tar);
    ASSERT_TRUE(layer.ok()) << layer.status().ToString();
    ExpectComesBack(layer->layer);
  }
};

std::string Noise(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

TEST_F(ExportTest, EverythingThatALayerCanHold) {
  TarBuilder tar;
  tar.Add({.name = "./", .type = '5', .mode = 0711, .uid = 7});
  tar.Dir("etc").File("etc/z-first", Noise(5000, 1)).File("etc/a-second", Noise(5000, 2));
  tar.File("etc/same", Noise(5000, 1)).File("empty", "");
  tar.Symlink("link", std::string(300, 't')).Link("etc/hard", "etc/a-second");
  tar.Link("zz-hard", "link");
  tar.Add({.name = "null", .type = '3', .major = 1, .minor = 3});
  tar.Add({.name = "disk", .type = '4', .major = 259, .minor = 1'000'000});
  tar.Add({.name = "fifo", .type = '6', .mode = 0600});
  tar.Add({.name = "su", .content = "x", .mode = 06755});
  TarItem item = {.name = "short", .content = "long name"};
  item.pax = {{"path", std::string(200, 'd') + "/" + std::string(255, 'n') + "\xff\xfe"}};
  item.pax[0].second.resize(200 + 1 + 255);
  tar.Add(item);
  item = {.name = "\xc3\x28 not utf-8", .content = "bytes"};
  item.pax = {{"mtime", "-1.5"},
              {"uid", "4294967294"},
              {"gid", "3000000"},
              {"SCHILY.xattr.user.a", std::string("v\0\n=", 4)},
              {"LIBARCHIVE.xattr.user.b%3Dc", "AAEC"},
              {"SCHILY.xattr.security.capability",
               std::string("\1\0\0\2\0\4\0\0", 8) + std::string(12, '\0')}};
  tar.Add(item);
  item = {.name = "late", .content = "after 2242"};
  item.pax = {{"mtime", "8589934592.000000001"}};
  tar.Add(item);
  item = {.name = "early", .content = "before 1970"};
  item.pax = {{"mtime", "-3.000000001"}};
  tar.Add(item);
  tar.File("gone/.wh.file", "").File("opaque/.wh..wh..opq", "").File("opaque/new", "n");
  tar.File("implicit/parents/file", "i").Dir("kept").File("kept/.wh..wh..opq", "");
  ExpectComesBack(tar.End());
}

TEST_F(ExportTest, ContentOfEverySize) {
  TarBuilder tar;
  unsigned seed = 1;
  for (size_t size : {1u, 511u, 512u, 4095u, 4096u, 4097u, 300'000u, (1u << 20) - 1, 1u << 20,
                      (1u << 20) + 1, 3'500'000u}) {
    tar.File("f" + std::to_string(size), Noise(size, seed++));
  }
  // Holes short enough to be written as zeros, and long ones.
  tar.File("hole", Noise(5000, 90) + std::string(200'000, '\0') + Noise(70'000, 91));
  tar.File("sparse", std::string(3 << 20, '\0') + Noise(10'000, 92) + std::string(5 << 20, '\0'));
  tar.File("zeros", std::string(4 << 20, '\0')).File("few zeros", std::string(100'000, '\0'));
  const std::string whole = tar.End();
  ExpectComesBack(whole);
  Result<ImportedLayer> layer = Import(whole);
  ASSERT_TRUE(layer.ok());
  Result<Exported> out = Export(layer->layer);
  ASSERT_TRUE(out.ok());
  EXPECT_LT(out->bytes.size(), whole.size() - (11u << 20));
}

TEST_F(ExportTest, RandomLayers) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    TarBuilder tar;
    std::vector<std::string> files, folders = {""};
    for (int i = 0; i < 60; ++i) {
      const std::string path = folders[random() % folders.size()] + "n" + std::to_string(i);
      switch (random() % 8) {
        case 0:
          tar.Dir(path);
          folders.push_back(path + "/");
          break;
        case 1:
          folders.push_back(path + "/");  // never mentioned itself
          break;
        case 2:
          if (!files.empty()) tar.Link(path, files[random() % files.size()]);
          break;
        case 3:
          tar.Symlink(path, "to" + std::to_string(random() % 9));
          break;
        case 4:
          tar.File(path + "x/.wh.y", "");
          break;
        default: {
          TarItem item = {.name = path, .content = Noise(random() % 9000, random() % 20)};
          item.mode = random() % 4096;
          item.uid = random() % 70'000;
          if (random() % 2) item.pax = {{"mtime", std::to_string(random() % 99) + ".25"}};
          tar.Add(item);
          files.push_back(path);
        }
      }
    }
    ExpectComesBack(tar.End());
  }
}

TEST_F(ExportTest, UppersOfSandboxes) {
  const std::string root = dir_->path() + "/upper";
  std::filesystem::create_directories(root + "/d");
  std::ofstream(root + "/d/file") << "content";
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s/d/s", root.c_str());
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::close(fd);
  auto import = [&]() -> Result<ImportedLayer> {
    Result<UniqueFd> dir = OpenFile(root, O_RDONLY | O_DIRECTORY);
    Result<ImportedLayer> layer =
        ImportDirectory(dir->get(), DirectoryKind::kOverlayUpper, *store_, lookup_, {});
    if (layer.ok()) lookup_.Register(layer->pack);
    return layer;
  };
  Result<ImportedLayer> layer = import();
  ASSERT_TRUE(layer.ok()) << layer.status().ToString();
  Result<Exported> out = Export(layer->layer);
  ASSERT_TRUE(out.ok()) << out.status().ToString();
  EXPECT_EQ(out->layer.left_out, std::vector<std::string>{"d/s"});
  EXPECT_EQ(out->layer.left_out_count, 1u);
  std::filesystem::remove(root + "/d/s");
  layer = import();
  ASSERT_TRUE(layer.ok());
  ExpectComesBack(layer->layer);
  std::ofstream(root + "/d/.wh.user") << "a file with this name";
  layer = import();
  ASSERT_TRUE(layer.ok());
  Status refused = Export(layer->layer).status();
  ESKER_EXPECT_CODE(refused, Code::kFailedPrecondition);
  EXPECT_NE(refused.message().find("d/.wh.user"), std::string::npos) << refused.message();
}

TEST_F(ExportTest, WrongBytesInTheStoreAreNeverExported) {
  Result<ImportedLayer> layer = Import(TarBuilder().File("f", Noise(200'000, 5)).End());
  ASSERT_TRUE(layer.ok());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store_->path())) {
    if (entry.path().extension() != ".pack") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100'000);
    file << "damage";
  }
  ESKER_EXPECT_CODE(Export(layer->layer).status(), Code::kDataLoss);
}

TEST_F(ExportTest, ASinkThatFailsAndCancellationEndIt) {
  Result<ImportedLayer> layer = Import(TarBuilder().File("f", Noise(200'000, 5)).End());
  ASSERT_TRUE(layer.ok());
  ExportSource source = {*store_, [this](const BlobId& id) { return lookup_.Map(id); }, {}};
  ESKER_EXPECT_CODE(ExportLayer(source, layer->layer, LayerCompression::kGzip,
                                [](std::string_view) { return ResourceExhaustedError("full"); })
                        .status(),
                    Code::kResourceExhausted);
  source.cancelled = [] { return true; };
  ESKER_EXPECT_CODE(ExportLayer(source, layer->layer, LayerCompression::kNone,
                                [](std::string_view) { return OkStatus(); })
                        .status(),
                    Code::kCancelled);
}

TEST(OciDocumentsTest, TheConfigIsTheOneThatWasImported) {
  const std::string config =
      R"({"architecture":"arm64","os":"linux","created":"2020-01-01T00:00:00Z","variant":"v8",)"
      R"("config":{"Env":["A=1"],"User":"u","Cmd":["c"],"Entrypoint":["e"],"WorkingDir":"/w",)"
      R"("Labels":{"l":"v"},"StopSignal":"SIGINT","Volumes":{"/v":{}},"ExposedPorts":{"80/tcp":{}},)"
      R"("Shell":["/bin/sh"],"Healthcheck":{"Test":["NONE"]}},)"
      R"("history":[{"created_by":"x"},{"created_by":"y","empty_layer":true}],)"
      R"("rootfs":{"type":"layers","diff_ids":["sha256:)" +
      std::string(64, 'a') + R"("]}})";
  const std::string manifest_json =
      R"({"schemaVersion":2,"layers":[{"mediaType":)"
      R"("application/vnd.oci.image.layer.v1.tar","digest":"sha256:)" +
      std::string(64, 'a') + R"("}]})";
  Result<OciImage> image = ParseOciImage(manifest_json, config);
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  Manifest manifest;
  manifest.config = image->config;
  std::vector<ExportedLayer> layers(1);
  layers[0].media_type = "application/vnd.oci.image.layer.v1.tar";
  layers[0].digest = layers[0].diff_id = "sha256:" + std::string(64, 'a');
  OciDocuments out = MakeOciDocuments(manifest, layers);
  EXPECT_EQ(*CanonicalJsonObject(out.config_json), *CanonicalJsonObject(config));
  // A snapshot's layer is one more step.
  layers.push_back(layers[0]);
  out = MakeOciDocuments(manifest, layers);
  Result<OciImage> again = ParseOciImage(out.manifest_json, out.config_json);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->config.env, image->config.env);
  EXPECT_NE(out.config_json.find("esker snapshot"), std::string::npos);
}

}  // namespace
}  // namespace esker
