#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "imagefs/image_archive.h"
#include "testing/import_fixture.h"

namespace esker {
namespace {

using testing::ImportTest;

namespace fs = std::filesystem;

const std::string kHexA(64, 'a'), kHexB(64, 'b');

std::string ManifestJson(const std::string& layers, const std::string& config_digest) {
  return R"({"schemaVersion":2,"config":{"digest":")" + config_digest + R"("},"layers":[)" +
         layers + "]}";
}
std::string LayerJson(const std::string& type, const std::string& digest) {
  return R"({"mediaType":")" + type + R"(","digest":")" + digest + R"(","size":10})";
}
const std::string kTar = "application/vnd.oci.image.layer.v1.tar+gzip";
std::string GoodManifest() {
  return ManifestJson(LayerJson(kTar, "sha256:" + kHexA), "sha256:" + kHexB);
}
std::string ConfigJson(const std::string& run, const std::string& architecture = "amd64") {
  return R"({"architecture":")" + architecture + R"(","os":"linux","config":)" + run +
         R"(,"rootfs":{"type":"layers","diff_ids":["sha256:)" + kHexB + R"("]}})";
}

TEST(OciImageTest, ReadsWhatASandboxNeeds) {
  Result<OciImage> image = ParseOciImage(
      GoodManifest(),
      ConfigJson(R"({"Env":["A=1","B=2"],"User":"1000:1000","WorkingDir":"/w","Cmd":["sh"],
        "Entrypoint":null,"Labels":{"x":"y"},"StopSignal":"SIGINT","Volumes":{"/data":{}},
        "ExposedPorts":{"80/tcp":{}}})"));
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  EXPECT_EQ(image->config.env, (std::vector<std::string>{"A=1", "B=2"}));
  EXPECT_EQ(image->config.user, "1000:1000");
  EXPECT_EQ(image->config.working_dir, "/w");
  EXPECT_EQ(image->config.cmd, std::vector<std::string>{"sh"});
  EXPECT_TRUE(image->config.entrypoint.empty());
  EXPECT_EQ(image->config.labels.at("x"), "y");
  EXPECT_EQ(image->config.stop_signal, "SIGINT");
  EXPECT_EQ(image->config.volumes, std::vector<std::string>{"/data"});
  EXPECT_EQ(image->config.architecture, "amd64");
  ASSERT_EQ(image->layers.size(), 1u);
  EXPECT_EQ(image->layers[0].digest, "sha256:" + kHexA);
  EXPECT_EQ(image->layers[0].diff_id, "sha256:" + kHexB);
  EXPECT_EQ(image->layers[0].size, 10u);
  EXPECT_TRUE(ParseOciImage(GoodManifest(), ConfigJson("null")).ok());
}

TEST(OciImageTest, HostileJsonIsRefused) {
  const std::string config = ConfigJson("{}");
  for (const std::string& manifest :
       {std::string(""), std::string("[]"), std::string(100'000, '['), std::string("{}"),
        ManifestJson(LayerJson("application/vnd.in-toto+json", "sha256:" + kHexA), "x"),
        ManifestJson(LayerJson(kTar, "sha256:../../../etc/passwd"), "x"),
        ManifestJson(LayerJson(kTar, "sha512:" + kHexA), "x"), ManifestJson("7", "x"),
        ManifestJson("", "x"), std::string(R"({"schemaVersion":1})")}) {
    ESKER_EXPECT_CODE(ParseOciImage(manifest, config).status(), Code::kInvalidArgument);
  }
  ESKER_EXPECT_CODE(
      ParseOciImage(ManifestJson(LayerJson(kTar + "+encrypted", "sha256:" + kHexA), "x"), config)
          .status(),
      Code::kUnimplemented);
  for (const char* run : {"7", "[]", R"({"Env":"A=1"})", R"({"Env":[1]})", R"({"User":7})",
                          R"({"Labels":{"a":1}})", R"({"Labels":[]})", R"({"Volumes":[]})"}) {
    ESKER_EXPECT_CODE(ParseOciImage(GoodManifest(), ConfigJson(run)).status(),
                      Code::kInvalidArgument);
  }
  ESKER_EXPECT_CODE(ParseOciImage(GoodManifest(), "{}").status(), Code::kInvalidArgument);
}

class OciLayoutTest : public ImportTest {
 protected:
  void SetUp() override {
    ImportTest::SetUp();
    layout_ = dir_->path() + "/layout";
    fs::create_directories(layout_ + "/blobs/sha256");
    std::ofstream(layout_ + "/oci-layout") << R"({"imageLayoutVersion":"1.0.0"})";
  }
  std::string AddBlob(const std::string& bytes) {
    const std::string hex = Sha256::Of(bytes).ToHex();
    std::ofstream(layout_ + "/blobs/sha256/" + hex, std::ios::binary) << bytes;
    return "sha256:" + hex;
  }
  // Adds an image with one layer; gives its manifest's digest.
  std::string AddImage(const std::string& layer, const std::string& architecture = "amd64") {
    const std::string config =
        AddBlob(R"({"architecture":")" + architecture +
                R"(","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:)" +
                Sha256::Of(layer).ToHex() + R"("]}})");
    return AddBlob(ManifestJson(LayerJson(kTar, AddBlob(layer)), config));
  }
  static std::string Descriptor(const std::string& digest, const std::string& tag,
                                const std::string& architecture = "", bool index = false) {
    return R"({"mediaType":"application/vnd.oci.image.)" +
           std::string(index ? "index" : "manifest") + R"(.v1+json","digest":")" + digest +
           R"(","annotations":{"org.opencontainers.image.ref.name":")" + tag + "\"}" +
           (architecture.empty()
                ? ""
                : R"(,"platform":{"os":"linux","architecture":")" + architecture + "\"}") +
           "}";
  }
  void SetIndex(const std::string& descriptors) {
    std::ofstream(layout_ + "/index.json")
        << R"({"schemaVersion":2,"manifests":[)" << descriptors << "]}";
  }
  Result<std::unique_ptr<ImageArchive>> Open(std::string_view tag,
                                             std::string_view platform = "linux/amd64") {
    return ImageArchive::OpenOciLayout(layout_, tag, {.platform = std::string(platform)});
  }
  std::string layout_;
};

