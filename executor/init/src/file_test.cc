// Privileged: file calls in a real sandbox, as its users.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "base/io.h"
#include "testing/fixture.h"

namespace esker {
namespace {

using testing::ElementsAre;

class Files : public InitTest {
 protected:
  Files() { ::signal(SIGPIPE, SIG_IGN); }  // a worker that gives up closes its end

  InitFileResult Call(const InitFileRequest& request, int stream = -1) {
    auto result = node_->File(request, stream);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return result.ok() ? *result : InitFileResult{.error_number = -1};
  }

  static void SendFrame(int fd, std::string_view bytes) {
    auto length = static_cast<uint32_t>(bytes.size());
    (void)WriteFull(fd, &length, sizeof(length));  // a worker that gave up is seen in its result
    (void)WriteFull(fd, bytes.data(), bytes.size());
  }

  InitFileResult Write(InitFileRequest request, std::string_view data, bool commit = true) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    request.op = InitFileOp::kWrite;
    std::thread feeder([&] {
      for (size_t at = 0; at < data.size(); at += 100'000) {
        SendFrame(ends[1], data.substr(at, 100'000));
      }
      if (commit) SendFrame(ends[1], "");
      ::close(ends[1]);
    });
    InitFileResult result = Call(request, ends[0]);
    ::close(ends[0]);  // or a feeder that the worker left would wait for ever
    feeder.join();
    return result;
  }
  InitFileResult Write(const std::string& path, std::string_view data,
                       const std::string& user = "") {
    return Write({.user = user, .path = path}, data);
  }

  InitFileResult Read(InitFileRequest request, std::string& data) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    request.op = InitFileOp::kRead;
    std::thread reader([&] { data = TestNode::ReadAll(ends[0]); });
    InitFileResult result = Call(request, ends[1]);
    ::close(ends[1]);
    reader.join();
    ::close(ends[0]);
    return result;
  }

