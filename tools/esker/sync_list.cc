#include "sync_list.h"

#include <map>

namespace esker::cli {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::string_view WithoutComment(std::string_view line) {
  for (size_t at = line.find('#'); at != line.npos; at = line.find('#', at + 1)) {
    if (at == 0 || kBlanks.find(line[at - 1]) != kBlanks.npos) return line.substr(0, at);
  }
  return line;
}

}  // namespace

Result<std::vector<SyncLine>> ParseSyncList(std::string_view text) {
  std::vector<SyncLine> out;
  std::map<std::string, size_t> names;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = Trim(WithoutComment(text.substr(0, end)));
    text = end == text.npos ? "" : text.substr(end + 1);
    if (line.empty()) continue;
    const std::string where = "line " + std::to_string(number);
    const size_t blank = line.find_last_of(kBlanks);
    if (blank == line.npos) return InvalidArgumentError(where + ": want SOURCE NAME[:TAG]");
    SyncLine one = {number, std::string(Trim(line.substr(0, blank))),
                    std::string(line.substr(blank + 1))};
    const size_t colon = one.name.rfind(':');
    if (colon == std::string::npos || one.name.find('/', colon) != std::string::npos) {
      one.name += ":latest";
    }
    auto [first, is_new] = names.emplace(one.name, number);
    if (!is_new) {
      return InvalidArgumentError(where + ": line " + std::to_string(first->second) +
                                  " gives the name " + one.name + " too");
    }
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace esker::cli
