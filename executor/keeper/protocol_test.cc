#include "protocol.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace esker::keeper {
namespace {

CreateRequest Example() {
  CreateRequest request;
  request.spec.sandbox_id = "sb-1";
  request.spec.layers = {{"/data/meta/a.erofs", std::string(64, 'a'), ""},
                         {"/data/meta/b.erofs", std::string(64, 'b'), "/data/data/b"}};
  request.spec.range = 7;
  request.spec.hostname = "box";
  request.spec.read_only = true;
  request.spec.shm_bytes = 1 << 20;
  request.spec.nofile_limit = 1024;
  request.spec.private_network = false;
  request.has_unified = true;
  request.task_count = 3;
  return request;
}

KeeperOptions Options() { return {}; }

TEST(KeeperProtocol, CreateSurvivesTheWire) {
  WireWriter writer;
  PutHeader(writer, Kind::kCreate, 42);
  PutCreate(writer, Example());
  WireReader reader(writer.data());
  Header header = GetHeader(reader);
  EXPECT_EQ(header.kind, Kind::kCreate);
  EXPECT_EQ(header.id, 42u);
  CreateRequest back = GetCreate(reader);
  ASSERT_TRUE(reader.Finish("create").ok());
  EXPECT_EQ(back.spec.sandbox_id, "sb-1");
  ASSERT_EQ(back.spec.layers.size(), 2u);
  EXPECT_EQ(back.spec.layers[1].complete_path, "/data/data/b");
  EXPECT_EQ(back.spec.range, 7u);
  EXPECT_TRUE(back.spec.read_only);
  EXPECT_EQ(back.spec.shm_bytes, 1u << 20);
  EXPECT_EQ(back.spec.nofile_limit, 1024u);
  EXPECT_FALSE(back.spec.private_network);
  EXPECT_TRUE(back.has_unified);
  EXPECT_FALSE(back.has_volume);
  EXPECT_EQ(back.task_count, 3u);
  EXPECT_TRUE(CheckCreate(back, Options()).ok());
}

TEST(KeeperProtocol, EveryCutIsNoticed) {
  WireWriter writer;
  PutCreate(writer, Example());
  for (size_t n = 0; n < writer.size(); ++n) {
    WireReader reader(std::string_view(writer.data()).substr(0, n));
    GetCreate(reader);
    EXPECT_EQ(reader.Finish("create").code(), Code::kDataLoss) << n;
  }
}

TEST(KeeperProtocol, RefusesWhatTheKeeperMustNotActOn) {
  auto code = [](auto change) {
    CreateRequest request = Example();
    change(request);
    return CheckCreate(request, Options()).code();
  };
  EXPECT_EQ(code([](auto& r) { r.spec.sandbox_id = "../x"; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.spec.layers.clear(); }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.spec.layers.resize(499, r.spec.layers[0]); }),
            Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.spec.layers[0].metadata_path = "meta"; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.spec.layers[0].data_blob = "../../etc/passwd"; }),
            Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.spec.hostname = "a b"; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.spec.hostname.assign(64, 'a'); }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.spec.range = 0xffffffff; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.spec.range = 61'439; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.spec.range = 61'438; }), Code::kOk);
  EXPECT_EQ(code([](auto& r) { r.task_count = 17; }), Code::kInvalidArgument);
}

TEST(KeeperProtocol, StatusSurvivesTheWire) {
  Status failed = Status::FromErrno(EACCES, "container sb-1: mount overlay");
  WireWriter writer;
  PutStatus(writer, failed);
  PutStatus(writer, OkStatus());
  PutStatus(writer, NotFoundError("no such thing"));
  WireReader reader(writer.data());
  Status back = GetStatus(reader);
  EXPECT_EQ(back.code(), failed.code());
  EXPECT_EQ(back.error_number(), EACCES);
  EXPECT_EQ(back.message(), failed.message());
  EXPECT_TRUE(GetStatus(reader).ok());
  EXPECT_EQ(GetStatus(reader).message(), "no such thing");
  EXPECT_EQ(GetStatus(reader).code(), Code::kDataLoss);
}

TEST(KeeperProtocol, HelloNamesWhatDiffers) {
  Hello mine, theirs;
  EXPECT_TRUE(CheckHello(mine, theirs).ok());
  theirs.version = 2;
  EXPECT_NE(CheckHello(mine, theirs).message().find("protocol version"), std::string::npos);
  theirs = Hello();
  theirs.range_size = 1;
  EXPECT_NE(CheckHello(mine, theirs).message().find("host id range"), std::string::npos);
  theirs = Hello();
  theirs.magic = 0;
  EXPECT_EQ(CheckHello(mine, theirs).code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace esker::keeper
