// Read by the thread sanitizer's run-time library at start; nothing else calls it. Debian's RocksDB
// is not instrumented, so the sanitizer does not see that it orders its own writes before our
// reads.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:librocksdb\n"; }
