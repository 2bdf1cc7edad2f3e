// Sources stacked on a source: hashing, reading exactly. Private to import.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "imagefs/import.h"

namespace esker::import_internal {

// Passes bytes through, counts and hashes them. Reads the source in large pieces, on the caller's
// thread; from the second piece on a thread of its own hashes them meanwhile. Memory: four pieces.
class HashingSource : public ByteSource {
 public:
  explicit HashingSource(ByteSource& source) : source_(source) {}
  ~HashingSource() override;
  HashingSource(const HashingSource&) = delete;
  HashingSource& operator=(const HashingSource&) = delete;

  Result<size_t> Read(void* buffer, size_t size) override;
  // Before the first Read: up to `size` of the bytes that it will give; fewer only if there are no
  // more.
  Result<std::string> Peek(size_t size);
  // Reads what is left and gives the digest of all, as "sha256:...". Call once.
  Result<std::string> DrainAndDigest();
  uint64_t bytes() const { return given_; }  // that Read gave

 private:
  static constexpr size_t kPieces = 4;
  static constexpr size_t kPieceBytes = 256u << 10;
  static constexpr size_t kEnoughBytes = 64u << 10;

  struct Piece {
    std::vector<uint8_t> bytes;
    size_t size = 0;
  };
  Piece& At(uint64_t number) { return pieces_[number % kPieces]; }

  Result<bool> Fill();  // false at the end of the source
  void HashPieces();    // the thread

  ByteSource& source_;
  Sha256 hash_;  // the thread's while it runs
  std::array<Piece, kPieces> pieces_;
  size_t position_ = 0;  // in the last piece
  uint64_t given_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t filled_ = 0;   // pieces; written by the caller under the mutex
  uint64_t hashed_ = 0;   // guarded by mutex_
  bool ending_ = false;   // guarded by mutex_: no more pieces will come
  bool dropped_ = false;  // guarded by mutex_: nobody wants the digest
  std::thread thread_;
};

// Reads until `size` bytes are there or the source ends.
Result<size_t> ReadFully(ByteSource& source, void* buffer, size_t size);

// OK if expected is empty or the same; DATA_LOSS that names both otherwise.
Status CheckDigest(const std::string& what, const std::string& expected, const std::string& found);

}  // namespace esker::import_internal
