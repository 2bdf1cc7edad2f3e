#include "presence_map.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/io.h"
#include "base/wire.h"

namespace esker {
namespace {

constexpr std::string_view kMagic = "ESKRPRES";
constexpr uint32_t kVersion = 1;

std::string Header(const BlobId& id, uint32_t chunk_count) {
  WireWriter out;
  out.PutRaw(kMagic);
  out.Put<uint32_t>(kVersion);
  out.Put<uint32_t>(chunk_count);
  out.PutDigest(id.digest);
  out.Put<uint32_t>(Crc32c(out.data().data(), out.size()));
  return out.Take();
}

}  // namespace

PresenceMap::PresenceMap(const std::string& path, const BlobId& id, uint32_t chunk_count)
    : states_(chunk_count), bits_((chunk_count + 7) / 8) {
  for (auto& state : states_) state.store(Presence::kAbsent, std::memory_order_relaxed);
  file_status_ = LoadFile(path, Header(id, chunk_count));
  if (!file_status_.ok()) {
    file_.reset();
    std::fill(bits_.begin(), bits_.end(), 0);
  }
  for (uint32_t i = 0; i < chunk_count; ++i) {
    if ((bits_[i / 8] >> (i % 8) & 1) == 0) continue;
    states_[i].store(Presence::kRecorded, std::memory_order_relaxed);
    ++present_;
  }
}

PresenceMap::PresenceMap(uint32_t chunk_count)
    : states_(chunk_count), present_(chunk_count), bits_((chunk_count + 7) / 8, 0xff) {
  for (auto& state : states_) state.store(Presence::kRecorded, std::memory_order_relaxed);
}

Status PresenceMap::LoadFile(const std::string& path, const std::string& header) {
  ESKER_ASSIGN_OR_RETURN(file_, OpenFile(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW));
  struct stat status;
  if (::fstat(file_.get(), &status) != 0) return ErrnoError("stat " + path);
  std::string found(header.size(), '\0');
  const uint64_t want = header.size() + bits_.size();
  if (static_cast<uint64_t>(status.st_size) == want) {
    ESKER_RETURN_IF_ERROR(PReadExact(file_.get(), found.data(), found.size(), 0, path));
    if (found == header) {
      used_ms_ = status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec / 1'000'000;
      return PReadExact(file_.get(), bits_.data(), bits_.size(), header.size(), path);
    }
  }
  // Missing, another version's, or damaged: it knows nothing.
  if (::ftruncate(file_.get(), 0) != 0) return ErrnoError("empty " + path);
  ESKER_RETURN_IF_ERROR(PWriteFull(file_.get(), bits_.data(), bits_.size(), header.size()));
  return PWriteFull(file_.get(), header.data(), header.size(), 0);
}

void PresenceMap::SetVerified(uint32_t chunk) { Change(chunk, Presence::kVerified); }
void PresenceMap::Clear(uint32_t chunk) { Change(chunk, Presence::kAbsent); }
void PresenceMap::ClearAll() {
  for (uint32_t i = 0; i < chunk_count(); ++i) Clear(i);
}

void PresenceMap::Prove(uint32_t chunk) {
  Presence recorded = Presence::kRecorded;
  (void)states_[chunk].compare_exchange_strong(recorded, Presence::kVerified);
}

void PresenceMap::DistrustAll() {
  for (auto& state : states_) {
    Presence verified = Presence::kVerified;
    (void)state.compare_exchange_strong(verified, Presence::kRecorded);
  }
}

void PresenceMap::RecordUse(int64_t wall_ms) {
  std::lock_guard lock(mutex_);
  if (!file_.valid()) return;
  const timespec time{wall_ms / 1000, wall_ms % 1000 * 1'000'000};
  const timespec times[2] = {time, time};
  (void)::futimens(file_.get(), times);  // a hint
}

void PresenceMap::Change(uint32_t chunk, Presence to) {
  std::lock_guard lock(mutex_);
  Presence from = states_[chunk].exchange(to, std::memory_order_acq_rel);
  const bool was = from != Presence::kAbsent, is = to != Presence::kAbsent;
  if (was == is) return;
  is ? ++present_ : --present_;
  bits_[chunk / 8] ^= static_cast<uint8_t>(1u << (chunk % 8));
  if (!file_.valid()) return;
  // One byte straight into the page cache: it survives a SIGKILL of this process. Header length is
  // that of an all-zero id.
  static const size_t header_size = Header({}, 0).size();
  Status written = PWriteFull(file_.get(), &bits_[chunk / 8], 1, header_size + chunk / 8);
  if (!written.ok()) file_.reset();  // from here on in memory only
}

}  // namespace esker
