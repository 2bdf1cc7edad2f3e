#include "imagefs/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/id.h"
#include "base/io.h"
#include "base/log.h"
#include "base/scope_guard.h"
#include "link_publish.h"

namespace esker {
namespace {

using store_internal::LinkOutcome;

constexpr std::string_view kFormat = "esker-store 1\n";
constexpr size_t kMaxFormatBytes = 256;
constexpr std::string_view kDirectories[] = {"packs", "records", "owner", "tmp"};
constexpr std::string_view kPackSuffix = ".pack";

std::string PackDirectory(const PackId& id) { return "packs/" + id.ToHex().substr(0, 2); }
std::string PackName(const PackId& id) { return id.ToHex() + std::string(kPackSuffix); }
std::string PackPath(const PackId& id) { return PackDirectory(id) + "/" + PackName(id); }

Result<UniqueFd> OpenRoot(const std::string& path) {
  Result<UniqueFd> root = OpenFile(path, O_RDONLY | O_DIRECTORY);
  if (!root.ok()) return std::move(root).status().Wrap("open the store");
  return root;
}

Status CheckFormat(int root, const std::string& path) {
  Result<std::string> format = store_internal::ReadSmallFileAt(root, "format", kMaxFormatBytes);
  if (!format.ok()) {
    if (format.status().code() == Code::kNotFound) {
      return FailedPreconditionError(path + " is not a store: it has no file \"format\"");
    }
    return std::move(format).status().Wrap("store " + path);
  }
  if (*format == kFormat) return OkStatus();
  std::string found = format->substr(0, format->find('\n'));
  return FailedPreconditionError("store " + path + " has format \"" + found +
                                 "\"; this version reads \"esker-store 1\"");
}

// A store directory that was half made (a crash in Initialise) may hold our directories only.
Status CheckOnlyOurNames(int root, const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, store_internal::ListAt(root, "."));
  for (const std::string& name : names) {
    bool ours = name == "lost+found";
    for (std::string_view directory : kDirectories) ours = ours || name == directory;
    if (!ours) {
      return FailedPreconditionError(path + " is not a store and not empty: it holds \"" + name +
                                     "\"; choose an empty directory");
    }
  }
  return OkStatus();
}

// Reads both files from where they stand to their ends.
bool SameContent(int a, int b) {
  constexpr size_t kStep = 256u << 10;
  std::string left(kStep, '\0'), right(kStep, '\0');
  for (;;) {
    Result<size_t> n = ReadFull(a, left.data(), kStep);
    Result<size_t> m = ReadFull(b, right.data(), kStep);
    if (!n.ok() || !m.ok() || *n != *m) return false;
    if (std::string_view(left).substr(0, *n) != std::string_view(right).substr(0, *m)) return false;
    if (*n < kStep) return true;
  }
}

}  // namespace

Status Store::Initialise(const std::string& path) {
  ESKER_RETURN_IF_ERROR(MakeDirectories(path).Wrap("make the store " + path));
  ESKER_ASSIGN_OR_RETURN(UniqueFd root, OpenRoot(path));
  Status format = CheckFormat(root.get(), path);
  if (format.ok()) return OkStatus();
  if (::faccessat(root.get(), "format", F_OK, 0) == 0) return format;
  ESKER_RETURN_IF_ERROR(CheckOnlyOurNames(root.get(), path));
  for (std::string_view directory : kDirectories) {
    ESKER_RETURN_IF_ERROR(store_internal::MakeDirectoryAt(root.get(), std::string(directory))
                              .Wrap("make the store " + path));
  }
  ESKER_FAILPOINT("store.initialise.before_format");
  ESKER_ASSIGN_OR_RETURN(std::string temporary,
                         store_internal::WriteTemporary(root.get(), kFormat));
  ScopeGuard remove([&] { ::unlinkat(root.get(), temporary.c_str(), 0); });
  bool made = false;
  ESKER_ASSIGN_OR_RETURN(
      LinkOutcome outcome,
      store_internal::LinkDurably(root.get(), temporary, ".", "format", "store.initialise", &made));
  (void)outcome;  // another process may have initialised it at the same time: the same result
  std::filesystem::path parent = std::filesystem::path(path).parent_path();
  ESKER_RETURN_IF_ERROR(FsyncDirectory(parent.empty() ? "." : parent.string()));
  return CheckFormat(root.get(), path);
}

Result<std::unique_ptr<Store>> Store::Open(const std::string& path) {
  Result<UniqueFd> root = OpenRoot(path);
  if (!root.ok()) {
    if (root.status().code() == Code::kNotFound) {
      return FailedPreconditionError(path + " is not a store: there is no such directory");
    }
    return std::move(root).status();
  }
  ESKER_RETURN_IF_ERROR(CheckFormat(root->get(), path));
  return std::unique_ptr<Store>(new Store(path, std::move(*root)));
}

