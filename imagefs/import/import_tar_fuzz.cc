#include <cstdlib>
#include <cstring>

#include "base/temp_dir.h"
#include "imagefs/import.h"

namespace {

class FuzzSource : public esker::ByteSource {
 public:
  FuzzSource(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  esker::Result<size_t> Read(void* buffer, size_t size) override {
    size_t n = std::min(size, left_);
    std::memcpy(buffer, data_, n);
    data_ += n;
    left_ -= n;
    return n;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

class NothingStored : public esker::ChunkLookup {
 public:
  esker::Result<bool> HasChunk(const esker::ChunkRef&) override { return false; }
};

esker::Store& FuzzStore() {
  static esker::TempDir dir = *esker::TempDir::Create("/dev/shm");  // removed at exit
  static std::unique_ptr<esker::Store> store = [] {
    if (!esker::Store::Initialise(dir.path()).ok()) std::abort();
    return *esker::Store::Open(dir.path());
  }();
  return *store;
}

}  // namespace

// Whatever is imported must have been published whole.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzSource source(data, size);
  NothingStored lookup;
  auto layer = esker::ImportTar(source, FuzzStore(), lookup, {});
  if (!layer.ok()) return 0;
  if (!esker::ReadPackFooter(FuzzStore(), layer->pack.id).ok()) std::abort();
  if (!FuzzStore().RemovePack(layer->pack.id).ok()) std::abort();
  return 0;
}
