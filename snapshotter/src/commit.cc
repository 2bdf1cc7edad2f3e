// Commit: what changed in a sandbox becomes one more layer and a new image, in one file.
#include <dirent.h>
#include <fcntl.h>

#include <ctime>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/id.h"
#include "base/io.h"
#include "base/scope_guard.h"
#include "snapshotter/push.h"

namespace esker {
namespace {

constexpr int kAttempts = 3;
constexpr size_t kMaxLayers = 500;  // as in Manifest::FromJson and the kernel's overlayfs

// RFC 3339 in UTC, with nanoseconds.
std::string FormatTime(int64_t wall_ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  std::time_t seconds = static_cast<std::time_t>(wall_ns / kSecond);
  std::tm parts;
  ::gmtime_r(&seconds, &parts);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &parts);
  char text[64];
  std::snprintf(text, sizeof(text), "%s.%09lldZ", date, static_cast<long long>(wall_ns % kSecond));
  return text;
}

Result<bool> IsEmptyDirectory(int dirfd) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFileAt(dirfd, ".", O_RDONLY | O_DIRECTORY));
  DIR* directory = ::fdopendir(fd.get());
  if (directory == nullptr) return ErrnoError("list the upper directory");
  fd.release();
  ScopeGuard close([&] { ::closedir(directory); });
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") return false;
  }
  if (errno != 0) return ErrnoError("list the upper directory");
  return true;
}

Manifest SnapshotManifest(const ImageRecord& parent, const CommitRequest& request) {
  Manifest manifest;
  manifest.kind = "snapshot";
  manifest.tier = request.tier;
  manifest.layers = parent.manifest.layers;
  manifest.config = parent.manifest.config;
  if (!request.config_env.empty()) manifest.config.env = request.config_env;
  manifest.parent = parent.id.ToHex();
  manifest.origin = request.origin;
  manifest.origin.try_emplace("created", FormatTime(Clock::System().WallNanos()));
  // Two snapshots of the same state are two images: one can be deleted without the other.
  manifest.origin["snapshot"] = RandomId("snap");
  return manifest;
}

Result<CommitResult> CommitLayer(Store& store, Index& index, const CommitRequest& request,
                                 const ImportOptions& options, Manifest manifest) {
  std::unique_ptr<ImportSession> session = index.StartImport();
  CommitResult result;
  auto with_manifest = [&](const ImageLayer& layer) {
    manifest.layers.push_back(layer);
    std::string json = manifest.ToJson();
    result.image = ImageId{Sha256::Of(json)};
    return std::optional<std::string>(std::move(json));
  };
  ESKER_ASSIGN_OR_RETURN(ImportedLayer imported,
                         ImportDirectory(request.upper_fd, DirectoryKind::kOverlayUpper, store,
                                         *session, options, with_manifest));
  // Durable now. A crash from here on leaves a complete image that the next start finds.
  ESKER_FAILPOINT("commit.published");
  ESKER_RETURN_IF_ERROR(session->RegisterPack(imported.pack));
  ESKER_FAILPOINT("commit.registered");
  result.totals = imported.totals;
  return result;
}

}  // namespace

Result<CommitResult> CommitUpper(Store& store, Index& index, const CommitRequest& request,
                                 const ImportOptions& options) {
  const std::string what = "commit on image " + request.parent.ToHex();
  // Until the child exists nothing else keeps the parent's layers, should it be deleted now.
  Result<std::unique_ptr<Lease>> lease = index.LeaseImage(request.parent, "commit");
  if (!lease.ok()) return std::move(lease).status().Wrap(what);
  Result<ImageRecord> parent = index.GetImage(request.parent);
  if (!parent.ok()) return std::move(parent).status().Wrap(what);
  Manifest manifest = SnapshotManifest(*parent, request);
  Result<bool> empty = IsEmptyDirectory(request.upper_fd);
  if (!empty.ok()) return std::move(empty).status().Wrap(what);
  if (*empty) {
    CommitResult result;
    Result<ImageId> id = index.PublishImage(manifest);
    if (!id.ok()) return std::move(id).status().Wrap(what);
    result.image = *id;
    return result;
  }
  if (manifest.layers.size() >= kMaxLayers) {
    return ResourceExhaustedError(what + ": it has " + std::to_string(manifest.layers.size()) +
                                  " layers, and an image can have no more");
  }
  for (int attempt = 1;; ++attempt) {
    Result<CommitResult> result = CommitLayer(store, index, request, options, manifest);
    if (result.ok()) return result;
    // The index lost the import (it started again), or collected the very same pack: the upper is
    // still there to be read again.
    if (result.status().code() != Code::kAborted || attempt == kAttempts) {
      return std::move(result).status().Wrap(what);
    }
  }
}

}  // namespace esker
