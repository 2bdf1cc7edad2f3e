#include "gateway/keys.h"

#include <sys/stat.h>

#include <sstream>

#include "base/id.h"
#include "base/io.h"

namespace esker {
namespace {

Result<ApiKey> ParseLine(const std::string& line, const std::string& where) {
  std::istringstream words(line);
  std::string name, hex, project, role, rest;
  words >> name >> hex >> project >> role >> rest;
  if (role.empty() || !rest.empty() || (role != "user" && role != "admin")) {
    return InvalidArgumentError(where + ": want `name digest project user|admin`");
  }
  ApiKey key;
  key.name = name;
  key.project = project;
  key.admin = role == "admin";
  ESKER_ASSIGN_OR_RETURN(key.digest, Digest::FromHex(hex));
  return key;
}

}  // namespace

Status KeyFile::Reload() {
  struct stat st;
  if (::stat(path_.c_str(), &st) != 0) {
    keys_.clear();
    loaded_inode_ = 0;
    return errno == ENOENT ? OkStatus() : ErrnoError("stat " + path_);
  }
  int64_t mtime = int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
  if (mtime == loaded_mtime_ns_ && st.st_ino == loaded_inode_) return OkStatus();
  ESKER_ASSIGN_OR_RETURN(std::string text, ReadFileToString(path_));
  std::vector<ApiKey> keys;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    ESKER_ASSIGN_OR_RETURN(ApiKey key, ParseLine(line, path_ + ":" + std::to_string(number)));
    keys.push_back(std::move(key));
  }
  keys_ = std::move(keys);
  loaded_mtime_ns_ = mtime;
  loaded_inode_ = st.st_ino;
  return OkStatus();
}

Status KeyFile::Save(const std::vector<ApiKey>& keys) const {
  std::string text;
  for (const ApiKey& key : keys) {
    text += key.name + " " + key.digest.ToHex() + " " + key.project + " " +
            (key.admin ? "admin" : "user") + "\n";
  }
  return ReplaceFileDurably(path_, text);
}

Result<ApiKey> KeyFile::Find(std::string_view secret) {
  // Comparing digests leaks nothing useful about secrets of 100 random bits.
  Digest digest = Sha256::Of(secret);
  std::lock_guard lock(mutex_);
  ESKER_RETURN_IF_ERROR(Reload());
  for (const ApiKey& key : keys_) {
    if (key.digest == digest) return key;
  }
  return UnauthenticatedError("the API key is not known to this server");
}

Result<std::vector<ApiKey>> KeyFile::List() {
  std::lock_guard lock(mutex_);
  ESKER_RETURN_IF_ERROR(Reload());
  return keys_;
}

Result<std::string> KeyFile::Create(const std::string& name, const std::string& project,
                                    bool admin) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("key name", name));
  if (project != "*") ESKER_RETURN_IF_ERROR(CheckIdentifier("project", project));
  if (admin && project != "*") {
    return InvalidArgumentError(
        "an administrator's key is one of all projects: make it without a project");
  }
  std::lock_guard lock(mutex_);
  ESKER_RETURN_IF_ERROR(Reload());
  for (const ApiKey& key : keys_) {
    if (key.name == name) return AlreadyExistsError("there is a key named " + name + " already");
  }
  std::string secret = "esk_" + RandomId() + RandomId();
  std::vector<ApiKey> keys = keys_;
  keys.push_back({name, Sha256::Of(secret), project, admin});
  ESKER_RETURN_IF_ERROR(Save(keys));
  return secret;
}

Result<bool> KeyFile::Remove(const std::string& name) {
  std::lock_guard lock(mutex_);
  ESKER_RETURN_IF_ERROR(Reload());
  std::vector<ApiKey> keys = keys_;
  if (std::erase_if(keys, [&](const ApiKey& key) { return key.name == name; }) == 0) return false;
  ESKER_RETURN_IF_ERROR(Save(keys));
  return true;
}

}  // namespace esker
