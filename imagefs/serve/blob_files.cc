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
// A fetch thread that is in one read for this much longer than reads are tried hangs.
constexpr int64_t kStuckNanos = 10'000'000'000;

}  // namespace

BlobFiles::BlobFiles(const BlobFilesOptions& options)
    : options_(options),
      cache_(options.cache_directory, clock_),
      registry_(cache_, counters_),
      packs_(options.store_directory),
      reader_(packs_, counters_, clock_),
      recordings_(registry_, clock_),
      watch_(clock_),
      prefetcher_(registry_, reader_, counters_, gate_),
      fetches_(kFetchThreads, kMaxWaitingReads) {
  cache_.OnAllPresent([this](const BlobId& id) {
    Result<std::shared_ptr<ServedBlob>> blob = registry_.Find(id);
    if (blob.ok() && (*blob)->TakeCompletion()) StartCompletion(*blob);
  });
}

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

Result<std::shared_ptr<ServedBlob>> BlobFiles::FindForRead(uint64_t node) {
  Result<std::shared_ptr<ServedBlob>> found = registry_.FindNode(node);
  if (found.ok()) return found;
  ++counters_.reads;
  ++counters_.errors;
  if (uint64_t suppressed = 0; failures_.Allow(&suppressed)) {
    LogError(
        "blob-not-served",
        {{"node", node}, {"error", found.status().ToString()}, {"not_logged_before", suppressed}});
  }
  return found;
}

void BlobFiles::Read(const FuseReadCall& call, const FuseDevice& device,
                     const ReplyBuffer& buffer) {
  const int64_t came = clock_.MonotonicNanos();
  Result<std::shared_ptr<ServedBlob>> found = FindForRead(call.node);
  if (!found.ok()) return device.ReplyError(call.unique, EIO);
  const std::shared_ptr<ServedBlob>& blob = *found;
  Counters& counters = blob->counters();
  ++counters.reads;
  if (call.offset >= blob->size_bytes() || call.size == 0) {
    return device.ReplyData(call.unique, buffer, 0);
  }
  const size_t size = std::min<uint64_t>(call.size, blob->size_bytes() - call.offset);
  counters.bytes_asked += size;
  blob->NoteRead(call.offset, size, came);
  if (reader_.ReadCached(*blob, call.offset, buffer.payload().first(size))) {
    device.ReplyData(call.unique, buffer, size);
    ++counters.reads_from_cache;
    counters.bytes_from_cache += size;
    counters_.cached_reads.Add(clock_.MonotonicNanos() - came);
    return ReadAhead(blob, call);
  }
  const int64_t deadline = came + options_.retry_deadline_ms * 1'000'000;
  StoreRead read{blob, call, device, came, deadline, nullptr};
  read.pending = watch_.Add(deadline + kWatchGraceNanos, [this, read] {
    FailRead(read, DeadlineExceededError("the store does not answer"));
  });
  gate_.Enter();
  Status queued = fetches_.Submit([this, read] { FetchRead(read); });
  if (!queued.ok()) {
    ReadFromStore(read, buffer);
    gate_.Leave();
  }
  ReadAhead(blob, call);
}

// On a fetch thread.
void BlobFiles::FetchRead(const StoreRead& read) {
  thread_local const size_t number = fetch_threads_seen_++;
  thread_local Result<ReplyBuffer> own = ReplyBuffer::Create(kMaxFuseRead);
  busy_since_[number % kFetchThreads] = clock_.MonotonicNanos();
  if (own.ok()) {
    ReadFromStore(read, *own);
  } else if (read.pending->Claim()) {
    FailRead(read, own.status());
  }
  busy_since_[number % kFetchThreads] = 0;
  gate_.Leave();
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
                 counters_.fetched_reads.Add(clock_.MonotonicNanos() - read.came_nanos);
               });
}

