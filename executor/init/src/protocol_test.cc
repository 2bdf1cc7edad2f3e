#include "protocol.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace esker {
namespace {

namespace protocol = init_protocol;

TEST(InitProtocol, CommandSpecsSurvive) {
  InitCommandSpec spec;
  spec.command_id = "id";
  spec.argv = {"a", "", std::string("b\0c", 3)};
  spec.shell = "s";
  spec.env = {"X=1"};
  spec.cwd = "/w";
  spec.user = "u:g";
  spec.want_stdin = spec.pty = true;
  spec.rows = 1;
  spec.cols = 65535;
  spec.timeout_ms = -5;
  WireWriter writer;
  protocol::Put(writer, spec);
  WireReader reader(writer.data());
  InitCommandSpec back = protocol::GetSpec(reader);
  ASSERT_TRUE(reader.Finish("spec").ok());
  EXPECT_EQ(back.argv, spec.argv);
  EXPECT_EQ(back.env, spec.env);
  EXPECT_EQ(back.cwd + back.user + back.shell + back.command_id, "/wu:gsid");
  EXPECT_TRUE(back.want_stdin && back.pty);
  EXPECT_EQ(back.cols, 65535);
  EXPECT_EQ(back.timeout_ms, -5);
}

TEST(InitProtocol, LeastSizesAreRight) {
  WireWriter status, info;
  protocol::Put(status, InitCommandStatus{});
  EXPECT_EQ(status.size(), protocol::kLeastStatusBytes);
  protocol::Put(info, InitFileInfo{});
  EXPECT_EQ(info.size(), protocol::kLeastFileInfoBytes);
}

TEST(InitProtocol, ErrorsKeepCodeErrnoAndText) {
  Status status = Status::FromErrno(EAGAIN, "do it").WithCode(Code::kResourceExhausted);
  WireWriter writer;
  protocol::PutError(writer, status);
  WireReader reader(writer.data());
  Status back = protocol::GetError(reader);
  EXPECT_EQ(back.code(), Code::kResourceExhausted);
  EXPECT_EQ(back.error_number(), EAGAIN);
  EXPECT_EQ(back.message(), status.message());
}

TEST(InitProtocol, EveryCutIsNoticed) {
  WireWriter writer;
  InitFileRequest request;
  request.path = "/x";
  protocol::Put(writer, request);
  for (size_t size = 0; size < writer.size(); ++size) {
    WireReader reader(std::string_view(writer.data()).substr(0, size));
    protocol::GetFileRequest(reader);
    EXPECT_FALSE(reader.Finish("request").ok()) << size;
  }
}

}  // namespace
}  // namespace esker
