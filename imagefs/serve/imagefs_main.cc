// esker-imagefs: the blob server. See imagefs/blob_server.h.
#include <sys/stat.h>

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "imagefs/blob_server.h"

int main(int argc, char** argv) {
  esker::BlobServerOptions options;
  CLI::App app{
      "Serves the data blobs of a store as files of a FUSE session that another process holds."};
  app.add_option("--store", options.store_directory, "the store's directory")->required();
  app.add_option("--cache", options.cache_directory, "the node's image cache")->required();
  app.add_option("--fuse-fd", options.fuse_fd, "descriptor of the mounted session")
      ->capture_default_str();
  app.add_option("--state", options.state_file, "file that keeps the session's first request")
      ->required();
  app.add_option("--control", options.control_socket, "socket to answer the node on");
  app.add_option("--threads", options.threads, "threads that take requests")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--retry-ms", options.retry_deadline_ms,
                 "how long a read tries a store that fails, before it fails itself")
      ->check(CLI::Range(int64_t{0}, int64_t{3'600'000}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  ::umask(077);  // the keeper's is 0
  esker::InitLog("esker-imagefs");
  esker::Status status = esker::RunBlobServer(options);
  if (status.ok()) return 0;
  esker::LogError("blob-server-ended", {{"error", status.ToString()}});
  return 1;
}
