#include "imagefs/manifest.h"

#include <gtest/gtest.h>

#include "testing/golden.h"

namespace esker {
namespace {

Manifest Sample() {
  Manifest manifest;
  ImageLayer base;
  base.metadata = BlobId{Sha256::Of("meta")};
  base.data = BlobId{Sha256::Of("data")};
  base.metadata_bytes = 8192;
  base.data_bytes = 4096;
  base.source_digest = "sha256:" + Sha256::Of("layer").ToHex();
  base.diff_id = "sha256:" + Sha256::Of("tar").ToHex();
  ImageLayer empty;
  empty.metadata = BlobId{Sha256::Of("meta2")};
  empty.metadata_bytes = 4096;
  manifest.layers = {base, empty};
  manifest.config.env = {"PATH=/bin", "A=\"quoted\" \xc3\xa4"};
  manifest.config.cmd = {"python3"};
  manifest.config.labels = {{"b", "2"}, {"a", "1"}};
  manifest.config.architecture = "amd64";
  manifest.config.os = "linux";
  manifest.parent = Sha256::Of("parent").ToHex();
  manifest.origin = {{"project", "p"}, {"created", "2026-11-30T00:00:00Z"}};
  return manifest;
}

// The sample's JSON with one piece of text replaced.
std::string Edited(const std::string& from, const std::string& to) {
  std::string json = Sample().ToJson();
  size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? json : json.replace(at, from.size(), to);
}

TEST(ManifestTest, GoldenBytesAndRoundTrip) {
  testing::ExpectGolden("manifest-1.json", Sample().ToJson());
  Result<Manifest> again = Manifest::FromJson(Sample().ToJson());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->ToJson(), Sample().ToJson());
  EXPECT_EQ(again->Id(), Sample().Id());
  EXPECT_EQ(again->Id().digest, Sha256::Of(Sample().ToJson()));
  EXPECT_FALSE(again->layers[1].has_data());
  EXPECT_TRUE(Manifest::FromJson(Manifest().ToJson()).ok());
}

TEST(ManifestTest, OneManifestHasOneSpelling) {
  const std::string good = Sample().ToJson();
  EXPECT_EQ(Manifest::FromJson(good + "\n").status().code(), Code::kDataLoss);
  EXPECT_EQ(Manifest::FromJson(" " + good).status().code(), Code::kDataLoss);
  EXPECT_EQ(Manifest::FromJson(Edited("\"amd64\"", "\"\\u0061md64\"")).status().code(),
            Code::kDataLoss);
  EXPECT_EQ(Manifest::FromJson(Edited("\"kind\":", "\"kind\":\"image\",\"kind\":")).status().code(),
            Code::kDataLoss);
}

TEST(ManifestTest, WrongMembersAreRefused) {
  const std::pair<const char*, const char*> edits[] = {
      {"\"schema\":1", "\"schema\":\"1\""},
      {"\"schema\":1", "\"schema\":-1"},
      {"\"schema\":1,", ""},
      {"\"kind\":\"image\"", "\"kind\":\"other\""},
      {"\"kind\":\"image\"", "\"kind\":7"},
      {"\"kind\":\"image\"", "\"extra\":1,\"kind\":\"image\""},
      {"\"cmd\":[\"python3\"]", "\"cmd\":\"python3\""},
      {"\"cmd\":[\"python3\"]", "\"cmd\":[1]"},
      {"\"cmd\":[\"python3\"],", ""},
      {"\"os\":\"linux\"", "\"os\":null"},
      {"\"metadata_bytes\":8192", "\"metadata_bytes\":8193"},
      {"\"metadata_bytes\":8192", "\"metadata_bytes\":0"},
      {"\"metadata_bytes\":8192", "\"metadata_bytes\":8192.0"},
      {"\"metadata_bytes\":8192", "\"metadata_bytes\":18446744073709547520"},
      {"\"data_bytes\":4096", "\"data_bytes\":0"},
      {"\"data_bytes\":0", "\"data_bytes\":4096"},
      {"\"diff_id\":\"sha256:", "\"diff_id\":\"sha512:"},
      {"\"parent\":\"", "\"parent\":\"zz"},
      {"\"labels\":{\"a\":\"1\"", "\"labels\":{\"a\":1"},
  };
  for (const auto& [from, to] : edits) {
    Status status = Manifest::FromJson(Edited(from, to)).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << to << ": " << status.ToString();
  }
  for (const char* text : {"", "[]", "null", "{", "\"x\"", "{\"schema\":1}", "\xff"}) {
    EXPECT_EQ(Manifest::FromJson(text).status().code(), Code::kDataLoss) << text;
  }
  EXPECT_EQ(Manifest::FromJson(std::string(100'000, '[')).status().code(), Code::kDataLoss);
}

TEST(ManifestTest, AnUnknownSchemaIsNamed) {
  Status status = Manifest::FromJson(Edited("\"schema\":1", "\"schema\":2")).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("schema 2"), std::string::npos);
}

TEST(ManifestTest, TooManyLayersAreRefused) {
  Manifest manifest = Sample();
  manifest.layers.resize(500, manifest.layers[0]);
  EXPECT_TRUE(Manifest::FromJson(manifest.ToJson()).ok());
  manifest.layers.resize(501, manifest.layers[0]);
  EXPECT_EQ(Manifest::FromJson(manifest.ToJson()).status().code(), Code::kDataLoss);
}

TEST(ManifestTest, BytesThatAreNoTextDoNotThrow) {
  Manifest manifest = Sample();
  manifest.config.env.push_back("X=\xff\xfe");
  EXPECT_TRUE(Manifest::FromJson(manifest.ToJson()).ok());
}

}  // namespace
}  // namespace esker
