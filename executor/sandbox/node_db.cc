#include "node_db.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

namespace esker {
namespace {

Status FromRocks(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return OkStatus();
  std::string message = std::string(what) + ": " + status.ToString();
  if (status.IsNotFound()) return NotFoundError(std::move(message));
  if (status.IsCorruption()) return DataLossError(std::move(message));
  if (status.IsNoSpace()) return ResourceExhaustedError(std::move(message));
  if (status.IsIOError() && message.find("lock") != std::string::npos) {
    return FailedPreconditionError(std::move(message) + " (another node uses this directory)");
  }
  return UnavailableError(std::move(message));
}

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

}  // namespace

struct NodeDb::Impl {
  std::string directory;
  std::unique_ptr<rocksdb::DB> db;
};

NodeDb::NodeDb(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeDb::~NodeDb() = default;

Result<std::unique_ptr<NodeDb>> NodeDb::Open(const std::string& directory) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  options.write_buffer_size = 8u << 20;
  options.max_background_jobs = 2;
  options.max_open_files = 128;
  options.keep_log_file_num = 2;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  options.compression = rocksdb::kNoCompression;
  auto impl = std::make_unique<Impl>();
  impl->directory = directory;
  rocksdb::DB* db = nullptr;
  ESKER_RETURN_IF_ERROR(FromRocks(rocksdb::DB::Open(options, directory, &db),
                                  "open the node's database " + directory));
  impl->db.reset(db);
  return std::unique_ptr<NodeDb>(new NodeDb(std::move(impl)));
}

Status NodeDb::Write(const DbBatch& batch, Durability durability) {
  rocksdb::WriteBatch writes;
  for (const auto& [key, value] : batch.changes_) {
    rocksdb::Status status = value ? writes.Put(key, *value) : writes.Delete(key);
    ESKER_RETURN_IF_ERROR(FromRocks(status, "prepare a write to the node's database"));
  }
  rocksdb::WriteOptions options;
  options.sync = durability == Durability::kSynced;
  return FromRocks(impl_->db->Write(options, &writes),
                   "write to the node's database " + impl_->directory);
}

Result<std::optional<std::string>> NodeDb::Get(const std::string& key) const {
  std::string value;
  rocksdb::Status status = impl_->db->Get(rocksdb::ReadOptions(), key, &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  ESKER_RETURN_IF_ERROR(FromRocks(status, "read the node's database"));
  return std::optional<std::string>(std::move(value));
}

Status NodeDb::Scan(
    std::string_view prefix,
    const std::function<Status(std::string_view, std::string_view)>& callback) const {
  std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator(rocksdb::ReadOptions()));
  for (it->Seek(ToSlice(prefix)); it->Valid() && it->key().starts_with(ToSlice(prefix));
       it->Next()) {
    ESKER_RETURN_IF_ERROR(callback(ToView(it->key()), ToView(it->value())));
  }
  return FromRocks(it->status(), "scan the node's database");
}

DbWriter::DbWriter(NodeDb& db) : db_(db), thread_([this] { Run(); }) {}

DbWriter::~DbWriter() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void DbWriter::Submit(std::function<void(DbBatch&)> prepare, std::function<void(Status)> done) {
  {
    std::lock_guard lock(mutex_);
    items_.push_back({std::move(prepare), std::move(done)});
  }
  wake_.notify_one();
}

void DbWriter::Run() {
  for (;;) {
    std::vector<Item> items;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !items_.empty(); });
      if (items_.empty()) return;
      items.swap(items_);
    }
    DbBatch batch;
    for (Item& item : items) item.prepare(batch);
    Status status =
        batch.empty() ? OkStatus() : db_.Write(batch, NodeDb::Durability::kSurvivesProcess);
    for (Item& item : items) {
      if (item.done) item.done(status);
    }
  }
}

}  // namespace esker