Result<Store::Temporary> Store::NewTemporary() {
  Temporary temporary;
  temporary.name = RandomId();
  Result<UniqueFd> fd =
      OpenFileAt(root_.get(), "tmp/" + temporary.name, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (!fd.ok()) return std::move(fd).status().Wrap("make a temporary file in the store " + path_);
  temporary.fd = std::move(*fd);
  return temporary;
}

Status Store::DiscardTemporary(Temporary temporary) {
  temporary.fd.reset();
  std::string path = "tmp/" + temporary.name;
  if (::unlinkat(root_.get(), path.c_str(), 0) != 0 && errno != ENOENT) {
    return ErrnoError("remove " + path_ + "/" + path);
  }
  return OkStatus();
}

Status Store::PublishPack(Temporary temporary, const PackId& id) {
  const std::string source = "tmp/" + temporary.name;
  const std::string what = "publish pack " + id.ToHex() + " in the store " + path_;
  ScopeGuard remove([&] { ::unlinkat(root_.get(), source.c_str(), 0); });
  ESKER_FAILPOINT("store.publish.before_fsync");
  if (::fsync(temporary.fd.get()) != 0) return ErrnoError(what + ": fsync");
  // Some network file systems report a failed write only here.
  if (::close(temporary.fd.release()) != 0) return ErrnoError(what + ": close");
  bool made = false;
  Result<LinkOutcome> outcome = store_internal::LinkDurably(root_.get(), source, PackDirectory(id),
                                                            PackName(id), "store.publish", &made);
  if (!outcome.ok()) return std::move(outcome).status().Wrap(what);
  // The directory's own name may be unsynced still, also if somebody else made it: sync it once.
  std::atomic<bool>& durable = prefix_durable_[id.digest.bytes[0]];
  if (made || !durable.load()) {
    ESKER_RETURN_IF_ERROR(store_internal::FsyncDirectoryAt(root_.get(), "packs").Wrap(what));
    durable.store(true);
  }
  if (*outcome == LinkOutcome::kExists) {
    ESKER_ASSIGN_OR_RETURN(UniqueFd ours, store_internal::OpenRegularAt(root_.get(), source));
    ESKER_ASSIGN_OR_RETURN(UniqueFd theirs, OpenPack(id));
    if (!SameContent(ours.get(), theirs.get())) {
      return DataLossError(what + ": a file of that name holds other bytes; it is damaged and " +
                           "must be removed before this pack can be stored");
    }
  }
  ESKER_FAILPOINT("store.publish.before_unlink");
  return OkStatus();
}

Result<UniqueFd> Store::OpenPack(const PackId& id) const {
  Result<UniqueFd> fd = store_internal::OpenRegularAt(root_.get(), PackPath(id));
  if (!fd.ok()) return std::move(fd).status().Wrap("store " + path_);
  return fd;
}

Result<UniqueFd> Store::AwaitPack(const PackId& id, int64_t deadline_ns) const {
  constexpr auto kFirstPause = std::chrono::milliseconds(20);
  constexpr auto kLongestPause = std::chrono::milliseconds(1000);
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    Result<UniqueFd> fd = OpenPack(id);
    if (fd.ok() || fd.status().code() != Code::kNotFound) return fd;
    if (Clock::System().MonotonicNanos() >= deadline_ns) {
      return std::move(fd).status().Wrap(
          "a pack that the index knows is not visible on this machine, after the time in which "
          "the store must show new names");
    }
    std::this_thread::sleep_for(pause);
  }
}

Result<std::vector<PackId>> Store::ListPacks() const {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> prefixes,
                         store_internal::ListAt(root_.get(), "packs"));
  std::vector<PackId> packs;
  for (const std::string& prefix : prefixes) {
    Result<std::vector<std::string>> names = store_internal::ListAt(root_.get(), "packs/" + prefix);
    if (!names.ok()) {
      // Only what is no directory at all may be skipped: a pack that is not listed counts as gone.
      if (prefix.size() == 2 && HexDecode(prefix).ok()) return std::move(names).status();
      LogWarning("store_foreign_name_ignored", {{"path", path_ + "/packs/" + prefix}});
      continue;
    }
    for (const std::string& name : *names) {
      Result<PackId> id = PackId::FromHex(std::string_view(name).substr(0, 64));
      if (!id.ok() || PackPath(*id) != "packs/" + prefix + "/" + name) {
        LogWarning("store_foreign_name_ignored",
                   {{"path", path_ + "/packs/" + prefix + "/" + name}});
        continue;
      }
      packs.push_back(*id);
    }
  }
  return packs;
}

Status Store::RemovePack(const PackId& id) {
  std::string path = PackPath(id);
  if (::unlinkat(root_.get(), path.c_str(), 0) != 0) {
    if (errno == ENOENT) return OkStatus();
    return ErrnoError("remove " + path_ + "/" + path);
  }
  return OkStatus();
}

Result<int64_t> Store::StoreSeconds() {
  // Clocks of machines differ: the store's own clock is what a file made there just now shows.
  ESKER_ASSIGN_OR_RETURN(Temporary probe, NewTemporary());
  struct stat now;
  int failed = ::fstat(probe.fd.get(), &now);
  Status status = failed ? ErrnoError("stat a new file in " + path_ + "/tmp") : OkStatus();
  ESKER_RETURN_IF_ERROR(DiscardTemporary(std::move(probe)));
  ESKER_RETURN_IF_ERROR(status);
  return int64_t{now.st_mtim.tv_sec};
}

Status Store::SweepTemporaries(int64_t older_than_seconds) {
  ESKER_ASSIGN_OR_RETURN(int64_t now, StoreSeconds());
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names,
                         store_internal::ListAt(root_.get(), "tmp"));
  for (const std::string& name : names) {
    std::string path = "tmp/" + name;
    struct stat status;
    if (::fstatat(root_.get(), path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (now - status.st_mtim.tv_sec < older_than_seconds) continue;
    if (::unlinkat(root_.get(), path.c_str(), 0) != 0 && errno != ENOENT) {
      return ErrnoError("remove " + path_ + "/" + path);
    }
  }
  return OkStatus();
}

}  // namespace esker
