// Archives of every kind, odd and hostile ones, made by hand.
#include "imagefs/image_archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "byte_source.h"
#include "testing/import_fixture.h"
#include "testing/tar_builder.h"

namespace esker {
namespace {

using testing::ImportTest;
using testing::StringSource;
using testing::TarBuilder;
using testing::TarItem;

std::string HexOf(const std::string& bytes) { return Sha256::Of(bytes).ToHex(); }

std::string Gzip(const std::string& plain) {
  std::string out(plain.size() + 1000, '\0');
  z_stream stream = {};
  EXPECT_EQ(::deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::string Config(const std::vector<std::string>& layers, const std::string& architecture) {
  std::string ids;
  for (const std::string& layer : layers) {
    ids += (ids.empty() ? "\"sha256:" : ",\"sha256:") + HexOf(layer) + "\"";
  }
  return R"({"architecture":")" + architecture + R"(","os":"linux","config":{"Env":["A=1"]},)" +
         R"("rootfs":{"type":"layers","diff_ids":[)" + ids + "]}}";
}

class ArchiveTest : public ImportTest {
 protected:
  std::string Write(const std::string& bytes, const std::string& name = "archive.tar") {
    const std::string path = dir_->path() + "/" + name;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }
  Result<std::unique_ptr<ImageArchive>> Docker(const std::string& bytes,
                                               const std::string& name = "") {
    return ImageArchive::OpenDockerArchive(Write(bytes), name, options_);
  }
  Result<std::unique_ptr<ImageArchive>> Oci(const std::string& bytes,
                                            const std::string& name = "") {
    return ImageArchive::OpenOciArchive(Write(bytes), name, options_);
  }
  static std::string Bytes(const ImageArchive& archive, size_t layer) {
    Result<std::unique_ptr<ByteSource>> source = archive.OpenLayer(layer);
    EXPECT_TRUE(source.ok()) << source.status().ToString();
    if (!source.ok()) return "";
    std::string out(1 << 20, '\0');
    Result<size_t> n = import_internal::ReadFully(**source, out.data(), out.size());
    EXPECT_TRUE(n.ok()) << n.status().ToString();
    out.resize(n.ok() ? *n : 0);
    return out;
  }
  // manifest.json and what it names, with layers stored as given.
  std::string DockerTar(const std::vector<std::string>& stored,
                        const std::vector<std::string>& plain, const std::string& tags = "\"x:1\"",
                        const std::string& architecture = "amd64") {
    const std::string config = Config(plain, architecture);
    std::string list;
    TarBuilder tar;
    for (size_t i = 0; i < stored.size(); ++i) {
      const std::string path = std::to_string(i) + "/layer.tar";
      tar.File(path, stored[i]);
      list += (list.empty() ? "\"" : ",\"") + path + "\"";
    }
    tar.File(HexOf(config) + ".json", config);
    tar.File("manifest.json", R"([{"Config":")" + HexOf(config) + R"(.json","RepoTags":[)" + tags +
                                  R"(],"Layers":[)" + list + "]}]");
    return tar.End();
  }

  ArchiveOptions options_ = {.platform = "linux/amd64", .temporary_directory = "/var/tmp"};
  const std::string a_ = TarBuilder().File("a", "first layer").End();
  const std::string b_ = TarBuilder().File("b", "second layer").End();
};

TEST_F(ArchiveTest, DockerSaveWithAManifest) {
  Result<std::unique_ptr<ImageArchive>> archive = Docker(DockerTar({a_, b_}, {a_, b_}));
  ASSERT_TRUE(archive.ok()) << archive.status().ToString();
  const OciImage& image = (*archive)->image();
  ASSERT_EQ(image.layers.size(), 2u);
  EXPECT_EQ(image.layers[0].digest, image.layers[0].diff_id);
  EXPECT_EQ(image.config.env, std::vector<std::string>{"A=1"});
  EXPECT_EQ(Bytes(**archive, 0), a_);
  EXPECT_EQ(Bytes(**archive, 1), b_);
  // Layers that the archive holds compressed are the same image.
  Result<std::unique_ptr<ImageArchive>> again = Docker(DockerTar({Gzip(a_), b_}, {a_, b_}));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ((*again)->manifest_json(), (*archive)->manifest_json());
  EXPECT_EQ(Bytes(**again, 0), a_);
}

TEST_F(ArchiveTest, DockerSaveNames) {
  const std::string one = Config({a_}, "amd64"), two = Config({b_}, "amd64");
  const std::string tar =
      TarBuilder()
          .File("a.tar", a_)
          .File("b.tar", b_)
          .File("one", one)
          .File("two", two)
          .File(
              "manifest.json",
              R"([{"Config":"one","RepoTags":["docker.io/library/web:latest"],"Layers":["a.tar"]},)"
              R"({"Config":"two","RepoTags":["host:5000/db:2","db:old"],"Layers":["b.tar"]}])")
          .End();
  for (const char* name : {"web", "web:latest", "docker.io/library/web", "library/web:latest"}) {
    Result<std::unique_ptr<ImageArchive>> archive = Docker(tar, name);
    ASSERT_TRUE(archive.ok()) << archive.status().ToString();
    EXPECT_EQ(Bytes(**archive, 0), a_);
  }
  for (const char* name : {"host:5000/db:2", "db:old"}) {
    Result<std::unique_ptr<ImageArchive>> archive = Docker(tar, name);
    ASSERT_TRUE(archive.ok()) << archive.status().ToString();
    EXPECT_EQ(Bytes(**archive, 0), b_);
  }
  Status which = Docker(tar).status();
  ESKER_EXPECT_CODE(which, Code::kInvalidArgument);
  EXPECT_NE(which.message().find("db:old"), std::string::npos) << which.message();
  ESKER_EXPECT_CODE(Docker(tar, "db").status(), Code::kNotFound);
}

TEST_F(ArchiveTest, LayersThatAreLinksToOtherLayers) {
  const std::string config = Config({a_, a_, a_}, "amd64");
  const std::string manifest =
      R"([{"Config":"c","Layers":["1/layer.tar","2/layer.tar","3/layer.tar"]}])";
  const std::string tar = TarBuilder()
                              .File("1/layer.tar", a_)
                              .Symlink("./2/layer.tar", "../1/layer.tar")
                              .Link("3/layer.tar", "2/layer.tar")
                              .File("c", config)
                              .File("manifest.json", manifest)
                              .End();
  Result<std::unique_ptr<ImageArchive>> archive = Docker(tar);
  ASSERT_TRUE(archive.ok()) << archive.status().ToString();
  EXPECT_EQ(Bytes(**archive, 1), a_);
  EXPECT_EQ(Bytes(**archive, 2), a_);
  EXPECT_EQ((*archive)->LayerBytes(2), a_.size());
  struct Case {
    const char* target;
    Code code;
  };
  for (const Case& c : {Case{"/etc/passwd", Code::kPermissionDenied},
                        Case{"../../etc/passwd", Code::kPermissionDenied},
                        Case{"layer.tar", Code::kInvalidArgument}, Case{"../none", Code::kNotFound},
                        Case{"..", Code::kPermissionDenied}}) {
    const std::string hostile =
        TarBuilder()
            .Symlink("1/layer.tar", c.target)
            .File("c", Config({a_}, "amd64"))
            .File("manifest.json", R"([{"Config":"c","Layers":["1/layer.tar"]}])")
            .End();
    archive = Docker(hostile);
    ASSERT_TRUE(archive.ok()) << archive.status().ToString();
    ESKER_EXPECT_CODE((*archive)->OpenLayer(0).status(), c.code);
  }
}

TEST_F(ArchiveTest, DockerSaveFromBeforeManifests) {
  auto layer = [](const std::string& parent) {
    return R"({"id":"x","architecture":"amd64","os":"linux","created":"2014-01-01T00:00:00Z",)"
           R"("config":{"Cmd":["sh"],"User":"app"})" +
           (parent.empty() ? "" : R"(,"parent":")" + parent + "\"") + "}";
  };
  TarBuilder tar;
  tar.Dir("top/").File("top/VERSION", "1.0").File("top/json", layer("base"));
  tar.File("top/layer.tar", b_).File("base/json", layer("")).File("base/layer.tar", a_);
  const std::string whole =
      TarBuilder(tar).File("repositories", R"({"app":{"1":"top","2":"top"}})").End();
  Result<std::unique_ptr<ImageArchive>> archive = Docker(whole, "app:1");
  ASSERT_TRUE(archive.ok()) << archive.status().ToString();
  EXPECT_EQ((*archive)->image().config.user, "app");
  EXPECT_EQ(Bytes(**archive, 0), a_);
  EXPECT_EQ(Bytes(**archive, 1), b_);
  EXPECT_EQ((*archive)->image().layers[1].diff_id, "sha256:" + HexOf(b_));
  EXPECT_TRUE(Docker(whole).ok());
  ESKER_EXPECT_CODE(Docker(whole, "app:3").status(), Code::kNotFound);
  // A parent that is its own grandparent.
  tar.File("base/json", layer("top"));
  tar.File("repositories", R"({"app":{"1":"top"}})");
  ESKER_EXPECT_CODE(Docker(tar.End()).status(), Code::kInvalidArgument);
}

std::string Descriptor(const std::string& type, const std::string& digest,
                       const std::string& more = "") {
  return R"({"mediaType":")" + type + R"(","digest":"sha256:)" + digest + "\"" + more + "}";
}
const std::string kManifest = "application/vnd.oci.image.manifest.v1+json";
const std::string kIndex = "application/vnd.oci.image.index.v1+json";
const std::string kLayer = "application/vnd.oci.image.layer.v1.tar";

// An OCI layout as a tar.
class OciTar {
 public:
  std::string Blob(const std::string& bytes) {
    tar_.File("blobs/sha256/" + HexOf(bytes), bytes);
    return HexOf(bytes);
  }
  std::string Image(const std::string& layer, const std::string& architecture = "amd64",
                    const std::string& layer_type = kLayer, bool with_layer = true,
                    const std::string& more = "") {
    const std::string hex = with_layer ? Blob(layer) : HexOf(layer);
    return Blob(R"({"schemaVersion":2,"config":{"digest":"sha256:)" +
                Blob(Config({layer}, architecture)) + R"("},"layers":[)" +
                Descriptor(layer_type, hex) + "]" + more + "}");
  }
  static std::string List(const std::string& descriptors) {
    return R"({"schemaVersion":2,"manifests":[)" + descriptors + "]}";
  }
  std::string End(const std::string& descriptors, const std::string& more_files = "") {
    return tar_.File("oci-layout", R"({"imageLayoutVersion":"1.0.0"})")
        .File("index.json", List(descriptors))
        .Bytes(more_files)
        .End();
  }