  InitFileInfo Stat(const std::string& path) {
    InitFileResult result = Call({.op = InitFileOp::kStat, .path = path});
    EXPECT_EQ(result.error_number, 0) << path;
    return result.entries.size() == 1 ? result.entries[0] : InitFileInfo{};
  }
  std::vector<std::string> Names(const InitFileResult& result) {
    std::vector<std::string> out;
    for (const InitFileInfo& each : result.entries) out.push_back(each.path);
    return out;
  }
};

TEST_F(Files, WriteReadAndParents) {
  InitFileResult written = Write("a/b/c.txt", "hello", "user");
  EXPECT_EQ(written.error_number, 0) << written.error_path;
  EXPECT_EQ(written.bytes, 5u);
  ASSERT_EQ(written.entries.size(), 1u);
  EXPECT_EQ(written.entries[0].path, "/home/user/a/b/c.txt");
  EXPECT_EQ(written.entries[0].name, "c.txt");
  EXPECT_EQ(written.entries[0].user, "user");
  EXPECT_EQ(written.entries[0].uid, 1000u);
  EXPECT_EQ(written.entries[0].mode, 0644u);
  EXPECT_EQ(Stat("/home/user/a").uid, 1000u);
  std::string data;
  EXPECT_EQ(Read({.user = "user", .path = "a/b/c.txt"}, data).bytes, 5u);
  EXPECT_EQ(data, "hello");
  EXPECT_EQ(Read({.path = "/home/user/a/b/c.txt", .offset = 1, .length = 3}, data).bytes, 3u);
  EXPECT_EQ(data, "ell");
  InitFileRequest no_parents = {.path = "/tmp/x/y", .parents = false};
  EXPECT_EQ(Write(no_parents, "z").error_number, ENOENT);
  ExpectIdle();
}

TEST_F(Files, ReplacingKeepsModeAndOwnerAndLinks) {
  ASSERT_EQ(Sh("echo old > /tmp/f; chown 1000:29 /tmp/f; chmod 4750 /tmp/f; "
               "echo old > /tmp/h; ln /tmp/h /tmp/h2; mkdir /tmp/d; ln -s d /tmp/dl; "
               "ln -s /tmp/dl/target /tmp/l; ln -s loop /tmp/loop")
                .status.exit_code,
            0);
  EXPECT_EQ(Write("/tmp/f", "new").error_number, 0);
  InitFileInfo info = Stat("/tmp/f");
  EXPECT_EQ(info.mode, 04750u);
  EXPECT_EQ(info.uid, 1000u);
  EXPECT_EQ(info.group, "audio");
  EXPECT_EQ(Write("/tmp/h", "shared").error_number, 0);
  EXPECT_EQ(Sh("cat /tmp/h2").out, "shared");
  EXPECT_EQ(Write("/tmp/l", "through").error_number, 0);
  EXPECT_EQ(Sh("cat /tmp/d/target; readlink /tmp/l; ls -A /tmp/d").out,
            "through/tmp/dl/target\ntarget\n");
  EXPECT_EQ(Write("/tmp/loop", "x").error_number, ELOOP);
  EXPECT_EQ(Write("/tmp/d", "x").error_number, EISDIR);
  EXPECT_EQ(Write("/tmp/new/", "x").error_number, EISDIR);
  InitFileRequest with_mode = {.path = "/tmp/m", .mode = 0700};
  EXPECT_EQ(Write(with_mode, "").error_number, 0);
  EXPECT_EQ(Stat("/tmp/m").mode, 0700u);
}

TEST_F(Files, AnAbandonedUploadLeavesTheOldFile) {
  EXPECT_EQ(Write("/tmp/f", "old").error_number, 0);
  InitFileRequest request = {.path = "/tmp/f"};
  EXPECT_EQ(Write(request, "new and longer", /*commit=*/false).error_number, ECANCELED);
  EXPECT_EQ(Sh("cat /tmp/f; ls -A /tmp").out, "oldf\n");
}

TEST_F(Files, ANodeThatDiesInAnUploadLeavesTheOldFile) {
  EXPECT_EQ(Write("/tmp/f", "old").error_number, 0);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  SendFrame(ends[1], "new");
  std::thread call([&] {
    auto result = node_->File({.op = InitFileOp::kWrite, .path = "/tmp/f"}, ends[0]);
    EXPECT_EQ(result.status().code(), Code::kUnavailable);
  });
  EXPECT_TRUE(Eventually([&] { return sandbox_->CountChildren() == 1; }));
  TestNode next;
  ASSERT_TRUE(next.Connect(sandbox_->socket_path()).ok());
  call.join();
  EXPECT_TRUE(Eventually([&] { return sandbox_->CountChildren() == 0; }));
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(next.Sh("cat /tmp/f; ls -A /tmp")->out, "oldf\n");
}

TEST_F(Files, AFullDiskLeavesTheOldFile) {
  EXPECT_EQ(Write("/tmp/f", "old").error_number, 0);
  std::string big(100 << 20, 'x');  // the sandbox has 64 MiB
  EXPECT_EQ(Write("/tmp/f", big).error_number, ENOSPC);
  EXPECT_EQ(Sh("cat /tmp/f; ls -A /tmp").out, "oldf\n");
}

TEST_F(Files, PermissionsAreTheUsers) {
  ASSERT_EQ(Sh("echo secret > /root/s; chmod 700 /root; echo x > /etc/own; chown 1000 /etc/own; "
               "echo y > /tmp/ro; chmod 444 /tmp/ro; chown 1001 /tmp/ro")
                .status.exit_code,
            0);
  std::string data;
  EXPECT_EQ(Read({.user = "user", .path = "/root/s"}, data).error_number, EACCES);
  EXPECT_EQ(data, "");
  EXPECT_EQ(Write("/root/s", "x", "user").error_number, EACCES);
  EXPECT_EQ(Write("/etc/other", "x", "user").error_number, EACCES);
  EXPECT_EQ(Write("/tmp/ro", "x", "user").error_number, EACCES);
  EXPECT_EQ(Write("/etc/own", "mine", "user").error_number, 0) << "in a directory it may not write";
  EXPECT_EQ(Sh("cat /etc/own; cat /root/s").out, "minesecret\n");
  EXPECT_EQ(Call({.op = InitFileOp::kStat, .user = "user", .path = "/root/s"}).error_number,
            EACCES);
  EXPECT_EQ(Call({.op = InitFileOp::kRemove, .user = "user", .path = "/tmp/ro"}).error_number,
            EPERM);
  EXPECT_EQ(Call({.op = InitFileOp::kMakeDir, .user = "user", .path = "/etc/d"}).error_number,
            EACCES);
  EXPECT_EQ(
      Call({.op = InitFileOp::kRename, .user = "user", .path = "/etc/passwd", .to_path = "/tmp/p"})
          .error_number,
      EACCES);
  auto unknown = node_->File({.op = InitFileOp::kStat, .user = "ghost", .path = "/"});
  EXPECT_EQ(unknown.status().code(), Code::kNotFound);
}

TEST_F(Files, WhatIsNoRegularFileIsNotStreamed) {
  ASSERT_EQ(Sh("mkfifo /tmp/pipe").status.exit_code, 0);
  std::string data;
  EXPECT_EQ(Read({.path = "/tmp/pipe"}, data).error_number, EINVAL);
  EXPECT_EQ(Read({.path = "/dev/zero"}, data).error_number, EINVAL);
  EXPECT_EQ(Read({.path = "/tmp"}, data).error_number, EISDIR);
  EXPECT_EQ(Read({.path = "/none"}, data).error_number, ENOENT);
  EXPECT_EQ(Write("/tmp/pipe", "x").error_number, EINVAL);
  EXPECT_EQ(Write("/dev/null", "x").error_number, EINVAL);
  EXPECT_EQ(Read({.path = "/proc/self/comm"}, data).error_number, 0);
  EXPECT_NE(data, "") << "files of proc say that they are empty, and are not";
}

TEST_F(Files, StatSaysWhatItIs) {
  ASSERT_EQ(Sh("mkfifo /tmp/p; ln -s ../no/where /tmp/l; mkdir -m 1770 /tmp/d; "
               "printf abc > /tmp/f; touch -d @1234567890 /tmp/f")
                .status.exit_code,
            0);
  EXPECT_EQ(Stat("/tmp/p").type, 'p');
  EXPECT_EQ(Stat("/tmp/l").type, 'l');
  EXPECT_EQ(Stat("/tmp/l").link_target, "../no/where");
  EXPECT_EQ(Stat("/tmp/d/").type, 'd');
  EXPECT_EQ(Stat("/tmp/d").mode, 01770u);
  EXPECT_EQ(Stat("/dev/null").type, 'c');
  InitFileInfo file = Stat("/tmp/f");
  EXPECT_EQ(file.type, 'f');
  EXPECT_EQ(file.size, 3u);
  EXPECT_EQ(file.mtime_ns, 1234567890'000'000'000);
  EXPECT_EQ(file.user, "root");
  EXPECT_EQ(Stat("/").name, "/");
  InitFileResult missing = Call({.op = InitFileOp::kStat, .path = "/tmp/none"});
  EXPECT_EQ(missing.error_number, ENOENT);
  EXPECT_EQ(missing.error_path, "/tmp/none");
}

TEST_F(Files, ListIsSortedDeepAndBounded) {
  ASSERT_EQ(Sh("cd /tmp; mkdir -p b/c/d a; touch b/c/d/x b/2 b/1 z; ln -s / a/root; ln -s b s")
                .status.exit_code,
            0);
  InitFileRequest request = {.op = InitFileOp::kList, .path = "/tmp"};
  EXPECT_THAT(Names(Call(request)), ElementsAre("/tmp/a", "/tmp/b", "/tmp/s", "/tmp/z"));
  request.depth = 3;
  InitFileResult deep = Call(request);
  EXPECT_THAT(Names(deep), ElementsAre("/tmp/a", "/tmp/a/root", "/tmp/b", "/tmp/b/1", "/tmp/b/2",
                                       "/tmp/b/c", "/tmp/b/c/d", "/tmp/s", "/tmp/z"));
  EXPECT_FALSE(deep.truncated);
  request.limit = 4;
  InitFileResult cut = Call(request);
  EXPECT_EQ(cut.entries.size(), 4u);
  EXPECT_TRUE(cut.truncated);
  request.path = "/tmp/s/";
  request.limit = 100;
  EXPECT_EQ(Call(request).entries.size(), 5u)
      << "a link to a directory is followed if it is asked for";
  request.path = "/tmp/z";
  EXPECT_EQ(Call(request).error_number, ENOTDIR);
}

TEST_F(Files, NamesAreBytesAndManyOfThemFit) {
  ASSERT_EQ(Sh("mkdir /tmp/m; cd /tmp/m; i=0; while [ $i -lt 9000 ]; do : > "
               "file-with-a-long-name-to-fill-messages-$i; i=$((i+1)); done; "
               ": > \"$(printf '\\377\\001 \\n.x')\"")
                .status.exit_code,
            0);
  InitFileResult result = Call({.op = InitFileOp::kList, .path = "/tmp/m"});
  EXPECT_EQ(result.entries.size(), 9001u);
  EXPECT_EQ(result.entries.back().name, "\xff\x01 \n.x");
  ExpectIdle();
}

TEST_F(Files, DirectoriesAreMade) {
  InitFileRequest request = {.op = InitFileOp::kMakeDir, .user = "user", .path = "p/q"};
  InitFileResult made = Call(request);
  EXPECT_EQ(made.error_number, 0);
  EXPECT_EQ(made.entries[0].mode, 0755u);
  EXPECT_EQ(Stat("/home/user/p").user, "user");
  EXPECT_EQ(Call(request).error_number, 0) << "with parents an existing one is fine";
  request.parents = false;
  EXPECT_EQ(Call(request).error_number, EEXIST);
  request.path = "x/y";
  EXPECT_EQ(Call(request).error_number, ENOENT);
  request.path = "w";
  request.mode = 01777;
  EXPECT_EQ(Call(request).entries[0].mode, 01777u);
}

TEST_F(Files, RemoveDoesNotFollowLinks) {
  ASSERT_EQ(Sh("mkdir -p /tmp/t/u /tmp/keep; touch /tmp/keep/f /tmp/t/u/v; ln -s /tmp/keep "
               "/tmp/t/u/link; ln -s keep /tmp/l")
                .status.exit_code,
            0);
  InitFileRequest request = {.op = InitFileOp::kRemove, .path = "/tmp/t"};
  EXPECT_EQ(Call(request).error_number, ENOTEMPTY);
  request.recursive = true;
  EXPECT_EQ(Call(request).error_number, 0);
  request.path = "/tmp/l/";
  EXPECT_EQ(Call(request).error_number, 0);
  EXPECT_EQ(Sh("ls -R /tmp").out, "/tmp:\nkeep\n\n/tmp/keep:\nf\n");
  request.path = "/tmp/none";
  EXPECT_EQ(Call(request).error_number, ENOENT);
  request.path = "/";
  EXPECT_EQ(Call(request).error_number, EBUSY);
}

TEST_F(Files, TreesDeeperThanDescriptorsAreRemoved) {
  ASSERT_EQ(Sh("mkdir /tmp/deep; cd /tmp/deep; i=0; while [ $i -lt 1500 ]; do mkdir d; cd d; "
               ": > f; i=$((i+1)); done")
                .status.exit_code,
            0);
  InitFileResult removed =
      Call({.op = InitFileOp::kRemove, .user = "", .path = "/tmp/deep", .recursive = true});
  EXPECT_EQ(removed.error_number, 0) << removed.error_path;
  EXPECT_EQ(Sh("ls -A /tmp").out, "");
}

TEST_F(Files, RenameMovesTheLinkItself) {
  ASSERT_EQ(Sh("cd /tmp; echo a > a; ln -s a l; echo b > b").status.exit_code, 0);
  InitFileResult moved =
      Call({.op = InitFileOp::kRename, .path = "/tmp/l", .to_path = "/tmp/sub/dir/l2"});
  EXPECT_EQ(moved.error_number, 0);
  EXPECT_EQ(moved.entries[0].type, 'l');
  EXPECT_EQ(Call({.op = InitFileOp::kRename, .path = "/tmp/a", .to_path = "/tmp/b"}).error_number,
            0);
  EXPECT_EQ(Sh("cat /tmp/b").out, "a\n");
  EXPECT_EQ(
      Call({.op = InitFileOp::kRename, .path = "/tmp/gone", .to_path = "/tmp/new/x"}).error_number,
      ENOENT);
  EXPECT_EQ(Call({.op = InitFileOp::kStat, .path = "/tmp/new"}).error_number, ENOENT);
}

TEST_F(Files, LinksThatChangeUnderUsLeadNowhereForbidden) {
  // The user swaps a directory for a link to root's while it uploads there; its own permissions
  // are all that its uploads have.
  ASSERT_EQ(Sh("mkdir -m 700 /root/prize; echo safe > /root/prize/f").status.exit_code, 0);
  InitCommandSpec spec = Spec({});
  spec.user = "user";
  spec.shell =
      "cd /home/user; echo up; while :; do mkdir d; rmdir d; ln -s /root/prize d; rm d; done";
  auto started = node_->Start(spec);
  ASSERT_TRUE(started.ok());
  EXPECT_EQ(TestNode::ReadUntil(started->pipes.out.get(), "up"), "up\n");
  for (int i = 0; i < 150; ++i) {
    Write({.user = "user", .path = "d/f", .parents = false}, "taken");
    Call({.op = InitFileOp::kRemove, .user = "user", .path = "d/f"});
  }
  EXPECT_EQ(Sh("cat /root/prize/f; ls -A /root/prize").out, "safe\nf\n");
  EXPECT_TRUE(node_->Signal(spec.command_id, SIGKILL, true).ok());
}

TEST_F(Files, HugeFilesStreamInConstantMemory) {
  // Sparse, 3 GiB; what is read is thrown away here.
  ASSERT_EQ(Sh("truncate -s 3G /tmp/huge").status.exit_code, 0);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  uint64_t total = 0;
  std::thread reader([&] {
    std::string buffer(1 << 20, '\0');
    for (ssize_t n; (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;) {
      total += static_cast<uint64_t>(n);
    }
  });
  uint64_t before = sandbox_->cgroups().GetUsage("sb")->memory_peak_bytes;
  InitFileResult result =
      Call({.op = InitFileOp::kRead, .path = "/tmp/huge", .length = 600 << 20}, ends[1]);
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  EXPECT_EQ(result.bytes, 600u << 20);
  EXPECT_EQ(total, 600u << 20);
  // Reading holes of tmpfs makes pages; what matters is that nobody collects them.
  (void)before;
  EXPECT_LT(sandbox_->AnonymousBytes(), 150u * 1024);
}

TEST_F(Files, AReaderThatGoesAwayEndsTheCall) {
  ASSERT_EQ(Sh("truncate -s 1G /tmp/huge").status.exit_code, 0);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::thread closer([&] {
    char buffer[1000];
    EXPECT_GT(::read(ends[0], buffer, sizeof(buffer)), 0);
    ::close(ends[0]);
  });
  InitFileResult result = Call({.op = InitFileOp::kRead, .path = "/tmp/huge"}, ends[1]);
  EXPECT_EQ(result.error_number, EPIPE);
  closer.join();
  ::close(ends[1]);
  ExpectIdle();
}

TEST_F(Files, ManyAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 20; ++k) {
        std::string path = "/tmp/file-" + std::to_string(i);
        EXPECT_EQ(Write(path, std::string(200'000, static_cast<char>('a' + i))).error_number, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Sh("cat /tmp/file-* | wc -c; ls -A /tmp | wc -l").out, "1600000\n8\n");
  ExpectIdle();
}

}  // namespace
}  // namespace esker
