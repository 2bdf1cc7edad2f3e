#include "record.h"

#include <gtest/gtest.h>

namespace esker {
namespace {

SandboxRecord FullSandbox() {
  SandboxRecord record;
  record.info.id = "sb-1";
  record.info.image.digest = Sha256::Of("image");
  record.info.image_name = "name:1";
  record.info.resources = {1.5, 1, 2, 3};
  record.info.metadata = {{"k", std::string("v\0w", 3)}};
  record.info.envs = {{"A", "B"}};
  record.info.project = "p";
  record.info.job = "j";
  record.info.hostname = "h";
  record.info.created_ns = 1;
  record.info.ended_ns = 2;
  record.info.expires_ns = 3;
  record.info.idle_ttl_ms = 4;
  record.info.end_reason = "TTL";
  record.info.end_message = "over";
  record.info.config.env = {"X=1"};
  record.info.config.labels = {{"l", "m"}};
  record.phase = SandboxPhase::kPaused;
  record.range = 7;
  record.init = {42, 99};
  record.boot_id = "boot";
  record.request_keys[1] = "r/key/p/k";
  return record;
}

CommandRecord FullCommand() {
  CommandRecord record;
  record.info.sandbox_id = "sb-1";
  record.info.id = "cmd-1";
  record.info.spec.request_id = "req";
  record.info.spec.argv = {"a", "b c"};
  record.info.spec.envs = {{"E", "1"}};
  record.info.spec.timeout_ms = 5;
  record.info.spec.output_limit = 6;
  record.info.spec.pty = true;
  record.info.status.state = InitCommandState::kExited;
  record.info.status.exit_code = 137;
  record.info.status.signal = 9;
  record.info.stdout_bytes = 1ull << 40;
  record.info.end_reason = "SANDBOX_ENDED: TTL";
  record.started = true;
  record.stdin_accepted = 11;
  return record;
}

TEST(RecordTest, SandboxRoundTrip) {
  std::string bytes = FullSandbox().Serialise();
  Result<SandboxRecord> back = SandboxRecord::Parse(bytes);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->Serialise(), bytes);
  EXPECT_EQ(back->info.state, SandboxState::kPaused);
  EXPECT_EQ(back->info.metadata.at("k").size(), 3u);
  EXPECT_EQ(back->info.resources.cpu, 1.5);
  EXPECT_EQ(back->request_keys[1], "r/key/p/k");
}

TEST(RecordTest, CommandRoundTrip) {
  std::string bytes = FullCommand().Serialise();
  Result<CommandRecord> back = CommandRecord::Parse(bytes);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->Serialise(), bytes);
  EXPECT_EQ(back->info.spec.request_id, "req");
  EXPECT_EQ(back->info.stdout_bytes, 1ull << 40);
}

TEST(RecordTest, EveryCutAndEveryFlippedBitIsNoticed) {
  for (std::string bytes : {FullSandbox().Serialise(), FullCommand().Serialise(),
                            RequestRecord{1, Sha256::Of("q"), true, "a"}.Serialise()}) {
    for (size_t n = 0; n < bytes.size(); ++n) {
      std::string_view cut(bytes.data(), n);
      EXPECT_FALSE(SandboxRecord::Parse(cut).ok());
      EXPECT_FALSE(CommandRecord::Parse(cut).ok());
      EXPECT_FALSE(RequestRecord::Parse(cut).ok());
      std::string flipped = bytes;
      flipped[n] ^= 0x10;
      EXPECT_FALSE(SandboxRecord::Parse(flipped).ok());
      EXPECT_FALSE(CommandRecord::Parse(flipped).ok());
      EXPECT_FALSE(RequestRecord::Parse(flipped).ok());
    }
  }
}

TEST(RecordTest, AnotherKindIsRefused) {
  EXPECT_EQ(SandboxRecord::Parse(FullCommand().Serialise()).status().code(), Code::kDataLoss);
  EXPECT_EQ(ParseEvent(FullCommand().Serialise()).status().code(), Code::kDataLoss);
}

TEST(RecordTest, AHashIsOfWhatIsAskedNotOfHow) {
  SandboxSpec one, two;
  one.image = two.image = "a:1";
  one.request_id = "r1";
  two.request_id = "r2";
  two.create_timeout_ms = 5;
  EXPECT_EQ(HashOf(one), HashOf(two));
  two.metadata["x"] = "y";
  EXPECT_NE(HashOf(one), HashOf(two));
}

TEST(RecordTest, KeysSortByTheirSandbox) {
  EXPECT_EQ(EventKey("sb", 255), "e/sb/00000000000000ff");
  EXPECT_LT(EventKey("sb", 255), EventKey("sb", 256));
  EXPECT_EQ(RequestKey("snapshot", "sb", "a/b"), "r/snapshot/sb/a/b");
}

}  // namespace
}  // namespace esker
