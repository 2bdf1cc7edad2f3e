// Peak memory of an import, seen from outside: import_driver in a process of its own, fed through a
// pipe, so that neither the tar nor the test counts.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "base/io.h"
#include "base/temp_dir.h"
#include "testing/tar_builder.h"

namespace esker {
namespace {

using testing::TarBuilder;
using testing::TarItem;

constexpr long kLimitKib = 256 << 10;

class ImportMemoryTest : public ::testing::Test {
 protected:
  using Write = std::function<void(std::string_view)>;
  // What the driver said; the stream is what `make` writes.
  std::string Import(const std::function<void(const Write&)>& make) {
    auto dir = TempDir::Create();
    EXPECT_TRUE(dir.ok()) << dir.status().ToString();
    const std::string out = dir->path() + "/out";
    const std::string command =
        std::string(ESKER_IMPORT_DRIVER) + " " + dir->path() + "/store > " + out + " 2>&1";
    FILE* pipe = ::popen(command.c_str(), "we");
    EXPECT_NE(pipe, nullptr);
    make([&](std::string_view bytes) { std::fwrite(bytes.data(), 1, bytes.size(), pipe); });
    const int status = ::pclose(pipe);
    Result<std::string> text = ReadFileToString(out);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << (text.ok() ? *text : "");
    EXPECT_TRUE(dir->Remove().ok());
    return text.ok() ? *text : "";
  }
  static long ValueOf(const std::string& text, const std::string& key) {
    const size_t at = text.find(key + "=");
    return at == text.npos ? -1 : std::strtol(text.c_str() + at + key.size() + 1, nullptr, 10);
  }
  static void ExpectSmall(const std::string& text) {
    RecordProperty("driver", text);
    EXPECT_GT(ValueOf(text, "peak_kib"), 1000) << text;
    EXPECT_LT(ValueOf(text, "peak_kib"), kLimitKib) << text;
  }

  // A header for a file of any size.
  static std::string Header(const std::string& name, uint64_t size) {
    std::string block = TarBuilder::Header({.name = name});
    for (int i = 0; i < 12; ++i) {
      block[124 + i] = static_cast<char>(i < 4 ? 0 : size >> (8 * (11 - i)));
    }
    block[124] = '\x80';
    TarBuilder::Seal(block);
    return block;
  }
  // A file that compresses well, without two equal chunks, and with long runs of zeros.
  static void WriteLargeFile(const Write& write, uint64_t megabytes) {
    write(Header("large", megabytes << 20));
    std::string block(1 << 20, '\0');
    for (uint64_t i = 0; i < megabytes; ++i) {
      const std::string text = i % 5 == 0 ? "block " + std::to_string(i) + " of many\n" : "\0";
      for (size_t at = 0; i % 5 == 0 && at + text.size() <= block.size() - 100'000;
           at += text.size()) {
        block.replace(at, text.size(), text);
      }
      if (i % 5 == 1) block.assign(1 << 20, '\0');
      write(block);
    }
    write(std::string(1024, '\0'));
  }
};

TEST_F(ImportMemoryTest, TwoHundredThousandFiles) {
  const std::string text = Import([](const Write& write) {
    for (int i = 0; i < 200'000; ++i) {
      const std::string number = std::to_string(i);
      std::string content;
      for (int k = 0; k <= i % 40; ++k) content += "what file " + number + " has in it\n";
      TarItem item = {.name = "usr/share/directory-" + std::to_string(i / 50) + "/" +
                              "a-file-with-a-name-of-a-usual-length-" + number + ".txt",
                      .content = content,
                      .mtime = 1'700'000'000 + i};
      std::string entry = TarBuilder::Header(item) + content;
      entry.resize((entry.size() + 511) / 512 * 512);
      write(entry);
    }
    write(std::string(1024, '\0'));
  });
  EXPECT_EQ(ValueOf(text, "entries"), 200'000);
  ExpectSmall(text);
}

TEST_F(ImportMemoryTest, OneFileOfAGigabyte) {
  ExpectSmall(Import([](const Write& write) { WriteLargeFile(write, 1024); }));
}

TEST_F(ImportMemoryTest, NamesAndHeadersAsLongAsTheyMayBe) {
  std::string path;
  while (path.size() + 202 < 60'000) path += std::string(200, 'p') + "/";
  const std::string text = Import([&](const Write& write) {
    for (int i = 0; i < 100; ++i) {
      TarItem item = {.name = "x", .pax = {{"path", path + std::to_string(i)}}};
      for (int k = 0; k < 40; ++k) {  // as much as an inode can have
        item.pax.emplace_back("SCHILY.xattr.user." + std::to_string(k), std::string(5000, 'v'));
      }
      item.pax.emplace_back("comment", std::string(3 << 20, 'c'));
      write(TarBuilder().Add(item).Unended());
    }
    write(std::string(1024, '\0'));
  });
  EXPECT_EQ(ValueOf(text, "entries"), 100);
  ExpectSmall(text);
}

class ImportMemorySlowTest : public ImportMemoryTest {};

TEST_F(ImportMemorySlowTest, OneFileOfTwentyGigabytes) {
  const std::string text = Import([](const Write& write) { WriteLargeFile(write, 20 << 10); });
  EXPECT_GT(ValueOf(text, "read"), int64_t{20} << 30);
  ExpectSmall(text);
}

}  // namespace
}  // namespace esker