 private:
  TarBuilder tar_;
};

std::string OnPlatform(const std::string& architecture, const std::string& variant = "") {
  return R"(,"platform":{"os":"linux","architecture":")" + architecture + "\"" +
         (variant.empty() ? "" : R"(,"variant":")" + variant + "\"") + "}";
}

TEST_F(ArchiveTest, NestedIndexesAndPlatforms) {
  OciTar oci;
  const std::string amd = oci.Image(a_), v3 = oci.Image(a_ + b_);
  const std::string v6 = oci.Image(b_, "arm"), v7 = oci.Image(b_ + b_, "arm");
  const std::string plain = oci.Image(b_ + a_, "riscv64");
  const std::string inner = oci.Blob(OciTar::List(
      Descriptor(kManifest, v6, OnPlatform("arm", "v6")) + "," +
      Descriptor(kManifest, v7, OnPlatform("arm", "v7")) + "," + Descriptor(kManifest, plain)));
  const std::string attestation =
      Descriptor(kManifest, oci.Blob("{}"),
                 OnPlatform("unknown") + R"(,"annotations":{"vnd.docker.reference.type":"x"})");
  const std::string outer = oci.Blob(OciTar::List(
      attestation + "," + Descriptor(kManifest, v3, OnPlatform("amd64", "v3")) + "," +
      Descriptor(kManifest, amd, OnPlatform("amd64")) + "," + Descriptor(kIndex, inner)));
  const std::string tar = oci.End(Descriptor(kIndex, outer));
  struct Case {
    const char *platform, *digest;
  };
  for (const Case& c : {Case{"linux/amd64", amd.c_str()}, Case{"linux/x86_64/v1", amd.c_str()},
                        Case{"linux/amd64/v3", v3.c_str()}, Case{"linux/arm", v7.c_str()},
                        Case{"linux/arm/v7", v7.c_str()}, Case{"linux/arm/v6", v6.c_str()},
                        Case{"linux/arm/v8", v7.c_str()}, Case{"linux/riscv64", plain.c_str()}}) {
    options_.platform = c.platform;
    Result<std::unique_ptr<ImageArchive>> archive = Oci(tar);
    ASSERT_TRUE(archive.ok()) << c.platform << ": " << archive.status().ToString();
    EXPECT_EQ((*archive)->image().manifest_digest, std::string("sha256:") + c.digest) << c.platform;
  }
  for (const char* platform : {"linux/arm64", "linux/arm/v5", "windows/amd64", "linux/amd64/v2"}) {
    options_.platform = platform;
    Status status = Oci(tar).status();
    ESKER_EXPECT_CODE(status, Code::kNotFound);
    EXPECT_NE(status.message().find(
                  "linux/amd64, linux/amd64/v3, linux/arm, linux/arm/v6, linux/riscv64"),
              std::string::npos)
        << status.message();
  }
  for (const char* platform : {"amd64", "linux/", "a/b/c/d", "/"}) {
    options_.platform = platform;
    ESKER_EXPECT_CODE(Oci(tar).status(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(MachinePlatform().starts_with("linux/"));
}

TEST_F(ArchiveTest, DockerSaveWithALayoutInside) {
  OciTar oci;
  const std::string web = oci.Image(a_), db = oci.Image(b_);
  auto name = [](const std::string& image, const std::string& tag) {
    return R"(,"annotations":{"io.containerd.image.name":")" + image +
           R"(","org.opencontainers.image.ref.name":")" + tag + "\"}";
  };
  const std::string tar =
      oci.End(Descriptor(kManifest, web, name("docker.io/library/web:latest", "latest")) + "," +
                  Descriptor(kManifest, db, name("docker.io/me/db:latest", "latest")),
              TarBuilder().File("manifest.json", "[]").Unended());
  Result<std::unique_ptr<ImageArchive>> archive = Docker(tar, "me/db");
  ASSERT_TRUE(archive.ok()) << archive.status().ToString();
  EXPECT_EQ((*archive)->image().manifest_digest, "sha256:" + db);
  archive = Docker(tar, "web:latest");
  ASSERT_TRUE(archive.ok()) << archive.status().ToString();
  EXPECT_EQ(Bytes(**archive, 0), a_);
  ESKER_EXPECT_CODE(Docker(tar).status(), Code::kInvalidArgument);
  ESKER_EXPECT_CODE(Docker(tar, "cache").status(), Code::kNotFound);
}

TEST_F(ArchiveTest, WhatIsNoImageIsRefusedByName) {
  auto refusal = [&](const std::string& descriptor, OciTar& oci) {
    Status status = Oci(oci.End(descriptor)).status();
    EXPECT_FALSE(status.ok());
    return status;
  };
  auto expect = [](const Status& status, Code code, const std::string& named) {
    ESKER_EXPECT_CODE(status, code);
    EXPECT_NE(status.message().find(named), std::string::npos) << status.message();
  };
  {
    OciTar oci;
    const std::string type = kLayer + "+encrypted";
    expect(refusal(Descriptor(kManifest, oci.Image(a_, "amd64", type)), oci), Code::kUnimplemented,
           type);
  }
  for (const std::string& type :
       {std::string("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"),
        std::string("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")}) {
    OciTar without, with;
    expect(refusal(Descriptor(kManifest, without.Image(a_, "amd64", type, false)), without),
           Code::kUnimplemented, type);
    Result<std::unique_ptr<ImageArchive>> archive =
        Oci(with.End(Descriptor(kManifest, with.Image(a_, "amd64", type))));
    EXPECT_TRUE(archive.ok()) << archive.status().ToString();
  }
  {
    OciTar oci;
    const std::string artifact =
        oci.Image(a_, "amd64", kLayer, true, R"(,"artifactType":"application/vnd.example.sbom")");
    expect(refusal(Descriptor(kManifest, artifact), oci), Code::kUnimplemented,
           "application/vnd.example.sbom");
  }
  {
    OciTar oci;
    const std::string chart = oci.Blob(
        R"({"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json",)"
        R"("digest":"sha256:)" +
        oci.Blob("{}") + R"("},"layers":[]})");
    expect(refusal(Descriptor(kManifest, chart), oci), Code::kUnimplemented,
           "application/vnd.cncf.helm.config.v1+json");
  }
  for (const char* type : {"application/vnd.docker.distribution.manifest.v1+prettyjws",
                           "application/vnd.docker.distribution.manifest.v1+json",
                           "application/vnd.oci.artifact.manifest.v1+json"}) {
    OciTar oci;
    expect(refusal(Descriptor(type, oci.Blob("{}")), oci), Code::kUnimplemented, type);
  }
  {
    OciTar oci;
    expect(refusal(Descriptor("text/plain", oci.Blob("{}")), oci), Code::kInvalidArgument,
           "text/plain");
  }
  {  // What is no image must not hide the image beside it.
    OciTar oci;
    const std::string image = oci.Image(a_);
    EXPECT_TRUE(
        Oci(oci.End(Descriptor("text/plain", oci.Blob("{}")) + "," + Descriptor(kManifest, image)))
            .ok());
  }
}

