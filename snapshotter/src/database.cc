#include "database.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <utility>
#include <vector>

#include "base/io.h"
#include "base/log.h"

namespace esker {
namespace {

constexpr std::string_view kSchemaKey = "schema";
constexpr std::string_view kSchema = "2";
constexpr size_t kDigestBytes = 32;
constexpr std::array<const char*, kFamilyCount> kFamilyNames = {
    "meta", "packs", "chunks", "blobs", "holders", "images", "tags", "layers", "lineage"};

rocksdb::Slice ToSlice(std::string_view bytes) { return {bytes.data(), bytes.size()}; }
std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// The one translation from RocksDB's errors to ours.
Status Translate(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return OkStatus();
  std::string message = what + ": " + status.ToString();
  if (status.IsNoSpace()) return ResourceExhaustedError(message + "; free some space there");
  if (status.IsCorruption()) return DataLossError(message + "; the index can be rebuilt");
  if (status.IsNotFound()) return NotFoundError(message);
  if (status.IsInvalidArgument()) return InternalError(message);
  return UnavailableError(message);
}

rocksdb::DBOptions MakeDbOptions() {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.db_write_buffer_size = 32u << 20;  // of all families together
  options.max_total_wal_size = 64u << 20;
  options.max_open_files = 128;
  options.max_background_jobs = 2;
  options.keep_log_file_num = 2;
  options.max_log_file_size = 4u << 20;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

rocksdb::ColumnFamilyOptions MakeFamilyOptions(Family family,
                                               const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = family == Family::kChunks ? 16u << 20 : 4u << 20;
  options.max_write_buffer_number = 2;
  options.compression = rocksdb::kNoCompression;  // digests do not shrink
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.cache_index_and_filter_blocks = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  if (family == Family::kChunks) {
    // Lookups know the digest and not the pack; most chunks of a new layer are not there at all.
    options.prefix_extractor.reset(rocksdb::NewFixedPrefixTransform(kDigestBytes));
    options.memtable_prefix_bloom_size_ratio = 0.1;
  }
  return options;
}

}  // namespace

Result<std::unique_ptr<Database>> Database::Open(const std::string& directory) {
  ESKER_RETURN_IF_ERROR(MakeDirectories(directory));
  std::unique_ptr<Database> database(new Database(directory));
  Status status = database->OpenFamilies();
  if (status.ok()) status = database->CheckSchema();
  if (status.ok() || status.code() != Code::kDataLoss) {
    if (!status.ok()) return status;
    return database;
  }
  LogWarning("index_database_made_anew", {{"directory", directory}, {"why", status.message()}});
  database->Close();
  ESKER_RETURN_IF_ERROR(
      Translate(rocksdb::DestroyDB(directory, rocksdb::Options()), "remove " + directory));
  ESKER_RETURN_IF_ERROR(database->OpenFamilies());
  ESKER_RETURN_IF_ERROR(database->CheckSchema());
  return database;
}

Database::Database(std::string directory) : directory_(std::move(directory)) {}

Status Database::OpenFamilies() {
  std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(32u << 20);
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  descriptors.emplace_back(rocksdb::kDefaultColumnFamilyName,
                           MakeFamilyOptions(Family::kMeta, cache));
  for (size_t i = 0; i < kFamilyCount; ++i) {
    descriptors.emplace_back(kFamilyNames[i], MakeFamilyOptions(static_cast<Family>(i), cache));
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  rocksdb::Status status =
      rocksdb::DB::Open(MakeDbOptions(), directory_, descriptors, &handles, &db);
  if (status.IsInvalidArgument()) {
    // Families that this version does not know: another schema.
    return DataLossError("open the index database " + directory_ + ": " + status.ToString());
  }
  ESKER_RETURN_IF_ERROR(Translate(status, "open the index database " + directory_));
  db_.reset(db);
  ESKER_RETURN_IF_ERROR(
      Translate(db_->DestroyColumnFamilyHandle(handles[0]), "release the default family"));
  for (size_t i = 0; i < kFamilyCount; ++i) handles_[i] = handles[i + 1];
  return OkStatus();
}

void Database::Close() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle*& handle : handles_) {
    // Fails only for a handle of another database.
    if (handle != nullptr) (void)db_->DestroyColumnFamilyHandle(std::exchange(handle, nullptr));
  }
  (void)db_->Close();  // what did not reach the disk is found again in the store
  db_.reset();
}

Database::~Database() { Close(); }

Status Database::CheckSchema() {
  ESKER_ASSIGN_OR_RETURN(std::optional<std::string> schema, Get(Family::kMeta, kSchemaKey));
  if (schema == kSchema) return OkStatus();
  if (schema) {
    return DataLossError("index database " + directory_ + " has schema " + *schema +
                         ", this version writes " + std::string(kSchema));
  }
  Batch batch(*this);
  batch.Put(Family::kMeta, kSchemaKey, kSchema);
  return Write(batch);
}

Database::Batch::Batch(Database& database)
    : database_(&database), batch_(std::make_unique<rocksdb::WriteBatch>()) {}
Database::Batch::Batch(Batch&&) noexcept = default;
Database::Batch::~Batch() = default;

// The batch's own functions fail only beyond its size limit, which we do not set.
void Database::Batch::Put(Family family, std::string_view key, std::string_view value) {
  (void)batch_->Put(database_->Handle(family), ToSlice(key), ToSlice(value));
}
void Database::Batch::Delete(Family family, std::string_view key) {
  (void)batch_->Delete(database_->Handle(family), ToSlice(key));
}
size_t Database::Batch::bytes() const { return batch_->GetDataSize(); }

Status Database::Write(Batch& batch) {
  rocksdb::Status status = db_->Write(rocksdb::WriteOptions(), batch.batch_.get());
  batch.batch_->Clear();
  return Translate(status, "write to the index database " + directory_);
}

Result<std::optional<std::string>> Database::Get(Family family, std::string_view key) const {
  std::string value;
  rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), Handle(family), ToSlice(key), &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  ESKER_RETURN_IF_ERROR(Translate(status, "read the index database " + directory_));
  return std::optional<std::string>(std::move(value));
}

