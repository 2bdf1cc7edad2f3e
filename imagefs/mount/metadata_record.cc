#include "metadata_record.h"

#include <sys/stat.h>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/wire.h"

namespace esker {
namespace {

constexpr std::string_view kMagic = "ESKRMETA";
// Grows also when the validator learns to refuse more: older images are then validated again.
constexpr uint32_t kVersion = 1;

}  // namespace

std::string MetadataRecordPath(const CacheLayout& cache, const BlobId& id) {
  return cache.MetaDirectory() + "/" + id.ToHex() + ".valid";
}

Status SaveMetadataRecord(const CacheLayout& cache, const MetadataRecord& record) {
  WireWriter out;
  out.PutRaw(kMagic);
  out.Put<uint32_t>(kVersion);
  out.PutDigest(record.id.digest);
  out.Put<uint64_t>(record.metadata_bytes);
  out.Put<uint64_t>(record.data_device_bytes);
  out.Put<uint32_t>(Crc32c(out.data().data(), out.size()));
  ESKER_FAILPOINT("imagefs.cache.record_metadata");
  return ReplaceFileDurably(MetadataRecordPath(cache, record.id), out.data());
}

Result<MetadataRecord> LoadMetadataRecord(const CacheLayout& cache, const BlobId& id) {
  const std::string path = MetadataRecordPath(cache, id);
  ESKER_ASSIGN_OR_RETURN(std::string bytes, ReadFileToString(path, 4096));
  WireReader in(bytes);
  const bool magic = in.GetRaw(kMagic.size()) == kMagic;
  const bool version = in.Get<uint32_t>() == kVersion;
  MetadataRecord record;
  record.id.digest = in.GetDigest();
  record.metadata_bytes = in.Get<uint64_t>();
  record.data_device_bytes = in.Get<uint64_t>();
  const uint32_t checksum = in.Get<uint32_t>();
  ESKER_RETURN_IF_ERROR(in.Finish(path));
  if (!magic || !version || record.id != id ||
      checksum != Crc32c(bytes.data(), bytes.size() - sizeof(checksum))) {
    return DataLossError(path + " is damaged or of another version");
  }
  struct stat status;
  if (::lstat(cache.MetaPath(id).c_str(), &status) != 0) {
    return ErrnoError("stat " + cache.MetaPath(id));
  }
  if (!S_ISREG(status.st_mode) || static_cast<uint64_t>(status.st_size) != record.metadata_bytes) {
    return DataLossError(cache.MetaPath(id) + " has another size than was validated");
  }
  return record;
}

}  // namespace esker
