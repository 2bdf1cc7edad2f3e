#include "accounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace esker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const Accounts& Sample() {
  static const Accounts accounts(
      "root:x:0:0:root:/root:/bin/bash\n"
      "# a comment\n"
      "bad line\n"
      ":x:5:5::/:/bin/sh\n"
      "huge:x:4294967295:1::/:/bin/sh\n"
      "neg:x:-1:1::/:/bin/sh\n"
      "user:x:1000:1001:A User:/home/user:/bin/zsh\n"
      "nohome:x:7:8::\n"
      "123:x:9:9::/nine:\n"
      "last:x:50:50::/last:/bin/sh",
      "root:x:0:\nuser:x:1001:\nwheel:x:10:root,user\nextra:x:11:user,user\nsame:x:11:user\n"
      "own:x:1001:user\nbroken:x:q:user\nusers:x:12:useruser,xuser\nlast:x:13:user");
  return accounts;
}

TEST(Accounts, Names) {
  auto user = Sample().Resolve("user");
  ASSERT_TRUE(user.ok());
  EXPECT_EQ(user->uid, 1000u);
  EXPECT_EQ(user->gid, 1001u);
  EXPECT_THAT(user->groups, ElementsAre(10, 11, 13));
  EXPECT_EQ(user->home, "/home/user");
  EXPECT_EQ(user->shell, "/bin/zsh");
  EXPECT_EQ(Sample().Resolve("last")->uid, 50u);
  EXPECT_EQ(Sample().Resolve("nohome")->home, "/");
}

TEST(Accounts, NothingMeansRoot) {
  EXPECT_EQ(Sample().Resolve("")->home, "/root");
  EXPECT_THAT(Sample().Resolve("")->groups, ElementsAre(10));
  auto bare = Accounts("", "").Resolve("");
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(bare->uid, 0u);
  EXPECT_EQ(bare->home, "/");
}

TEST(Accounts, Numbers) {
  EXPECT_EQ(Sample().Resolve("1000")->name, "user");
  EXPECT_EQ(Sample().Resolve("123")->uid, 9u) << "a name that is a number comes first";
  auto stranger = Sample().Resolve("777");
  ASSERT_TRUE(stranger.ok());
  EXPECT_EQ(stranger->uid, 777u);
  EXPECT_EQ(stranger->gid, 0u);
  EXPECT_EQ(stranger->name, "");
}

TEST(Accounts, Groups) {
  auto user = Sample().Resolve("user:wheel");
  ASSERT_TRUE(user.ok());
  EXPECT_EQ(user->gid, 10u);
  EXPECT_THAT(user->groups, IsEmpty());
  EXPECT_EQ(Sample().Resolve("5:6")->gid, 6u);
  EXPECT_EQ(Sample().Resolve(":11")->gid, 11u);
}

TEST(Accounts, WhatIsNotThere) {
  for (const char* name : {"nobody", "huge", "neg", "4294967295", "-1", "1x", "bad line"}) {
    EXPECT_EQ(Sample().Resolve(name).status().code(), Code::kNotFound) << name;
  }
  for (const char* name : {"user:none", "user:", "user:-1", "0:0:0"}) {
    EXPECT_EQ(Sample().Resolve(name).status().code(), Code::kNotFound) << name;
  }
}

TEST(Accounts, NamesOfIds) {
  EXPECT_EQ(Sample().UserName(1000), "user");
  EXPECT_EQ(Sample().UserName(1), "");
  EXPECT_EQ(Sample().GroupName(10), "wheel");
}

}  // namespace
}  // namespace esker
