#include "push_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

class OciSource final : public PushSource {
 public:
  explicit OciSource(std::unique_ptr<OciLayout> layout) : layout_(std::move(layout)) {}
  void FillBegin(v1::PushRequest::Begin* begin) const override {
    begin->set_manifest_json(layout_->manifest_json());
    begin->set_config_json(layout_->config_json());
  }
  Result<std::unique_ptr<ByteSource>> OpenLayer(uint32_t layer) override {
    if (layer >= layout_->image().layers.size()) {
      return InvalidArgumentError("the server asked for layer " + std::to_string(layer) +
                                  ", which the image does not have");
    }
    const std::string& digest = layout_->image().layers[layer].digest;
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd, layout_->OpenBlob(digest));
    return std::unique_ptr<ByteSource>(
        std::make_unique<OwnedSource>(std::move(fd), Process(), digest));
  }
  uint64_t LayerBytes(uint32_t layer) const override {
    return layer < layout_->image().layers.size() ? layout_->image().layers[layer].size : 0;
  }

 private:
  std::unique_ptr<OciLayout> layout_;
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

Result<std::unique_ptr<PushSource>> OpenOci(const std::string& rest, const std::string& platform) {
  std::string path = rest, tag;
  // A colon after the last slash begins the tag.
  size_t colon = rest.rfind(':');
  if (colon != std::string::npos && rest.find('/', colon) == std::string::npos) {
    path = rest.substr(0, colon);
    tag = rest.substr(colon + 1);
  }
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<OciLayout> layout, OciLayout::Open(path, tag, platform));
  return std::unique_ptr<PushSource>(std::make_unique<OciSource>(std::move(layout)));
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

Result<std::unique_ptr<PushSource>> PushSource::Open(const std::string& reference,
                                                     const std::string& platform) {
  size_t colon = reference.find(':');
  std::string kind = reference.substr(0, colon);
  std::string rest = colon == std::string::npos ? "" : reference.substr(colon + 1);
  if (rest.empty() || (kind != "oci" && kind != "tar" && kind != "dir")) {
    return InvalidArgumentError("cannot push from " + reference +
                                ": want oci:PATH[:TAG], tar:FILE or dir:PATH");
  }
  if (kind == "oci") return OpenOci(rest, platform);
  if (kind == "tar") return OpenTar(rest);
  return OpenDirectory(rest);
}

}  // namespace esker::cli
