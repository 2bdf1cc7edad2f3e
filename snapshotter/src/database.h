// Database: RocksDB behind a small door. Column families, keys and values: docs/formats/index.md.
//
// Writes go to the write-ahead log but are not synced one by one: the store is the truth, and
// opening the index compares the two, so a power cut may cost the newest writes (never their order)
// and nothing is lost. A killed process loses none.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class Iterator;
class Status;
class WriteBatch;
}  // namespace rocksdb

namespace esker {

enum class Family : size_t {
  kMeta,
  kPacks,
  kChunks,
  kBlobs,
  kHolders,
  kImages,
  kTags,
  kLayers,
  kLineage,
};
inline constexpr size_t kFamilyCount = 9;

class Database {
 public:
  // Opens or creates; a database that RocksDB finds corrupt, or of another schema, is removed and
  // made anew (the caller fills it from the store; Empty() tells). The caller holds the directory's
  // lock.
  static Result<std::unique_ptr<Database>> Open(const std::string& directory);
  ~Database();

  // Changes that become visible together, or not at all.
  class Batch {
   public:
    explicit Batch(Database& database);
    Batch(Batch&&) noexcept;
    ~Batch();
    void Put(Family family, std::string_view key, std::string_view value);
    void Delete(Family family, std::string_view key);
    size_t bytes() const;

   private:
    friend class Database;
    Database* database_;
    std::unique_ptr<rocksdb::WriteBatch> batch_;
  };
  // Applies the batch and empties it.
  Status Write(Batch& batch);

  Result<std::optional<std::string>> Get(Family family, std::string_view key) const;
  Result<bool> Has(Family family, std::string_view key) const;

  // A view of one family as it was when the cursor was made. The key and value live until the next
  // call.
  class Cursor {
   public:
    Cursor(Cursor&&) noexcept;
    ~Cursor();
    // The first key that is not less than `key`, among those that start with `prefix`.
    void Seek(std::string_view prefix, std::string_view key = {});
    bool Valid() const;  // at a key that starts with the prefix
    void Next();
    std::string_view key() const;
    std::string_view value() const;
    Status status() const;  // why Valid() is false, if it is not the end

   private:
    friend class Database;
    Cursor(std::unique_ptr<rocksdb::Iterator> iterator);
    std::unique_ptr<rocksdb::Iterator> iterator_;
    std::string prefix_;
  };
  Cursor NewCursor(Family family) const;
  // Over the chunks, for seeks by a whole digest only: skips what the prefix filters rule out.
  Cursor NewChunkCursor() const;
  // Visits all entries whose key starts with `prefix`, in order, until `visit` returns false.
  Status Scan(Family family, std::string_view prefix,
              const std::function<bool(std::string_view key, std::string_view value)>& visit) const;

  // Removes everything but the schema.
  Status Clear();

 private:
  explicit Database(std::string directory);
  Status OpenFamilies();
  void Close();
  Status CheckSchema();
  rocksdb::ColumnFamilyHandle* Handle(Family family) const {
    return handles_[static_cast<size_t>(family)];
  }

  std::string directory_;
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kFamilyCount> handles_{};
};

}  // namespace esker
