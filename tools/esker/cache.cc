// esker cache ls, prune, verify

#include "cache.h"

#include <charconv>
#include <cstdio>

#include "esker/v1/admin.grpc.pb.h"
#include "output.h"
#include "verbs.h"

namespace esker::cli {
namespace {

std::string Join(const google::protobuf::RepeatedPtrField<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ",") + word;
  return out.empty() ? "-" : out;
}

std::string TimeOf(int64_t ms) {
  if (ms == 0) return "-";
  google::protobuf::Timestamp time;
  time.set_seconds(ms / 1000);
  return HumanTime(time);
}

Status ListCache(const GlobalOptions& options) {
  auto stub = v1::AdminService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  auto reader = stub->ListCache(&context, v1::ListCacheRequest());
  std::vector<std::vector<std::string>> rows = {
      {"BLOB", "CACHED", "SIZE", "STATE", "LAST USED", "IMAGES"}};
  v1::CachedBlob blob;
  uint64_t bytes = 0;
  while (reader->Read(&blob)) {
    if (options.json) PrintJson(blob);
    bytes += blob.cached_bytes();
    std::string state = blob.complete() ? "complete" : "partial";
    if (blob.mounted()) state += ", in use";
    rows.push_back({ShortId(blob.blob()), HumanBytes(blob.cached_bytes()),
                    HumanBytes(blob.size_bytes()), state, TimeOf(blob.last_used_ms()),
                    Join(blob.images())});
  }
  ESKER_RETURN_IF_ERROR(FromGrpc(reader->Finish(), context));
  if (options.json) return OkStatus();
  PrintTable(rows);
  std::printf("%zu blobs, %s\n", rows.size() - 1, HumanBytes(bytes).c_str());
  return OkStatus();
}

// "500", "12K", "3.5G": bytes, in powers of 1024.
Result<uint64_t> ParseSize(const std::string& text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const size_t power = unit.empty() ? 0 : std::string("KMGT").find(unit[0]) + 1;
  const bool known = unit.empty() || unit.size() == 1 || unit.substr(1) == "iB";
  if (error != std::errc() || value < 0 || power > 4 || !known) {
    return InvalidArgumentError("not a size: " + text + "; want a number, with K, M, G or T");
  }
  for (size_t i = 0; i < power; ++i) value *= 1024;
  if (value > 1e18) return InvalidArgumentError("too large: " + text);
  return static_cast<uint64_t>(value);
}

Status PruneCache(const GlobalOptions& options, const std::string& to, bool all,
                  double unused_hours, bool dry_run) {
  if (!all && to.empty() && unused_hours <= 0) {
    return InvalidArgumentError("say what may go: --to SIZE, --unused-for HOURS or --all");
  }
  v1::PruneCacheRequest request;
  request.set_keep_bytes(all ? 0 : UINT64_MAX);
  if (!to.empty()) {
    ESKER_ASSIGN_OR_RETURN(uint64_t bytes, ParseSize(to));
    request.set_keep_bytes(bytes);
  }
  request.set_unused_for_ms(static_cast<int64_t>(unused_hours * 3'600'000));
  request.set_dry_run(dry_run);
  ESKER_ASSIGN_OR_RETURN(v1::PruneCacheResponse response,
                         Connection(options).Call(&v1::AdminService::Stub::PruneCache, request));
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%s %s of %llu blobs; %s %s\n", dry_run ? "would free" : "freed",
                HumanBytes(response.freed_bytes()).c_str(),
                static_cast<unsigned long long>(response.blobs()),
                HumanBytes(response.kept_bytes()).c_str(), dry_run ? "would stay" : "stay");
  }
  return OkStatus();
}

Status VerifyCache(const GlobalOptions& options, const std::vector<std::string>& blobs) {
  auto stub = v1::AdminService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  v1::VerifyCacheRequest request;
  for (const std::string& blob : blobs) request.add_blobs(blob);
  auto reader = stub->VerifyCache(&context, request);
  v1::VerifiedBlob blob;
  uint64_t seen = 0, checked = 0, dropped = 0, failed = 0;
  while (reader->Read(&blob)) {
    ++seen;
    checked += blob.chunks_checked();
    dropped += blob.chunks_dropped();
    failed += blob.error().empty() ? 0 : 1;
    if (options.json) {
      PrintJson(blob);
    } else if (blob.chunks_dropped() > 0 || !blob.error().empty()) {
      std::printf("%s  %llu of %llu chunks wrong, dropped%s%s\n", blob.blob().c_str(),
                  static_cast<unsigned long long>(blob.chunks_dropped()),
                  static_cast<unsigned long long>(blob.chunks_checked()),
                  blob.error().empty() ? "" : "; ", blob.error().c_str());
    }
  }
  ESKER_RETURN_IF_ERROR(FromGrpc(reader->Finish(), context));
  if (options.json) return OkStatus();
  std::printf("%llu blobs, %llu chunks checked, %llu wrong and dropped, %llu blobs not checked\n",
              static_cast<unsigned long long>(seen), static_cast<unsigned long long>(checked),
              static_cast<unsigned long long>(dropped), static_cast<unsigned long long>(failed));
  return OkStatus();
}

}  // namespace

void AddCache(CLI::App& app, GlobalOptions& options, Chosen& chosen) {
  struct Arguments {
    std::string to;
    bool all = false, dry_run = false;
    double unused_hours = 0;
    std::vector<std::string> blobs;
  };
  auto args = std::make_shared<Arguments>();
  CLI::App* cache = app.add_subcommand("cache", "the image cache of the node");
  cache->require_subcommand(1);
  cache->add_subcommand("ls", "what it holds")->callback(Choose(options, chosen, [&options] {
    return ListCache(options);
  }));
  CLI::App* prune = cache->add_subcommand("prune", "drop what was used longest ago");
  prune->add_option("--to", args->to, "until so much is left: bytes, or with K, M, G, T");
  prune->add_option("--unused-for", args->unused_hours, "what was not used for so many hours");
  prune->add_flag("--all", args->all, "all that is not in use");
  prune->add_flag("--dry-run", args->dry_run, "only say what would go");
  prune->callback(Choose(options, chosen, [=, &options] {
    return PruneCache(options, args->to, args->all, args->unused_hours, args->dry_run);
  }));
  CLI::App* verify =
      cache->add_subcommand("verify", "read all of it, compare digests, drop what is wrong");
  verify->add_option("blob", args->blobs, "blob ids (default: all)");
  verify->callback(
      Choose(options, chosen, [=, &options] { return VerifyCache(options, args->blobs); }));
}

}  // namespace esker::cli
