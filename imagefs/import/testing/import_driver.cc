// import_driver STORE [TIMES]: imports the tar on standard input into a new store and prints, as
// one line of key=value, what it took; for tests of memory and for profiles. With TIMES above 1
// standard input must be a file; it is imported that often, each time knowing what the one before
// stored.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "memory_lookup.h"

namespace esker {
namespace {

// In KiB.
long PeakMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtol(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

double CpuSeconds() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Status Run(const std::string& path, int times) {
  ESKER_RETURN_IF_ERROR(Store::Initialise(path));
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, Store::Open(path));
  testing::MemoryLookup lookup;
  for (int i = 0; i < times; ++i) {
    if (i > 0 && ::lseek(STDIN_FILENO, 0, SEEK_SET) != 0) return ErrnoError("rewind");
    const double cpu = CpuSeconds();
    const auto begin = std::chrono::steady_clock::now();
    const std::unique_ptr<ByteSource> source = FdSource(STDIN_FILENO);
    ESKER_ASSIGN_OR_RETURN(ImportedLayer layer, ImportTar(*source, *store, lookup, {}));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf(
        "entries=%llu read=%llu plain=%llu stored=%llu seconds=%.3f cpu=%.3f mb_per_s=%.0f "
        "peak_kib=%ld diff_id=%s metadata=%s data=%s\n",
        static_cast<unsigned long long>(layer.totals.entries),
        static_cast<unsigned long long>(layer.totals.bytes_read),
        static_cast<unsigned long long>(layer.totals.bytes_plain),
        static_cast<unsigned long long>(layer.totals.bytes_stored), took.count(),
        CpuSeconds() - cpu, static_cast<double>(layer.totals.bytes_read) / 1e6 / took.count(),
        PeakMemory(), layer.layer.diff_id.c_str(), layer.layer.metadata.ToHex().c_str(),
        layer.layer.data.ToHex().c_str());
    std::fflush(stdout);
    lookup.Register(layer.pack);
  }
  return OkStatus();
}

}  // namespace
}  // namespace esker

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  esker::Status status = esker::Run(argv[1], argc > 2 ? std::atoi(argv[2]) : 1);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
