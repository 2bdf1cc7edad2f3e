#include "mounts.h"

#include <array>
#include <vector>

namespace esker {
namespace {

constexpr std::array kControllers = {"memory", "pids", "cpu", "cpuacct"};

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (;;) {
    size_t end = text.find(separator);
    out.push_back(text.substr(0, end));
    if (end == text.npos) return out;
    text.remove_prefix(end + 1);
  }
}

// mountinfo writes blanks, tabs, newlines and backslashes as three octal digits.
std::string Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    auto octal = [&](size_t k) { return k < text.size() && text[k] >= '0' && text[k] <= '7'; };
    if (text[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

CgroupMounts ParseCgroupMounts(std::string_view mountinfo) {
  CgroupMounts out;
  for (std::string_view line : Split(mountinfo, '\n')) {
    // "id parent maj:min root mountpoint options optional... - fstype source superoptions"
    std::vector<std::string_view> fields = Split(line, ' ');
    size_t dash = 6;
    while (dash < fields.size() && fields[dash] != "-") ++dash;
    if (dash + 3 >= fields.size()) continue;
    std::string_view type = fields[dash + 1];
    std::string point = Unescape(fields[4]);
    if (type == "cgroup2") {
      if (out.unified.empty()) out.unified = point;
    } else if (type == "cgroup") {
      for (std::string_view option : Split(fields[dash + 3], ',')) {
        for (std::string_view controller : kControllers) {
          if (option == controller) out.v1.emplace(controller, point);
        }
      }
    }
  }
  return out;
}

}  // namespace esker
