#include "accounts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>

#include "base/unique_fd.h"

namespace esker {
namespace {

// Takes the part up to `separator` off the front of `rest`.
std::string_view Next(std::string_view& rest, char separator) {
  std::string_view part = rest.substr(0, rest.find(separator));
  rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  return part;
}

// Ids as the kernel takes them: -1 means "leave as it is" there, so it is no id.
std::optional<uint32_t> ParseId(std::string_view text) {
  uint32_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == UINT32_MAX) {
    return std::nullopt;
  }
  return value;
}

struct PasswdLine {
  std::string_view name, home, shell;
  uid_t uid;
  gid_t gid;
};

std::optional<PasswdLine> ParsePasswd(std::string_view line) {
  std::array<std::string_view, 7> fields;
  for (std::string_view& field : fields) field = Next(line, ':');
  std::optional<uint32_t> uid = ParseId(fields[2]);
  std::optional<uint32_t> gid = ParseId(fields[3]);
  if (fields[0].empty() || !uid || !gid) return std::nullopt;
  return PasswdLine{fields[0], fields[5], fields[6], *uid, *gid};
}

struct GroupLine {
  std::string_view name, members;
  gid_t gid;
};

std::optional<GroupLine> ParseGroup(std::string_view line) {
  std::array<std::string_view, 4> fields;
  for (std::string_view& field : fields) field = Next(line, ':');
  std::optional<uint32_t> gid = ParseId(fields[2]);
  if (fields[0].empty() || !gid) return std::nullopt;
  return GroupLine{fields[0], fields[3], *gid};
}

template <typename Line, typename Parse, typename Match>
std::optional<Line> FindLine(std::string_view text, Parse parse, Match match) {
  while (!text.empty()) {
    std::optional<Line> line = parse(Next(text, '\n'));
    if (line && match(*line)) return line;
  }
  return std::nullopt;
}

bool HasMember(std::string_view members, std::string_view name) {
  while (!members.empty()) {
    if (Next(members, ',') == name) return true;
  }
  return false;
}

std::string ReadBounded(const char* path) {
  // O_NONBLOCK: the image may have put a FIFO here.
  UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat st;
  if (!fd.valid() || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) return "";
  std::string out;
  char buffer[4096];
  while (out.size() < Accounts::kFileLimit) {
    ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    out.append(buffer, static_cast<size_t>(n));
  }
  return out;
}

}  // namespace

Accounts Accounts::Load() {
  return Accounts(ReadBounded("/etc/passwd"), ReadBounded("/etc/group"));
}

Result<Account> Accounts::Resolve(std::string_view user) const {
  std::string_view group = user;
  std::string_view name = Next(group, ':');
  bool with_group = name.size() < user.size();
  Account account;
  std::optional<uint32_t> number = name.empty() ? 0 : ParseId(name);
  auto line = FindLine<PasswdLine>(passwd_, ParsePasswd,
                                   [&](const PasswdLine& l) { return l.name == name; });
  if (!line && number) {
    line = FindLine<PasswdLine>(passwd_, ParsePasswd,
                                [&](const PasswdLine& l) { return l.uid == *number; });
  }
  if (line) {
    account.uid = line->uid;
    account.gid = line->gid;
    account.name = line->name;
    if (!line->home.empty()) account.home = line->home;
    account.shell = line->shell;
  } else if (number) {
    account.uid = *number;
  } else {
    return NotFoundError("user \"" + std::string(name) + "\" is not in the image's /etc/passwd");
  }
  if (with_group) {
    auto found = FindLine<GroupLine>(group_, ParseGroup,
                                     [&](const GroupLine& l) { return l.name == group; });
    std::optional<uint32_t> gid = found ? std::optional(found->gid) : ParseId(group);
    if (!gid) {
      return NotFoundError("group \"" + std::string(group) + "\" is not in the image's /etc/group");
    }
    account.gid = *gid;
    return account;
  }
  std::string_view rest = group_;
  while (!rest.empty() && !account.name.empty() && account.groups.size() < kMaxGroups) {
    std::optional<GroupLine> each = ParseGroup(Next(rest, '\n'));
    if (!each || each->gid == account.gid || !HasMember(each->members, account.name)) continue;
    if (std::find(account.groups.begin(), account.groups.end(), each->gid) ==
        account.groups.end()) {
      account.groups.push_back(each->gid);
    }
  }
  return account;
}

std::string Accounts::UserName(uid_t uid) const {
  auto line =
      FindLine<PasswdLine>(passwd_, ParsePasswd, [&](const PasswdLine& l) { return l.uid == uid; });
  return line ? std::string(line->name) : "";
}

std::string Accounts::GroupName(gid_t gid) const {
  auto line =
      FindLine<GroupLine>(group_, ParseGroup, [&](const GroupLine& l) { return l.gid == gid; });
  return line ? std::string(line->name) : "";
}

}  // namespace esker
