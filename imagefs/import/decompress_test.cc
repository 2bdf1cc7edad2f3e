#include "decompress.h"

#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include "byte_source.h"
#include "testing/import_fixture.h"

namespace esker {
namespace {

using testing::StringSource;

// Text that compresses, with long runs and far references.
std::string Sample(size_t size) {
  std::string out;
  uint32_t state = 1;
  while (out.size() < size) {
    state = state * 1664525 + 1013904223;
    out += "line " + std::to_string(state % 997) + std::string(state % 50, 'x') + "\n";
  }
  out.resize(size);
  return out;
}

std::string Gzip(const std::string& plain, gz_header* header = nullptr, int level = 6) {
  z_stream stream = {};
  EXPECT_EQ(::deflateInit2(&stream, level, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
            Z_OK);
  if (header != nullptr) {
    EXPECT_EQ(::deflateSetHeader(&stream, header), Z_OK);
  }
  std::string out(::deflateBound(&stream, plain.size()) + 70'000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& plain) {
  std::string out(ZSTD_compressBound(plain.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), plain.data(), plain.size(), 3));
  return out;
}

std::string Skippable(char kind, const std::string& content) {
  std::string out = {kind, 0x2a, 0x4d, 0x18};
  for (int i = 0; i < 4; ++i) out += static_cast<char>(content.size() >> (8 * i));
  return out + content;
}

std::string Xz(const std::string& plain) {
  std::string out(plain.size() + 1000, '\0');
  size_t size = 0;
  EXPECT_EQ(::lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr,
                                      reinterpret_cast<const uint8_t*>(plain.data()), plain.size(),
                                      reinterpret_cast<uint8_t*>(out.data()), &size, out.size()),
            LZMA_OK);
  out.resize(size);
  return out;
}

// Reads in pieces of `piece` bytes from a source that gives at most `step`.
Result<std::string> Plain(std::string_view bytes, size_t step = SIZE_MAX, size_t piece = 100'000) {
  StringSource source(bytes, step);
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> plain, import_internal::Decompress(source));
  std::string out;
  std::string buffer(piece, '\0');
  for (;;) {
    ESKER_ASSIGN_OR_RETURN(size_t n, plain->Read(buffer.data(), buffer.size()));
    if (n == 0) return out;
    out.append(buffer, 0, n);
  }
}

void ExpectPlain(std::string_view bytes, const std::string& plain) {
  for (size_t step : {size_t{1}, size_t{7}, SIZE_MAX}) {
    for (size_t piece : {size_t{1}, size_t{512}, size_t{1} << 20}) {
      if (step == 1 && piece == 1 && plain.size() > 100'000) continue;
      Result<std::string> got = Plain(bytes, step, piece);
      ASSERT_TRUE(got.ok()) << got.status().ToString() << " step " << step << " piece " << piece;
      EXPECT_TRUE(*got == plain) << "step " << step << " piece " << piece;
    }
  }
}

TEST(DecompressTest, EveryFormatByItsContent) {
  const std::string plain = Sample(300'000);
  for (int level : {0, 1, 6, 9}) ExpectPlain(Gzip(plain, nullptr, level), plain);
  ExpectPlain(Zstd(plain), plain);
  ExpectPlain(Xz(plain), plain);
  ExpectPlain(plain, plain);
  for (const std::string& empty : {Gzip(""), Zstd(""), Xz(""), std::string()}) {
    ExpectPlain(empty, "");
  }
}

TEST(DecompressTest, SeveralMembersAndTrailingZeros) {
  const std::string a = Sample(70'000), b = "b", c = Sample(3000);
  const std::string zeros(700, '\0');
  ExpectPlain(Gzip(a) + Gzip("") + Gzip(b) + Gzip(c) + zeros, a + b + c);
  ExpectPlain(Gzip(a) + zeros, a);
  ExpectPlain(Zstd(a) + Zstd(b) + Skippable(0x50, "table of contents") + Zstd(c) +
                  Skippable(0x5f, std::string(5000, 't')),
              a + b + c);
  ExpectPlain(Skippable(0x50, "in front, as pzstd writes it") + Zstd(a), a);
  ExpectPlain(Xz(a) + Xz(b), a + b);
  // Many tiny members: what a decoder has read ahead must not be lost.
  std::string members, plain;
  for (int i = 0; i < 300; ++i) {
    plain += std::to_string(i);
    members += Gzip(std::to_string(i));
  }
  ExpectPlain(members, plain);
}

TEST(DecompressTest, EstargzEndsWithAnEmptyMemberThatHasAnExtraField) {
  const std::string plain = Sample(20'000);
  gz_header header = {};
  std::string extra(
      "SG\x16\x00"
      "0000000000004000STARGZ",
      26);
  header.extra = reinterpret_cast<Bytef*>(extra.data());
  header.extra_len = static_cast<uInt>(extra.size());
  ExpectPlain(Gzip(plain) + Gzip("", &header, 0), plain);
}

TEST(DecompressTest, GzipHeadersOfEveryKind) {
  const std::string plain = Sample(5000);
  std::string extra(60'000, 'e'), name = "layer.tar", comment(3000, 'c');
  for (int flags = 0; flags < 16; ++flags) {
    gz_header header = {};
    if (flags & 1) {
      header.extra = reinterpret_cast<Bytef*>(extra.data());
      header.extra_len = static_cast<uInt>(extra.size());
    }
    if (flags & 2) header.name = reinterpret_cast<Bytef*>(name.data());
    if (flags & 4) header.comment = reinterpret_cast<Bytef*>(comment.data());
    header.hcrc = (flags & 8) != 0;
    const std::string gzip = Gzip(plain, &header);
    ExpectPlain(gzip, plain);
    if (header.hcrc) {  // a wrong time is found by the header's own checksum
      std::string wrong = gzip;
      wrong[4] ^= 1;
      ESKER_EXPECT_CODE(Plain(wrong).status(), Code::kDataLoss);
    }
  }
}

TEST(DecompressTest, CutOffAnywhereIsDataLoss) {
  const std::string plain = Sample(3000);
  for (const std::string& whole :
       {Gzip(plain), Zstd(plain), Xz(plain), Gzip("a") + Gzip(plain), Zstd("a") + Zstd(plain)}) {
    const size_t first = whole.starts_with(Gzip("a"))   ? Gzip("a").size()
                         : whole.starts_with(Zstd("a")) ? Zstd("a").size()
                                                        : 0;
    for (size_t cut = 8; cut < whole.size(); ++cut) {
      if (cut == first) continue;  // a whole member
      Result<std::string> got = Plain(std::string_view(whole).substr(0, cut));
      ASSERT_FALSE(got.ok()) << cut << " of " << whole.size();
      ESKER_EXPECT_CODE(got.status(), Code::kDataLoss);
    }
  }
}

TEST(DecompressTest, DamageAnywhereIsDataLoss) {
  const std::string plain = Sample(3000);
  for (const std::string& whole : {Gzip(plain), Xz(plain)}) {
    // From the first byte that a checksum covers; the gzip header's time and system are not.
    for (size_t at = 10; at < whole.size(); ++at) {
      std::string wrong = whole;
      wrong[at] ^= 0x10;
      Result<std::string> got = Plain(wrong);
      ASSERT_FALSE(got.ok()) << at << " of " << whole.size();
      ESKER_EXPECT_CODE(got.status(), Code::kDataLoss);
    }
  }
  ESKER_EXPECT_CODE(Plain(Gzip(plain) + "junk").status(), Code::kDataLoss);
  ESKER_EXPECT_CODE(Plain(Zstd(plain) + "junk").status(), Code::kDataLoss);
}

}  // namespace
}  // namespace esker