TEST_F(ArchiveTest, CompressedAndPipedArchivesUseTemporarySpaceThatGoesAway) {
  const std::string tar = DockerTar({a_, b_}, {a_, b_});
  const std::string tmp = dir_->path() + "/tmp";
  std::filesystem::create_directory(tmp);
  options_.temporary_directory = tmp;
  Result<std::unique_ptr<ImageArchive>> archive = Docker(Gzip(tar));
  ASSERT_TRUE(archive.ok()) << archive.status().ToString();
  EXPECT_EQ(Bytes(**archive, 1), b_);
  EXPECT_TRUE(std::filesystem::is_empty(tmp));

  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  ASSERT_EQ(::write(fds[1], tar.data(), tar.size()), static_cast<ssize_t>(tar.size()));
  ::close(fds[1]);
  archive = ImageArchive::OpenDockerArchive("/dev/fd/" + std::to_string(fds[0]), "", options_);
  ::close(fds[0]);
  ASSERT_TRUE(archive.ok()) << archive.status().ToString();
  EXPECT_EQ(Bytes(**archive, 1), b_);

  options_.max_temporary_bytes = 100;
  Status full = Docker(Gzip(tar)).status();
  ESKER_EXPECT_CODE(full, Code::kResourceExhausted);
  EXPECT_NE(full.message().find("--tmp-dir"), std::string::npos) << full.message();
  EXPECT_TRUE(Docker(tar).ok());  // needs none
  options_.temporary_directory = dir_->path() + "/none";
  ESKER_EXPECT_CODE(Docker(Gzip(tar)).status(), Code::kNotFound);
}

