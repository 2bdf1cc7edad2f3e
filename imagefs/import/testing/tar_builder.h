// Writes tars by hand, odd and broken ones included; for tests.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace esker::testing {

struct TarItem {
  std::string name;
  char type = '0';
  std::string content;
  std::string link;
  unsigned mode = 0644;
  std::string magic = std::string("ustar\00000", 8);  // empty: v7
  std::string prefix;
  unsigned uid = 0, gid = 0;
  long mtime = 1'600'000'000;
  unsigned major = 0, minor = 0;
  std::string size_field;                                // raw override
  std::vector<std::pair<std::string, std::string>> pax;  // written in an 'x' header if not empty
};

class TarBuilder {
 public:
  TarBuilder& Add(const TarItem& item) {
    if (!item.pax.empty()) {
      TarItem header;
      header.name = "PaxHeaders/x";
      header.type = 'x';
      header.content = PaxBody(item.pax);
      Raw(header);
    }
    Raw(item);
    return *this;
  }
  TarBuilder& Dir(std::string name, unsigned mode = 0755) {
    return Add({.name = std::move(name), .type = '5', .mode = mode});
  }
  TarBuilder& File(std::string name, std::string content, unsigned mode = 0644) {
    return Add({.name = std::move(name), .content = std::move(content), .mode = mode});
  }
  TarBuilder& Link(std::string name, std::string target) {
    return Add({.name = std::move(name), .type = '1', .link = std::move(target)});
  }
  TarBuilder& Symlink(std::string name, std::string target) {
    return Add({.name = std::move(name), .type = '2', .link = std::move(target), .mode = 0777});
  }
  TarBuilder& Bytes(std::string_view bytes) {
    out_ += bytes;
    return *this;
  }
  // With the two zero blocks that end an archive.
  std::string End() const { return out_ + std::string(1024, '\0'); }
  const std::string& Unended() const { return out_; }

  static std::string PaxBody(const std::vector<std::pair<std::string, std::string>>& records) {
    std::string body;
    for (const auto& [key, value] : records) {
      std::string rest = " " + key + "=" + value + "\n";
      size_t length = rest.size() + 1;
      while (std::to_string(length).size() + rest.size() != length) ++length;
      body += std::to_string(length) + rest;
    }
    return body;
  }
  static std::string Header(const TarItem& item) {
    std::string block(512, '\0');
    auto put = [&](size_t at, std::string_view text) { block.replace(at, text.size(), text); };
    auto octal = [&](size_t at, size_t width, unsigned long value) {
      char text[32];
      std::snprintf(text, sizeof(text), "%0*lo", static_cast<int>(width - 1), value);
      put(at, std::string_view(text).substr(0, width - 1));
    };
    put(0, std::string_view(item.name).substr(0, 100));
    octal(100, 8, item.mode);
    octal(108, 8, item.uid);
    octal(116, 8, item.gid);
    octal(124, 12, item.content.size());
    octal(136, 12, static_cast<unsigned long>(item.mtime));
    if (!item.size_field.empty()) put(124, item.size_field);
    block[156] = item.type;
    put(157, std::string_view(item.link).substr(0, 100));
    if (!item.magic.empty()) {
      put(257, item.magic);
      octal(329, 8, item.major);
      octal(337, 8, item.minor);
      put(345, item.prefix);
    }
    Seal(block);
    return block;
  }
  static void Seal(std::string& block) {
    block.replace(148, 8, 8, ' ');
    unsigned sum = 0;
    for (char c : block) sum += static_cast<unsigned char>(c);
    char text[16];
    std::snprintf(text, sizeof(text), "%06o", sum);
    block.replace(148, 7, std::string_view(text, 7));
  }

 private:
  void Raw(const TarItem& item) {
    out_ += Header(item) + item.content;
    out_.resize((out_.size() + 511) / 512 * 512);
  }
  std::string out_;
};

}  // namespace esker::testing
