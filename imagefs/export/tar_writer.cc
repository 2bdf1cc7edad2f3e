#include "tar_writer.h"

#include <algorithm>
#include <cstdio>

namespace esker::export_internal {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kMaxName = 100;
constexpr uint64_t kMaxOctal7 = (1u << 21) - 1;
constexpr uint64_t kMaxOctal11 = (uint64_t{1} << 33) - 1;

class PaxRecords {
 public:
  void Add(std::string_view key, std::string_view value) {
    const size_t rest = key.size() + value.size() + 3;  // blank, '=', newline
    size_t length = rest + 1;
    while (std::to_string(length).size() + rest != length) ++length;
    body_ += std::to_string(length);
    body_ += ' ';
    body_ += key;
    body_ += '=';
    body_ += value;
    body_ += '\n';
  }
  const std::string& body() const { return body_; }

 private:
  std::string body_;
};

std::string TimeText(int64_t seconds, uint32_t nanos) {
  if (nanos == 0) return std::to_string(seconds);
  // Seconds round down; in decimal a time before the epoch counts the other way.
  const bool negative = seconds < 0;
  const uint64_t whole =
      negative ? static_cast<uint64_t>(-(seconds + 1)) : static_cast<uint64_t>(seconds);
  char fraction[16];
  std::snprintf(fraction, sizeof(fraction), "%09u", negative ? 1'000'000'000 - nanos : nanos);
  std::string text = (negative ? "-" : "") + std::to_string(whole) + "." + fraction;
  while (text.ends_with('0')) text.pop_back();
  return text;
}

// Bytes as LIBARCHIVE.xattr writes them, for names that a PAX key cannot hold.
std::string Base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k <= n; ++k) out += kDigits[group >> (18 - 6 * k) & 63];
  }
  return out;
}

std::string UrlEncode(std::string_view name) {
  std::string out;
  for (char c : name) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte > 32 && byte < 127 && c != '=' && c != '%') {
      out += c;
    } else {
      char text[8];
      std::snprintf(text, sizeof(text), "%%%02X", byte);
      out += text;
    }
  }
  return out;
}

void AddXattr(const std::string& name, const std::string& value, PaxRecords& records) {
  if (name.find('=') == std::string::npos) {
    records.Add("SCHILY.xattr." + name, value);
  } else {
    records.Add("LIBARCHIVE.xattr." + UrlEncode(name), Base64(value));
  }
}

std::string BaseName(const std::string& path) {
  std::string name = path;
  while (name.ends_with('/')) name.pop_back();
  return name.substr(name.rfind('/') + 1);
}

std::string Header(char type, std::string_view name, std::string_view link, const TarMember& m,
                   uint64_t size) {
  std::string block(kBlock, '\0');
  auto put = [&](size_t at, std::string_view text) { block.replace(at, text.size(), text); };
  auto octal = [&](size_t at, int digits, uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof(text), "%0*llo", digits, static_cast<unsigned long long>(value));
    put(at, text);
  };
  // What does not fit stands in the extended header; zero or a cut name stands here.
  auto fits = [](uint64_t value, uint64_t most) { return value <= most ? value : 0; };
  const auto mtime = static_cast<uint64_t>(std::max<int64_t>(0, m.mtime_seconds));
  put(0, name.substr(0, kMaxName));
  octal(100, 7, m.mode & 07777);
  octal(108, 7, fits(m.uid, kMaxOctal7));
  octal(116, 7, fits(m.gid, kMaxOctal7));
  octal(124, 11, fits(size, kMaxOctal11));
  octal(136, 11, fits(mtime, kMaxOctal11));
  put(148, "        ");
  block[156] = type;
  put(157, link.substr(0, kMaxName));
  put(257, std::string_view("ustar\00000", 8));
  octal(329, 7, m.device_major);
  octal(337, 7, m.device_minor);
  unsigned sum = 0;
  for (char c : block) sum += static_cast<uint8_t>(c);
  char text[16];
  std::snprintf(text, sizeof(text), "%06o", sum & 0777777);
  put(148, std::string_view(text, 7));  // with its NUL; the blank stays
  return block;
}

std::string SparseMap(const TarMember& m) {
  std::string map = std::to_string(m.runs.size()) + "\n";
  for (const auto& [offset, length] : m.runs) {
    map += std::to_string(offset) + "\n" + std::to_string(length) + "\n";
  }
  map.resize((map.size() + kBlock - 1) / kBlock * kBlock, '\0');
  return map;
}

PaxRecords RecordsFor(const TarMember& m, uint64_t stored) {
  PaxRecords records;
  if (m.sparse) {
    records.Add("GNU.sparse.major", "1");
    records.Add("GNU.sparse.minor", "0");
    records.Add("GNU.sparse.name", m.path);
    records.Add("GNU.sparse.realsize", std::to_string(m.size));
  } else if (m.path.size() > kMaxName) {
    records.Add("path", m.path);
  }
  if (m.link_target.size() > kMaxName) records.Add("linkpath", m.link_target);
  if (m.uid > kMaxOctal7) records.Add("uid", std::to_string(m.uid));
  if (m.gid > kMaxOctal7) records.Add("gid", std::to_string(m.gid));
  if (stored > kMaxOctal11) records.Add("size", std::to_string(stored));
  if (m.mtime_nanos != 0 || m.mtime_seconds < 0 ||
      static_cast<uint64_t>(m.mtime_seconds) > kMaxOctal11) {
    records.Add("mtime", TimeText(m.mtime_seconds, m.mtime_nanos));
  }
  for (const auto& [name, value] : m.xattrs) AddXattr(name, value, records);
  return records;
}

}  // namespace

Status TarWriter::Begin(const TarMember& m) {
  std::string map;
  uint64_t stored = m.type == '0' ? m.size : 0;
  if (m.sparse) {
    map = SparseMap(m);
    stored = map.size();
    for (const auto& [offset, length] : m.runs) stored += length;
  }
  const PaxRecords records = RecordsFor(m, stored);
  const std::string name = m.sparse ? "GNUSparseFile.0/" + BaseName(m.path) : m.path;
  if (!records.body().empty()) {
    TarMember extended;
    extended.mode = 0644;
    ESKER_RETURN_IF_ERROR(Write(
        Header('x', "PaxHeaders.0/" + BaseName(m.path), "", extended, records.body().size())));
    ESKER_RETURN_IF_ERROR(Write(records.body()));
    ESKER_RETURN_IF_ERROR(Pad());
  }
  ESKER_RETURN_IF_ERROR(Write(Header(m.type, name, m.link_target, m, stored)));
  return map.empty() ? OkStatus() : Write(map);
}

Status TarWriter::Write(std::string_view bytes) {
  at_ += bytes.size();
  return sink_(bytes);
}

Status TarWriter::Pad() {
  static constexpr char kZeros[kBlock] = {};
  const size_t over = at_ % kBlock;
  return over == 0 ? OkStatus() : Write({kZeros, kBlock - over});
}

Status TarWriter::EndContent() { return Pad(); }

Status TarWriter::End() { return Write(std::string(2 * kBlock, '\0')); }

}  // namespace esker::export_internal
