// Snapshot and fork on the real parts.
#include <thread>

#include "base/failpoint.h"
#include "executor/node.h"
#include "node_test_base.h"

namespace esker::testing {
namespace {

// Names, types, modes, owners, times, links, sizes and content of the whole tree (a directory's own
// size and link count are its file system's business).
constexpr char kListTree[] =
    "cd /; find bin etc home root tmp usr var data | sort > /dev/shm/names; "
    "while read -r n; do if [ -d \"$n\" ] && [ ! -L \"$n\" ]; "
    "then stat -c '%n %f %u %g %Y' \"$n\"; "
    "else stat -c '%N %f %u %g %Y %h %s' \"$n\"; [ ! -f \"$n\" ] || sha256sum \"$n\"; fi; "
    "done < /dev/shm/names";

TEST_F(NodeTest, ASnapshotHasTheSameBytes) {
  std::string id = MustCreate();
  MustRun(id,
          "mkdir -p /data/a/b; seq 1 50000 > /data/a/seq; ln -s a/seq /data/link; "
          "ln /data/a/seq /data/hard; rm /bin/tail; mkdir /data/empty; chmod 0600 /data/a/seq; "
          "dd if=/dev/zero of=/data/sparse bs=1 count=1 seek=5000000 2>/dev/null; "
          "rm -r /home/agent; mkdir /home/agent; touch /data/.wh.x");
  std::string before = MustRun(id, kListTree);
  Result<SnapshotInfo> snapshot = node().Snapshot(id, "r1", "snap:1");
  ASSERT_OK(snapshot);
  Result<SnapshotInfo> same = node().Snapshot(id, "r1", "snap:1");
  ASSERT_OK(same);
  EXPECT_EQ(same->image, snapshot->image);
  EXPECT_EQ(node().Snapshot(id, "r1", "other:1").status().code(), Code::kAlreadyExists);
  EXPECT_EQ(MustRun(id, kListTree), before) << "it goes on as it was";
  SandboxSpec spec = Spec();
  spec.image = "snap:1";
  std::string child = MustCreate(spec);
  EXPECT_EQ(MustRun(child, kListTree), before);
  MustRun(child, "echo other > /data/a/seq");
  EXPECT_EQ(MustRun(id, kListTree), before);
  // A snapshot of the snapshot, with the first sandbox gone.
  ASSERT_OK(node().Delete(id));
  before = MustRun(child, kListTree);
  snapshot = node().Snapshot(child, "", "");
  ASSERT_OK(snapshot);
  spec.image = snapshot->image.ToHex();
  EXPECT_EQ(MustRun(MustCreate(spec), kListTree), before);
}

TEST_F(NodeTest, ForksAreEqualAndApart) {
  SandboxSpec spec = Spec();
  spec.metadata = {{"k", "v"}};
  spec.envs = {{"E", "1"}};
  spec.job = "job1";
  std::string id = MustCreate(spec);
  MustRun(id, "seq 1 1000 > /data");
  ImageId image;
  Result<std::vector<ForkChild>> children = node().Fork(id, "f1", 8, 0, {{"n", "1"}}, &image);
  ASSERT_OK(children);
  ASSERT_EQ(children->size(), 8u);
  for (size_t i = 0; i < children->size(); ++i) {
    const ForkChild& child = (*children)[i];
    ASSERT_OK(child.status);
    EXPECT_EQ(child.info.job, "job1");
    EXPECT_EQ(child.info.metadata.at("k"), "v");
    EXPECT_EQ(child.info.metadata.at("n"), "1");
    EXPECT_EQ(MustRun(child.info.id, "cat /data; echo $E; echo " + std::to_string(i) + " > /data"),
              MustRun(id, "cat /data; echo 1"));
  }
  for (size_t i = 0; i < children->size(); ++i) {
    EXPECT_EQ(MustRun((*children)[i].info.id, "cat /data"), std::to_string(i) + "\n");
  }
  ImageId again;
  Result<std::vector<ForkChild>> same = node().Fork(id, "f1", 8, 0, {{"n", "1"}}, &again);
  ASSERT_OK(same);
  EXPECT_EQ(again, image);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ((*same)[i].info.id, (*children)[i].info.id);
}

TEST_F(NodeTest, ASnapshotOfAPausedOneKeepsItPaused) {
  std::string id = MustCreate();
  MustRun(id, "echo x > /x");
  ASSERT_OK(node().Pause(id));
  Result<SnapshotInfo> snapshot = node().Snapshot(id, "", "");
  ASSERT_OK(snapshot);
  EXPECT_EQ(node().Get(id)->state, SandboxState::kPaused);
  SandboxSpec spec = Spec();
  spec.image = snapshot->image.ToHex();
  EXPECT_EQ(MustRun(MustCreate(spec), "cat /x"), "x\n");
}

TEST_F(NodeTest, ASnapshotThatFailsLeavesItRunning) {
  std::string id = MustCreate();
  for (const char* point :
       {"node.snapshot.intent", "node.snapshot.cloned", "node.snapshot.committed"}) {
    SCOPED_TRACE(point);
    ASSERT_OK(ArmFailPoints(std::string(point) + "=error:28"));
    Result<SnapshotInfo> failed = node().Snapshot(id, std::string("r") + point, "");
    EXPECT_EQ(failed.status().code(), Code::kResourceExhausted);
    ASSERT_OK(ArmFailPoints(""));
    EXPECT_EQ(MustRun(id, "echo on"), "on\n");
    EXPECT_OK(node().Snapshot(id, std::string("r") + point, ""));
  }
}

TEST_F(NodeTest, TheProcessesStandStillForTheSnapshotOnly) {
  std::string id = MustCreate();
  // Two files that are always written one after the other: the second is never ahead.
  CommandInfo writer =
      MustStart(id,
                "i=0; while :; do i=$((i+1)); echo $i > /a.new; mv /a.new /a; echo $i > /b.new; "
                "mv /b.new /b; done");
  MustRun(id, "until [ -e /b ]; do sleep 0.01; done");
  for (int i = 0; i < 3; ++i) {
    Result<SnapshotInfo> snapshot = node().Snapshot(id, "", "");
    ASSERT_OK(snapshot);
    EXPECT_GT(snapshot->frozen_us, 0);
    SandboxSpec spec = Spec();
    spec.image = snapshot->image.ToHex();
    std::string child = MustCreate(spec);
    std::string numbers = MustRun(child, "cat /a /b");
    int a = 0, b = 0;
    ASSERT_EQ(std::sscanf(numbers.c_str(), "%d %d", &a, &b), 2) << numbers;
    EXPECT_TRUE(a == b || a == b + 1) << numbers;
  }
  EXPECT_EQ(node().GetCommand(id, writer.id)->status.state, InitCommandState::kRunning);
}

TEST_F(NodeTest, AnImageWithoutTagsLivesAsLongAsItsSandboxes) {
  std::string id = MustCreate();
  MustRun(id, "echo x > /x");
  Result<SnapshotInfo> snapshot = node().Snapshot(id, "", "");
  ASSERT_OK(snapshot);
  SandboxSpec spec = Spec();
  spec.image = snapshot->image.ToHex();
  std::string child = MustCreate(spec);
  ASSERT_OK(rig_->index().DeleteImage(snapshot->image, true));
  ASSERT_OK(rig_->index().CollectGarbage({}));
  EXPECT_EQ(MustRun(child, "cat /x"), "x\n");
  Reopen();
  // Nothing was collected since the start, so the adopted child could take its lease again.
  ASSERT_OK(rig_->index().CollectGarbage({}));
  EXPECT_EQ(MustRun(child, "cat /x"), "x\n");
  ASSERT_OK(node().Delete(child));
  EXPECT_OK(rig_->index().CollectGarbage({}));
}

}  // namespace
}  // namespace esker::testing