TEST_F(OciLayoutTest, PicksTagsAndPlatforms) {
  const std::string one = AddImage("one"), two = AddImage("two"), arm = AddImage("a", "arm64");
  const std::string index =
      AddBlob(R"({"schemaVersion":2,"manifests":[)" + Descriptor(AddBlob("{}"), "", "unknown") +
              "," + Descriptor(arm, "", "arm64") + "," + Descriptor(two, "", "amd64") + "]}");
  SetIndex(Descriptor(one, "1.0") + "," + Descriptor(index, "multi", "", true));
  Result<std::unique_ptr<ImageArchive>> layout = Open("1.0");
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ((*layout)->image().manifest_digest, one);
  layout = Open("multi");
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ((*layout)->image().manifest_digest, two);
  layout = Open("multi", "linux/arm64");
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ((*layout)->image().manifest_digest, arm);

  Status missing = Open("2.0").status();
  ESKER_EXPECT_CODE(missing, Code::kNotFound);
  EXPECT_NE(missing.message().find("1.0, multi"), std::string::npos) << missing.message();
  Status platform = Open("multi", "linux/s390x").status();
  ESKER_EXPECT_CODE(platform, Code::kNotFound);
  EXPECT_NE(platform.message().find("linux/arm64"), std::string::npos) << platform.message();
  ESKER_EXPECT_CODE(Open("1.0", "linux/arm64").status(), Code::kNotFound);
  ESKER_EXPECT_CODE(Open("").status(), Code::kInvalidArgument);  // which of the two?
  SetIndex(Descriptor(one, ""));
  EXPECT_TRUE(Open("").ok());
}

TEST_F(OciLayoutTest, LayersAreOpenedAndImported) {
  const std::string tar(1024, '\0');
  SetIndex(Descriptor(AddImage(tar), "t"));
  Result<std::unique_ptr<ImageArchive>> layout = Open("t");
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  const OciLayer& layer = (*layout)->image().layers[0];
  Result<std::unique_ptr<ByteSource>> source = (*layout)->OpenLayer(0);
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  ImportOptions options;
  options.expected_digest = layer.digest;
  options.expected_diff_id = layer.diff_id;
  Result<ImportedLayer> imported = ImportTar(**source, *store_, lookup_, options);
  EXPECT_TRUE(imported.ok()) << imported.status().ToString();
}

TEST_F(OciLayoutTest, BrokenAndHostileLayoutsAreTypedErrors) {
  ESKER_EXPECT_CODE(ImageArchive::OpenOciLayout(dir_->path() + "/none", "", {}).status(),
                    Code::kNotFound);
  ESKER_EXPECT_CODE(ImageArchive::OpenOciLayout(dir_->path(), "", {}).status(),
                    Code::kInvalidArgument);
  ESKER_EXPECT_CODE(Open("t").status(), Code::kNotFound);  // no index.json
  SetIndex("");
  ESKER_EXPECT_CODE(Open("t").status(), Code::kNotFound);
  const std::string image = AddImage("x");
  // Bytes that are not those of the name.
  std::ofstream(layout_ + "/blobs/sha256/" + image.substr(7), std::ios::app) << " ";
  SetIndex(Descriptor(image, "t"));
  ESKER_EXPECT_CODE(Open("t").status(), Code::kDataLoss);
  SetIndex(Descriptor("sha256:../../../../etc/passwd", "t"));
  ESKER_EXPECT_CODE(Open("t").status(), Code::kInvalidArgument);
  // A link that leads out, a fifo, and an index that contains itself cannot be.
  const std::string blob = layout_ + "/blobs/sha256/" + kHexA;
  SetIndex(Descriptor("sha256:" + kHexA, "t"));
  fs::create_symlink("/etc/passwd", blob);
  ESKER_EXPECT_CODE(Open("t").status(), Code::kPermissionDenied);
  fs::remove(blob);
  ASSERT_EQ(::mkfifo(blob.c_str(), 0600), 0);
  ESKER_EXPECT_CODE(Open("t").status(), Code::kInvalidArgument);
  std::string nested = AddImage("y");
  for (int i = 0; i < 6; ++i) {
    nested = AddBlob(R"({"manifests":[)" + Descriptor(nested, "", "", i > 0) + "]}");
  }
  SetIndex(Descriptor(nested, "t", "", true));
  ESKER_EXPECT_CODE(Open("t").status(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace esker