void BlobFiles::ReadAhead(const std::shared_ptr<ServedBlob>& blob, const FuseReadCall& call) {
  if (blob->complete() || !blob->cache_file().Keeps()) return;
  StreamDetector::Ahead ahead = blob->streams().Note(call.offset, call.size);
  ahead.to = std::min(ahead.to, blob->size_bytes());
  if (ahead.from >= ahead.to) return;
  std::shared_ptr<const BlobLayout> layout = blob->layout();
  auto [first, end] = layout->EntriesIn(ahead.from, ahead.to - ahead.from);
  if (first >= end) return;
  prefetcher_.FetchSoon(blob, layout, layout->GroupOf(first), layout->GroupOf(end - 1) + 1);
}

Status BlobFiles::Health() const {
  const int64_t limit = options_.retry_deadline_ms * 1'000'000 + kStuckNanos;
  const int64_t now = clock_.MonotonicNanos();
  for (const auto& since : busy_since_) {
    const int64_t began = since;
    if (began == 0 || now - began < limit) return OkStatus();
  }
  return UnavailableError("all fetch threads hang in the store");
}

// --- the control socket --------------------------------------------------------------------------

BlobServerStats BlobFiles::GetStats(size_t blobs) {
  BlobServerStats stats;
  stats.counts = counters_.Counts();
  stats.cached_reads = counters_.cached_reads.Counts();
  stats.fetched_reads = counters_.fetched_reads.Counts();
  stats.blobs_completed = counters_.blobs_completed;
  stats.uptime_ms = static_cast<uint64_t>((clock_.MonotonicNanos() - started_nanos_) / 1'000'000);
  stats.fetches_in_flight_bytes = counters_.in_flight_bytes;
  stats.prefetched_bytes = counters_.prefetched_bytes;
  stats.prefetches_running = prefetcher_.running();
  stats.readahead_bytes = counters_.readahead_bytes;
  for (const std::shared_ptr<ServedBlob>& blob : registry_.Loaded()) {
    ++stats.blobs_open;
    stats.blobs.push_back(
        {blob->id(), blob->size_bytes(), blob->complete(), blob->counters().Counts()});
  }
  const size_t wanted = std::min(blobs, stats.blobs.size());
  std::partial_sort(stats.blobs.begin(), stats.blobs.begin() + static_cast<ptrdiff_t>(wanted),
                    stats.blobs.end(), [](const BlobStats& a, const BlobStats& b) {
                      return a.counts.bytes_asked > b.counts.bytes_asked;
                    });
  stats.blobs.resize(wanted);
  return stats;
}

Status BlobFiles::StartRecording(const std::string& name, const std::vector<BlobId>& blobs) {
  return recordings_.Start(name, blobs);
}

Result<Recording> BlobFiles::TakeRecording(const std::string& name, bool end) {
  return recordings_.Take(name, end);
}

Result<uint64_t> BlobFiles::Prefetch(const std::string& name,
                                     const std::vector<BlobRanges>& ranges) {
  return prefetcher_.Start(name, ranges);
}

void BlobFiles::CancelPrefetch(const std::string& name) { prefetcher_.Cancel(name); }

// --- failures and completion ---------------------------------------------------------------------

void BlobFiles::FailRead(const StoreRead& read, const Status& status) {
  ++read.blob->counters().errors;
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
  if (!queued.ok()) blob->CompletionEnded();  // a later read tries again
}

void BlobFiles::CompleteBlob(ServedBlob& blob) {
  Status status = blob.cache_file().Complete(*blob.layout(), reader_.stopping());
  if (status.ok()) {
    blob.CompletionEnded();
    ++counters_.blobs_completed;
    LogInfo("blob-complete", {{"blob", blob.id().ToHex()}, {"bytes", blob.size_bytes()}});
    return;
  }
  if (status.code() == Code::kCancelled) return;
  LogWarning("blob-not-completed", {{"blob", blob.id().ToHex()}, {"error", status.ToString()}});
  // Tried again when chunks that were wrong or went meanwhile have been fetched again; not for
  // other reasons, which would only repeat.
  if (status.code() == Code::kDataLoss || status.code() == Code::kAborted) blob.CompletionEnded();
}

}  // namespace esker
