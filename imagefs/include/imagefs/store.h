// The store: a directory on a shared POSIX file system, written once and published by link().
//
// Layout (docs/formats/store.md):
//   format                     version record; a store of another version is refused
//   packs/<2 hex>/<64 hex>.pack
//   records/<space>/<name>/<n> numbered immutable records (tags, image tombstones)
//   owner/<epoch>              claims of the one index
//   tmp/                       unpublished files; swept by garbage collection when old
// Relies only on the operations listed in docs/architecture.md. All methods are thread-safe.
// Everything read back is untrusted: callers verify digests; footers verify themselves.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "imagefs/types.h"

namespace esker {

// A new name may be invisible on another machine for this long (docs/timeouts.md), and a margin.
inline constexpr int64_t kVisibilityNanos = 35'000'000'000;

class Store {
 public:
  // Makes an empty store in `path` (created if missing, must be empty or a store).
  static Status Initialise(const std::string& path);
  // FAILED_PRECONDITION naming path and version if it is not a store of this version.
  static Result<std::unique_ptr<Store>> Open(const std::string& path);

  const std::string& path() const { return path_; }

  // --- publication -------------------------------------------------------------------------
  struct Temporary {
    UniqueFd fd;  // O_RDWR, empty, in tmp/
    std::string name;
  };
  Result<Temporary> NewTemporary();
  // fsync, close, link to packs/.., fsync of the directory, unlink of the temporary. If the name is
  // there already (same content by definition) that is success. Durable on return.
  // A pack of that id with other bytes in its place is DATA_LOSS. After an error the temporary is
  // gone, and the pack may or may not be visible.
  Status PublishPack(Temporary temporary, const PackId& id);
  Status DiscardTemporary(Temporary temporary);

  Result<UniqueFd> OpenPack(const PackId& id) const;  // O_RDONLY; NOT_FOUND if not (yet) visible
  // The same for a pack that the index knows: one that another machine has just published is waited
  // for until `deadline_ns` (monotonic), then NOT_FOUND.
  Result<UniqueFd> AwaitPack(const PackId& id, int64_t deadline_ns) const;
  Result<std::vector<PackId>> ListPacks() const;      // only for rebuilding and garbage collection
  Status RemovePack(const PackId& id);                // missing is OK
  // Removes temporaries not written for that long, by the clock of the store's file system.
  Status SweepTemporaries(int64_t older_than_seconds);

  // --- numbered records: mutable names as immutable files -------------------------------------
  // Publishes record `number` of space/name. ALREADY_EXISTS: another writer won that number.
  // Names may hold any of [A-Za-z0-9._:/@-]; they are encoded to one safe file name of at most 255
  // bytes (each of `:/@` and a leading dot takes three). Spaces are identifiers. Content, at most
  // 16 MiB, is wrapped with version and checksum. Durable on return. After any other error the
  // record may or may not be visible: look with LatestRecord before trying again.
  Status PublishRecord(std::string_view space, std::string_view name, uint64_t number,
                       std::string_view content);
  struct Record {
    uint64_t number = 0;
    std::string content;
  };
  // The record with the highest number; NOT_FOUND if there is none. DATA_LOSS if damaged.
  Result<Record> LatestRecord(std::string_view space, std::string_view name) const;
  Result<std::vector<std::string>> ListRecordNames(std::string_view space) const;
  // Removes the name and all its records, the latest last, so that a crash in between never brings
  // an older one back (for garbage collection of dead names). Missing is OK.
  Status RemoveRecords(std::string_view space, std::string_view name);

  // --- ownership ------------------------------------------------------------------------------
  // Claims the next epoch; returns it.
  Result<uint64_t> ClaimOwnership(std::string_view claimant);
  // OK while no higher epoch exists; FAILED_PRECONDITION naming the new owner otherwise.
  Status CheckOwnership(uint64_t epoch) const;
  // A sign of life of the owner: record <beat> of alive/<epoch>; earlier ones go. Beats count up.
  Status BeatOwner(uint64_t epoch, uint64_t beat);
  Status ReleaseOwner(uint64_t epoch);  // it is not alive any more
  struct Owner {
    uint64_t epoch = 0;
    std::string claimant;
    // Since its last sign of life, by the clock of the store's file system; nothing when it released
    // the store, or never gave a sign.
    std::optional<int64_t> silent_seconds;
  };
  // Epochs whose owner gave signs of life and did not release the store.
  Result<std::vector<uint64_t>> ListAliveOwners() const;
  Result<std::optional<Owner>> FindOwner();  // nothing if the store never had one

 private:
  Store(std::string path, UniqueFd root) : path_(std::move(path)), root_(std::move(root)) {}

  std::string path_;
  UniqueFd root_;  // everything is opened relative to it
  // The time at which a file made just now was made.
  Result<int64_t> StoreSeconds();

  // Pack directories whose own name this process has made durable.
  std::array<std::atomic<bool>, 256> prefix_durable_{};
};

}  // namespace esker
