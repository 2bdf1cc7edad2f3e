#include "pax_records.h"

#include <array>
#include <charconv>

namespace esker::import_internal {
namespace {

bool ParseAll(std::string_view text, uint64_t& out) {
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  return ec == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool IsDigits(std::string_view text) {
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

Result<PaxRecords> ParsePaxRecords(std::string_view body) {
  PaxRecords records;
  while (!body.empty()) {
    size_t space = body.find(' ');
    uint64_t length = 0;
    // The length counts itself, its space and the newline.
    if (space == body.npos || space > 20 || !ParseAll(body.substr(0, space), length) ||
        length > body.size() || length < space + 3 || body[length - 1] != '\n') {
      return DataLossError("a record of an extended header is malformed");
    }
    std::string_view record = body.substr(space + 1, length - space - 2);
    size_t equals = record.find('=');
    if (equals == record.npos || equals == 0) {
      return DataLossError("a record of an extended header has no key");
    }
    records.emplace_back(record.substr(0, equals), record.substr(equals + 1));
    body.remove_prefix(length);
  }
  return records;
}

Result<PaxTime> ParsePaxTime(std::string_view text) {
  const std::string whole(text);
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  size_t dot = text.find('.');
  std::string_view fraction = dot == text.npos ? "" : text.substr(dot + 1);
  uint64_t seconds = 0;
  if (!ParseAll(text.substr(0, dot), seconds) || seconds > uint64_t{1} << 62 ||
      !IsDigits(fraction)) {
    return DataLossError("\"" + whole + "\" is not a time");
  }
  uint32_t nanos = 0;
  for (size_t i = 0; i < 9; ++i) {
    nanos = nanos * 10 + (i < fraction.size() ? static_cast<uint32_t>(fraction[i] - '0') : 0);
  }
  PaxTime time = {static_cast<int64_t>(seconds), nanos};
  if (negative) {
    time.seconds = -time.seconds;
    if (nanos != 0) time = {time.seconds - 1, 1'000'000'000 - nanos};
  }
  return time;
}

Result<int64_t> ParsePaxNumber(std::string_view text) {
  int64_t value = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) {
    return DataLossError("\"" + std::string(text) + "\" is not a number");
  }
  return value;
}

Result<std::string> DecodeUrl(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned value = 0;
    std::string_view digits = text.substr(i + 1, 2);
    auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 2 || ec != std::errc() || end != digits.data() + 2) {
      return DataLossError("\"" + std::string(text) + "\" is not URL-encoded");
    }
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

Result<std::string> DecodeBase64(std::string_view text) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    size_t value = kAlphabet.find(c);
    if (value == kAlphabet.npos) return DataLossError("a value is not base64");
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xff);
    }
  }
  return out;
}

}  // namespace esker::import_internal
