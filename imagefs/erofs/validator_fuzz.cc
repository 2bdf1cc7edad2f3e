// Whatever bytes come, the validator answers without a crash; what it accepts can be read as a
// tree, that tree written again is the same tree, and its implicit directories can be resolved.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/digest.h"
#include "format.h"
#include "imagefs/erofs.h"
#include "imagefs/implicit_directories.h"
#include "testing/random_tree.h"

namespace {

using namespace esker::erofs;  // NOLINT: a program of its own

constexpr uint64_t kDeviceBytes = 64 * kBlockSize;

void Require(bool condition) {
  if (!condition) std::abort();
}

// The checksum would keep the fuzzer out, and is no secret to an attacker.
void FixChecksum(std::vector<uint8_t>& image) {
  if (image.size() < kBlockSize) return;
  uint8_t* field = image.data() + kSuperOffset + offsetof(SuperBlock, checksum);
  std::memset(field, 0, sizeof(uint32_t));
  const uint32_t checksum = ~esker::Crc32c(image.data() + kSuperOffset, kBlockSize - kSuperOffset);
  std::memcpy(field, &checksum, sizeof(checksum));
}

// Directories marked implicit get attributes of nothing, and then have them.
void ResolveAlone(std::span<const uint8_t> image) {
  ImplicitDirectories directories;
  Require(directories.Want(image).ok());
  auto mended = directories.Resolve(image);
  Require(mended.ok());
  if (!*mended) return;
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>((*mended)->data()),
                                       (*mended)->size());
  ImplicitDirectories again;
  Require(again.Want(bytes).ok());
  auto nothing = again.Resolve(bytes);
  Require(nothing.ok() && !*nothing);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> image(data, data + size);
  image.resize(RoundUp(size, kBlockSize));
  FixChecksum(image);
  if (!Validate(image, {.data_device_bytes = kDeviceBytes}).ok()) return 0;
  auto tree = ReadTree(image);
  Require(tree.ok());
  auto again = WriteMetadata(*tree, {.data_device_bytes = kDeviceBytes});
  Require(again.ok());
  auto reread = ReadTree({reinterpret_cast<const uint8_t*>(again->data()), again->size()});
  Require(reread.ok());
  Require(FirstDifference(*tree, *reread).empty());
  ResolveAlone(image);
  return 0;
}

// Mutations start from true images, so that they get past the super block.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  if (size >= 2 * kBlockSize && seed % 64 != 0) return LLVMFuzzerMutate(data, size, max_size);
  RandomTreeOptions options;
  options.operations = static_cast<int>(seed / 64 % 40);
  options.device_blocks = kDeviceBytes / kBlockSize;
  auto image = WriteMetadata(RandomTree(seed, options), {.data_device_bytes = kDeviceBytes});
  Require(image.ok());
  if (image->size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, image->data(), image->size());
  return image->size();
}
