#include "blob_files.h"

#include <algorithm>
#include <cerrno>

#include "base/log.h"

namespace esker {
namespace {

// Requests that may wait for a fetch thread. The kernel itself bounds them by its readers; beyond
// this they are served on the session's thread, which is how the kernel is made to wait.
constexpr size_t kMaxWaitingReads = 65536;
// A read that retries ends itself at its deadline; only one that hangs is ended by the watch, this
// much later.
constexpr int64_t kWatchGraceNanos = 2'000'000'000;

}  // namespace

BlobFiles::BlobFiles(const BlobFilesOptions& options)
    : options_(options),
      registry_(options.cache, health_),
      packs_(options.store_directory),
      reader_(packs_, counters_, clock_),
      watch_(clock_),
      fetches_(static_cast<size_t>(options.fetch_threads), kMaxWaitingReads) {}

BlobFiles::~BlobFiles() { Stop(); }

Result<FuseFileAttributes> BlobFiles::Lookup(std::string_view name) {
  Result<BlobId> id = BlobId::FromHex(name);
  if (!id.ok()) return NotFoundError("not a blob id");
  Result<std::shared_ptr<ServedBlob>> blob = registry_.Find(*id);
  if (!blob.ok()) {
    if (blob.status().code() != Code::kNotFound) {
      if (uint64_t suppressed = 0; failures_.Allow(&suppressed)) {
        LogError("blob-not-served", {{"blob", id->ToHex()},
                                     {"error", blob.status().ToString()},
                                     {"not_logged_before", suppressed}});
      }
    }
    return std::move(blob).status();
  }
  if ((*blob)->TakeCompletion()) StartCompletion(*blob);
  return FuseFileAttributes{NodeOf(*id), (*blob)->size_bytes()};
}

Result<FuseFileAttributes> BlobFiles::Stat(uint64_t node) {
  ESKER_ASSIGN_OR_RETURN(std::shared_ptr<ServedBlob> blob, registry_.FindNode(node));
  return FuseFileAttributes{node, blob->size_bytes()};
}

std::vector<FuseFiles::Name> BlobFiles::List() {
  std::vector<Name> names;
  for (const BlobId& id : registry_.List()) names.push_back({id.ToHex(), NodeOf(id)});
  return names;
}

void BlobFiles::Read(const FuseReadCall& call, const FuseDevice& device,
                     const ReplyBuffer& buffer) {
  ++counters_.reads;
  Result<std::shared_ptr<ServedBlob>> found = registry_.FindNode(call.node);
  if (!found.ok()) {
    ++counters_.errors;
    if (uint64_t suppressed = 0; failures_.Allow(&suppressed)) {
      LogError("blob-not-served", {{"node", call.node},
                                   {"error", found.status().ToString()},
                                   {"not_logged_before", suppressed}});
    }
    return device.ReplyError(call.unique, EIO);
  }
  const std::shared_ptr<ServedBlob>& blob = *found;
  if (call.offset >= blob->size_bytes() || call.size == 0) {
    return device.ReplyData(call.unique, buffer, 0);
  }
  const size_t size = std::min<uint64_t>(call.size, blob->size_bytes() - call.offset);
  counters_.bytes_asked += size;
  if (reader_.ReadCached(*blob, call.offset, buffer.payload().first(size))) {
    ++counters_.reads_from_cache;
    return device.ReplyData(call.unique, buffer, size);
  }
  const int64_t deadline = clock_.MonotonicNanos() + options_.retry_deadline_ms * 1'000'000;
  StoreRead read{blob, call, device, deadline, nullptr};
  read.pending = watch_.Add(deadline + kWatchGraceNanos, [this, read] {
    FailRead(read, DeadlineExceededError("the store does not answer"));
  });
  Status queued = fetches_.Submit([this, read] {
    thread_local Result<ReplyBuffer> own = ReplyBuffer::Create(kMaxFuseRead);
    if (own.ok()) return ReadFromStore(read, *own);
    if (read.pending->Claim()) FailRead(read, own.status());
  });
  if (!queued.ok()) ReadFromStore(read, buffer);
}

void BlobFiles::ReadFromStore(const StoreRead& read, const ReplyBuffer& buffer) {
  // Waited too long for a thread: its answer has been given.
  if (reader_.stopping() || read.pending->claimed()) return;
  const FuseReadCall& call = read.call;
  const size_t size = std::min<uint64_t>(call.size, read.blob->size_bytes() - call.offset);
  reader_.Read(*read.blob, call.offset, buffer.payload().first(size), read.deadline_nanos,
               [&](const Status& status) {
                 if (status.code() == Code::kCancelled || !read.pending->Claim()) return;
                 if (!status.ok()) return FailRead(read, status);
                 read.device.ReplyData(call.unique, buffer, size);
               });
  if (read.blob->TakeCompletion()) StartCompletion(read.blob);
}

void BlobFiles::FailRead(const StoreRead& read, const Status& status) {
  ++counters_.errors;
  if (uint64_t suppressed = 0; failures_.Allow(&suppressed)) {
    LogError("read-failed", {{"blob", read.blob->id().ToHex()},
                             {"offset", read.call.offset},
                             {"size", read.call.size},
                             {"error", status.ToString()},
                             {"not_logged_before", suppressed}});
  }
  read.device.ReplyError(read.call.unique, EIO);
}

void BlobFiles::StartCompletion(const std::shared_ptr<ServedBlob>& blob) {
  Status queued = completions_.Submit([this, blob] { CompleteBlob(*blob); });
  if (!queued.ok()) blob->CompletionFailed();  // a later read tries again
}

void BlobFiles::CompleteBlob(ServedBlob& blob) {
  Status status = blob.cache_file().Complete(*blob.layout(), reader_.stopping());
  if (status.ok()) {
    blob.SetComplete();
    ++counters_.blobs_completed;
    LogInfo("blob-complete", {{"blob", blob.id().ToHex()}, {"bytes", blob.size_bytes()}});
    return;
  }
  if (status.code() == Code::kCancelled) return;
  LogWarning("blob-not-completed", {{"blob", blob.id().ToHex()}, {"error", status.ToString()}});
  // Tried again when a chunk that was wrong has been fetched again; not for other reasons, which
  // would only repeat.
  if (status.code() == Code::kDataLoss) blob.CompletionFailed();
}

}  // namespace esker
