// The node on the real thing: store, index, keeper, init, overlay. Needs root.
#include "executor/node.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "base/id.h"
#include "base/io.h"
#include "testing/leak_check.h"
#include "node_rig.h"

namespace esker::testing {
namespace {

#define ASSERT_OK(expr)                                 \
  do {                                                  \
    auto&& ok_ = (expr);                                \
    ASSERT_TRUE(IsOk(ok_)) << StatusOf(ok_).ToString(); \
  } while (false)
#define EXPECT_OK(expr)                                 \
  do {                                                  \
    auto&& ok_ = (expr);                                \
    EXPECT_TRUE(IsOk(ok_)) << StatusOf(ok_).ToString(); \
  } while (false)

const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}
template <typename T>
bool IsOk(const T& value) {
  return value.ok();
}

class NodeTest : public LeakCheckedTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: it mounts and makes cgroups";
    LeakCheckedTest::SetUp();
    node_id_ = "t" + RandomId().substr(0, 7);
    leaks().AddCgroup("esker-" + node_id_);
    rig_ = std::make_unique<NodeRig>(directory(), node_id_);
    ASSERT_OK(rig_->Open());
  }
  void TearDown() override {
    if (rig_ != nullptr) EXPECT_OK(rig_->Drain());
    rig_.reset();
    LeakCheckedTest::TearDown();
  }
  Node& node() { return rig_->node(); }

  SandboxSpec Spec() {
    SandboxSpec spec;
    spec.image = "busybox:1";
    return spec;
  }
  std::string MustCreate(const SandboxSpec& spec) {
    Result<SandboxInfo> info = node().Create(spec);
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info.ok() ? info->id : "";
  }
  std::string MustCreate() { return MustCreate(Spec()); }

  std::string node_id_;
  std::unique_ptr<NodeRig> rig_;
};

TEST_F(NodeTest, CreateRunDelete) {
  std::string id = MustCreate();
  ASSERT_NE(id, "");
  Result<RunResult> run = RunShell(node(), id, "echo out; echo err >&2; exit 3");
  ASSERT_OK(run);
  EXPECT_EQ(run->out, "out\n");
  EXPECT_EQ(run->err, "err\n");
  EXPECT_EQ(run->info.status.exit_code, 3);
  Result<bool> deleted = node().Delete(id);
  ASSERT_OK(deleted);
  EXPECT_TRUE(*deleted);
  deleted = node().Delete(id);
  ASSERT_OK(deleted);
  EXPECT_FALSE(*deleted);
  Result<SandboxInfo> info = node().Get(id);
  ASSERT_OK(info);
  EXPECT_EQ(info->state, SandboxState::kEnded);
  EXPECT_EQ(info->end_reason, "DELETED");
}

}  // namespace
}  // namespace esker::testing