TEST_F(ArchiveTest, BrokenArchivesAreTypedErrors) {
  const std::string tar = DockerTar({a_}, {a_});
  // Cut off inside a member; the member's padding and the end of the archive may be missing.
  for (size_t size = 0; size < tar.size(); size += 100) {
    Result<std::unique_ptr<ImageArchive>> archive = Docker(tar.substr(0, size));
    if (archive.ok()) {
      EXPECT_GE(size, tar.size() - 1024 - 512);
    } else {
      EXPECT_TRUE(archive.status().code() == Code::kDataLoss ||
                  archive.status().code() == Code::kInvalidArgument)
          << archive.status().ToString();
    }
  }
  ESKER_EXPECT_CODE(
      Docker("no tar at all, but long enough to fill a whole block of it" + std::string(1000, 'x'))
          .status(),
      Code::kDataLoss);
  ESKER_EXPECT_CODE(Docker(TarBuilder().File("x", "y").End()).status(), Code::kInvalidArgument);
  ESKER_EXPECT_CODE(ImageArchive::OpenDockerArchive(dir_->path(), "", options_).status(),
                    Code::kInvalidArgument);
  ESKER_EXPECT_CODE(ImageArchive::OpenDockerArchive("/none.tar", "", options_).status(),
                    Code::kNotFound);
  for (const char* manifest :
       {"{}", "[7]", "[]", R"([{"Config":7}])", R"([{"Config":"c","Layers":[7]}])",
        R"([{"Config":"c","Layers":[]}])", R"([{"Config":"../../etc/passwd","Layers":["l"]}])",
        R"([{"Config":"none","Layers":["l"]}])"}) {
    Status status = Docker(TarBuilder()
                               .File("l", a_)
                               .File("c", Config({a_}, "amd64"))
                               .File("manifest.json", manifest)
                               .End())
                        .status();
    EXPECT_TRUE(status.code() == Code::kInvalidArgument || status.code() == Code::kNotFound)
        << manifest << ": " << status.ToString();
  }
  // The config's name is its digest.
  const std::string hex(64, 'a');
  ESKER_EXPECT_CODE(
      Docker(TarBuilder()
                 .File("l", a_)
                 .File(hex + ".json", Config({a_}, "amd64"))
                 .File("manifest.json", R"([{"Config":")" + hex + R"(.json","Layers":["l"]}])")
                 .End())
          .status(),
      Code::kDataLoss);
  ESKER_EXPECT_CODE(Docker(DockerTar({a_}, {a_}, "", "arm64")).status(), Code::kNotFound);
  // A sparse member cannot be read by offset.
  TarItem sparse = {.name = "l", .content = a_};
  sparse.pax = {{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}};
  ESKER_EXPECT_CODE(Docker(TarBuilder().Add(sparse).End()).status(), Code::kInvalidArgument);
}

