// Users and groups of the image, from its /etc/passwd and /etc/group. The files belong to the
// sandbox, so they are read in a child with bounds, never by libc (which would load plug-ins).
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace esker {

struct Account {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary, without duplicates
  std::string name;           // "" when passwd has no such uid
  std::string home = "/";
  std::string shell;  // "" when passwd names none
};

class Accounts {
 public:
  static constexpr size_t kFileLimit = 1 << 20;  // bytes of each file that are looked at
  static constexpr size_t kMaxGroups = 1024;

  // From texts in the formats of passwd(5) and group(5); lines that make no sense are passed over.
  Accounts(std::string passwd, std::string group)
      : passwd_(std::move(passwd)), group_(std::move(group)) {}
  // From /etc; a missing, special or unreadable file counts as empty.
  static Accounts Load();

  // "" is uid 0; "name", "uid", "name:group", "uid:gid". A number need not be in the files. With a
  // group given there are no supplementary groups. NOT_FOUND if a name is unknown.
  Result<Account> Resolve(std::string_view user) const;
  // "" if there is none.
  std::string UserName(uid_t uid) const;
  std::string GroupName(gid_t gid) const;

 private:
  std::string passwd_, group_;
};

}  // namespace esker
