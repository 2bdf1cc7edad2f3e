#include "push_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/digest.h"
#include "base/io.h"
#include "base/process.h"

namespace esker::cli {
namespace {

// Owns the descriptor that FdSource only borrows, and a program that writes into it.
class OwnedSource final : public ByteSource {
 public:
  OwnedSource(UniqueFd fd, Process program, std::string what)
      : fd_(std::move(fd)), program_(std::move(program)), what_(std::move(what)) {}

  Result<size_t> Read(void* buffer, size_t size) override {
    ESKER_ASSIGN_OR_RETURN(size_t n, ReadFull(fd_.get(), buffer, size));
    if (n == 0 && program_.valid()) {
      ESKER_ASSIGN_OR_RETURN(int status, program_.Reap());
      program_ = Process();
      if (status != 0) return InternalError(what_ + " failed; its message is above");
    }
    return n;
  }

 private:
  UniqueFd fd_;
  Process program_;
  std::string what_;
};

class ArchiveSource final : public PushSource {
 public:
  explicit ArchiveSource(std::unique_ptr<ImageArchive> archive) : archive_(std::move(archive)) {}
  void FillBegin(v1::PushRequest::Begin* begin) const override {
    begin->set_manifest_json(archive_->manifest_json());
    begin->set_config_json(archive_->config_json());
  }
  Result<std::unique_ptr<ByteSource>> OpenLayer(uint32_t layer) override {
    return archive_->OpenLayer(layer);
  }
  uint64_t LayerBytes(uint32_t layer) const override { return archive_->LayerBytes(layer); }
  std::string ManifestDigest() const override { return archive_->image().manifest_digest; }
  std::vector<std::string> DiffIds() const override {
    std::vector<std::string> out;
    for (const OciLayer& layer : archive_->image().layers) out.push_back(layer.diff_id);
    return out;
  }

 private:
  std::unique_ptr<ImageArchive> archive_;
};

class TarSource final : public PushSource {
 public:
  TarSource(UniqueFd fd, uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  void FillBegin(v1::PushRequest::Begin* begin) const override { begin->set_single_tar(true); }
  Result<std::unique_ptr<ByteSource>> OpenLayer(uint32_t) override {
    return std::unique_ptr<ByteSource>(
        std::make_unique<OwnedSource>(std::move(fd_), Process(), "tar"));
  }
  uint64_t LayerBytes(uint32_t) const override { return bytes_; }
  Result<std::string> StreamDigest() const override {
    Sha256 hash;
    std::string buffer(1 << 20, '\0');
    for (uint64_t at = 0; at < bytes_;) {  // a pipe has none
      const size_t n = std::min<uint64_t>(buffer.size(), bytes_ - at);
      ESKER_RETURN_IF_ERROR(PReadExact(fd_.get(), buffer.data(), n, at, "the tar"));
      hash.Update(buffer.data(), n);
      at += n;
    }
    return bytes_ == 0 ? std::string() : "sha256:" + hash.Finish().ToHex();
  }

 private:
  UniqueFd fd_;
  uint64_t bytes_;
};

// A directory goes through bsdtar, which keeps owners, xattrs, ACLs, sparse files and hard links.
class DirectorySource final : public PushSource {
 public:
  explicit DirectorySource(std::string path) : path_(std::move(path)) {}
  void FillBegin(v1::PushRequest::Begin* begin) const override { begin->set_single_tar(true); }
  Result<std::unique_ptr<ByteSource>> OpenLayer(uint32_t) override {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoError("make a pipe");
    UniqueFd read_end(fds[0]), write_end(fds[1]);
    SpawnOptions spawn;
    spawn.argv = {"bsdtar", "-c", "--format=pax", "--numeric-owner", "-f", "-", "-C", path_, "."};
    spawn.stdout_fd = write_end.get();
    ESKER_ASSIGN_OR_RETURN(Process tar, Process::Spawn(spawn));
    return std::unique_ptr<ByteSource>(
        std::make_unique<OwnedSource>(std::move(read_end), std::move(tar), "bsdtar of " + path_));
  }
  uint64_t LayerBytes(uint32_t) const override { return 0; }

 private:
  std::string path_;
};

using OpenArchive = Result<std::unique_ptr<ImageArchive>> (*)(const std::string& path,
                                                              std::string_view name,
                                                              const ArchiveOptions& options);

Result<std::unique_ptr<PushSource>> OpenImage(OpenArchive open, const std::string& rest,
                                              const ArchiveOptions& options) {
  const PathAndName split = SplitPathAndName(rest);
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ImageArchive> archive,
                         open(split.path, split.name, options));
  return std::unique_ptr<PushSource>(std::make_unique<ArchiveSource>(std::move(archive)));
}

Result<std::unique_ptr<PushSource>> OpenTar(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY));
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return ErrnoError("stat " + path);
  uint64_t bytes = S_ISREG(st.st_mode) ? static_cast<uint64_t>(st.st_size) : 0;
  return std::unique_ptr<PushSource>(std::make_unique<TarSource>(std::move(fd), bytes));
}

Result<std::unique_ptr<PushSource>> OpenDirectory(const std::string& path) {
  ESKER_RETURN_IF_ERROR(OpenFile(path, O_RDONLY | O_DIRECTORY).status());
  return std::unique_ptr<PushSource>(std::make_unique<DirectorySource>(path));
}

}  // namespace

void AddArchiveOptions(CLI::App* verb, ArchiveOptions& options) {
  verb->add_option("--platform", options.platform,
                   "os/arch[/variant] of a multi-platform image (default: this machine's)");
  verb->add_option(
      "--tmp-dir", options.temporary_directory,
      "where a compressed or piped archive goes meanwhile (default: $TMPDIR, /var/tmp)");
  verb->add_option_function<uint64_t>(
      "--tmp-max-gb", [&options](uint64_t gb) { options.max_temporary_bytes = gb << 30; },
      "how much of that it may take (default 64)");
}

PathAndName SplitPathAndName(const std::string& text) {
  if (PathExists(text)) return {text, ""};
  for (size_t colon = text.find(':'); colon != std::string::npos;
       colon = text.find(':', colon + 1)) {
    if (colon > 0 && PathExists(text.substr(0, colon))) {
      return {text.substr(0, colon), text.substr(colon + 1)};
    }
  }
  // It will fail, or is to be made: a colon after the last slash begins the name.
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || text.find('/', colon) != std::string::npos) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

Result<std::unique_ptr<PushSource>> PushSource::Open(const std::string& reference,
                                                     const ArchiveOptions& options) {
  const size_t colon = reference.find(':');
  const std::string kind = reference.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : reference.substr(colon + 1);
  if (!rest.empty()) {
    if (kind == "oci") return OpenImage(&ImageArchive::OpenOciLayout, rest, options);
    if (kind == "oci-archive") return OpenImage(&ImageArchive::OpenOciArchive, rest, options);
    if (kind == "docker-archive") return OpenImage(&ImageArchive::OpenDockerArchive, rest, options);
    if (kind == "tar") return OpenTar(rest);
    if (kind == "dir") return OpenDirectory(rest);
  }
  return InvalidArgumentError("cannot push from " + reference + ": want " + kPushSources);
}

}  // namespace esker::cli
