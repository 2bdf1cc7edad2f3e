// The file calls themselves, as the user that this process has become. Paths are bytes and seen
// from inside the sandbox; the kernel checks every permission.
#pragma once

#include <string>
#include <unordered_map>

#include "accounts.h"
#include "base/unique_fd.h"
#include "base/wire.h"
#include "executor/init_client.h"

namespace esker {

class FileCall {
 public:
  FileCall(const InitFileRequest& request, Accounts accounts, Account account, int stream,
           int socket);
  // Does it and sends the result.
  void Run();

 private:
  struct Target {  // where an upload goes, once links are resolved
    std::string path, directory, name;
    bool exists = false;
    mode_t mode = 0;
    uid_t uid = 0;
    gid_t gid = 0;
    nlink_t links = 0;
  };

  // Each returns false after Fail().
  bool Stat();
  bool List();
  bool MakeDirectory();
  bool Remove();
  bool Rename();
  bool Read();
  bool Write();

  bool ListDirectory(int fd, const std::string& path, uint32_t depth);
  bool RemoveDirectory(int parent, const std::string& name, const std::string& path, int depth);
  bool RemoveContents(int fd, const std::string& path, int depth);
  bool MakeParents(const std::string& path);
  bool FindTarget(const std::string& path, Target& target);
  // An upload until its commit; with a name only where the file system cannot do without.
  struct Spool {
    UniqueFd fd;
    std::string name;
  };
  bool OpenSpool(int directory, Spool& spool);
  bool WriteSpooled(const Target& target, int directory, Spool& spool);
  bool WriteInPlace(const Target& target, int directory, int from);
  bool CopyFrames(int to, const std::string& path);
  bool ReplaceTarget(const Target& target, int directory, Spool& spool);
  // Until end of file or `limit`; adds what was moved to `moved`.
  bool Copy(int from, int to, uint64_t limit, const std::string& path, uint64_t& moved);

  bool Fail(int error, const std::string& path);
  bool Emit(int directory, const std::string& name, const std::string& path);
  void FlushEntries();
  std::string Absolute(const std::string& path) const;

  const InitFileRequest& request_;
  Accounts accounts_;
  Account account_;
  const int stream_, socket_;
  InitFileResult result_;
  WireWriter entries_;
  uint32_t entry_count_ = 0;
  uint32_t emitted_ = 0;
  int removal_root_ = -1;
  uint32_t flattened_ = 0;
  std::unordered_map<uid_t, std::string> user_names_;
  std::unordered_map<gid_t, std::string> group_names_;
};

}  // namespace esker