TEST(ImageConfigTest, WhatASandboxDoesNotUseIsKeptTooUpToHistory) {
  const std::string config =
      R"({"architecture":"amd64","os":"linux","created":"2020-01-01T00:00:00Z","variant":"v2",)"
      R"("config":{"Env":["A=1"],"ExposedPorts":{"80/tcp":{}},"Shell":["/bin/bash","-c"],)"
      R"("Healthcheck":{"Test":["CMD","true"],"Interval":30000000000},"OnBuild":null},)"
      R"("history":[{"created_by":"x"}],"rootfs":{"type":"layers","diff_ids":[]}})";
  const std::string manifest = R"({"schemaVersion":2,"layers":[]})";
  Result<OciImage> image = ParseOciImage(manifest, config);
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  EXPECT_EQ(
      image->config.more,
      R"({"config":{"ExposedPorts":{"80/tcp":{}},"Healthcheck":{"Interval":30000000000,)"
      R"("Test":["CMD","true"]},"Shell":["/bin/bash","-c"]},"created":"2020-01-01T00:00:00Z",)"
      R"("history":[{"created_by":"x"}],"variant":"v2"})");
  Manifest out;
  out.config = image->config;
  Result<Manifest> back = Manifest::FromJson(out.ToJson());
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->config.more, image->config.more);

  std::string deep = R"({"rootfs":{"diff_ids":[]},"x":)";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  for (int i = 0; i < 100'000; ++i) deep += ']';
  ESKER_EXPECT_CODE(ParseOciImage(manifest, deep + "}").status(), Code::kInvalidArgument);
  std::string long_history = R"({"rootfs":{"diff_ids":[]},"x":")" + std::string(2u << 20, 'h');
  ESKER_EXPECT_CODE(ParseOciImage(manifest, long_history + "\"}").status(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace esker