Result<bool> Database::Has(Family family, std::string_view key) const {
  rocksdb::PinnableSlice value;
  rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), Handle(family), ToSlice(key), &value);
  if (status.IsNotFound()) return false;
  ESKER_RETURN_IF_ERROR(Translate(status, "read the index database " + directory_));
  return true;
}

Database::Cursor::Cursor(std::unique_ptr<rocksdb::Iterator> iterator)
    : iterator_(std::move(iterator)) {}
Database::Cursor::Cursor(Cursor&&) noexcept = default;
Database::Cursor::~Cursor() = default;

void Database::Cursor::Seek(std::string_view prefix, std::string_view key) {
  prefix_ = prefix;
  iterator_->Seek(ToSlice(key.empty() ? prefix : key));
}
bool Database::Cursor::Valid() const {
  return iterator_->Valid() && ToView(iterator_->key()).starts_with(prefix_);
}
void Database::Cursor::Next() { iterator_->Next(); }
std::string_view Database::Cursor::key() const { return ToView(iterator_->key()); }
std::string_view Database::Cursor::value() const { return ToView(iterator_->value()); }
Status Database::Cursor::status() const {
  return Translate(iterator_->status(), "read the index database");
}

Database::Cursor Database::NewCursor(Family family) const {
  rocksdb::ReadOptions options;
  options.total_order_seek = true;
  return Cursor(std::unique_ptr<rocksdb::Iterator>(db_->NewIterator(options, Handle(family))));
}

Database::Cursor Database::NewChunkCursor() const {
  rocksdb::ReadOptions options;
  options.prefix_same_as_start = true;
  return Cursor(
      std::unique_ptr<rocksdb::Iterator>(db_->NewIterator(options, Handle(Family::kChunks))));
}

Status Database::Scan(Family family, std::string_view prefix,
                      const std::function<bool(std::string_view, std::string_view)>& visit) const {
  Cursor cursor = NewCursor(family);
  for (cursor.Seek(prefix); cursor.Valid(); cursor.Next()) {
    if (!visit(cursor.key(), cursor.value())) return OkStatus();
  }
  return cursor.status();
}

Status Database::Clear() {
  // Every key is shorter than this and starts below it or is a prefix of it.
  const std::string end(128, '\xff');
  for (size_t i = 0; i < kFamilyCount; ++i) {
    ESKER_RETURN_IF_ERROR(
        Translate(db_->DeleteRange(rocksdb::WriteOptions(), handles_[i], rocksdb::Slice(), end),
                  "clear the index database " + directory_));
  }
  return CheckSchema();
}

}  // namespace esker
