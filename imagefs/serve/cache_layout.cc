#include "imagefs/cache_layout.h"

#include <sys/stat.h>

#include <cerrno>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/log.h"
#include "base/wire.h"

namespace esker {
namespace {

constexpr std::string_view kMagic = "ESKRCSET";
constexpr uint32_t kVersion = 1;
constexpr size_t kMaxSettings = 1u << 20;
constexpr uint32_t kMaxDirectories = 64;

Result<CacheSettings> ParseSettings(std::string_view bytes) {
  WireReader in(bytes);
  CacheSettings settings;
  if (in.GetRaw(kMagic.size()) != kMagic || in.Get<uint32_t>() != kVersion) {
    return DataLossError("not settings of this version");
  }
  const bool has_budget = in.Get<uint8_t>() != 0;
  const uint64_t budget = in.Get<uint64_t>();
  if (has_budget) settings.budget_bytes = budget;
  const uint32_t count = in.GetCount(sizeof(uint32_t));
  for (uint32_t i = 0; i < count && i < kMaxDirectories && in.ok(); ++i) {
    settings.directories.push_back(in.GetString());
  }
  const size_t covered = bytes.size() - in.remaining();
  const uint32_t crc = in.Get<uint32_t>();
  if (!in.ok() || in.remaining() != 0 || crc != Crc32c(bytes.data(), covered)) {
    return DataLossError("damaged settings");
  }
  return settings;
}

}  // namespace

Status CacheLayout::MakeDirectories() const {
  ESKER_RETURN_IF_ERROR(esker::MakeDirectories(MetaDirectory()));
  ESKER_RETURN_IF_ERROR(esker::MakeDirectories(MapDirectory()));
  return esker::MakeDirectories(DataDirectory());
}

bool IsBlobComplete(const CacheLayout& cache, const BlobId& id, uint64_t size_bytes) {
  struct stat status;
  return ::lstat(cache.FullPath(id).c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         static_cast<uint64_t>(status.st_size) == size_bytes;
}

Status SaveCacheSettings(const std::string& home, const CacheSettings& settings) {
  if (settings.directories.size() > kMaxDirectories) {
    return InvalidArgumentError("a cache has at most " + std::to_string(kMaxDirectories) +
                                " directories, not " + std::to_string(settings.directories.size()));
  }
  WireWriter out;
  out.PutRaw(kMagic);
  out.Put<uint32_t>(kVersion);
  out.Put<uint8_t>(settings.budget_bytes.has_value() ? 1 : 0);
  out.Put<uint64_t>(settings.budget_bytes.value_or(0));
  out.Put<uint32_t>(static_cast<uint32_t>(settings.directories.size()));
  for (const std::string& directory : settings.directories) out.PutBytes(directory);
  out.Put<uint32_t>(Crc32c(out.data().data(), out.size()));
  ESKER_FAILPOINT("imagefs.cache.settings");
  return ReplaceFileDurably(CacheLayout{home}.SettingsPath(), out.data());
}

CacheSettings LoadCacheSettings(const std::string& home) {
  const CacheSettings fallback{{home}, std::nullopt};
  const std::string path = CacheLayout{home}.SettingsPath();
  Result<std::string> bytes = ReadFileToString(path, kMaxSettings);
  if (!bytes.ok()) return fallback;
  Result<CacheSettings> settings = ParseSettings(*bytes);
  if (!settings.ok()) {
    LogWarning("cache-settings-ignored", {{"path", path}, {"error", settings.status().ToString()}});
    return fallback;
  }
  if (settings->directories.empty()) settings->directories = {home};
  return *settings;
}

}  // namespace esker
