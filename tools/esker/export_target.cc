#include "export_target.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <set>
#include <vector>

#include "base/io.h"
#include "export_documents.h"
#include "push_source.h"

namespace esker::cli {
namespace {

Status WrapNoSpace(Status status, const std::string& where) {
  return status.ok() ? status : std::move(status).Wrap("write " + where);
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

constexpr std::string_view kUnfinished = ".unfinished-";

// A file without its final name yet; without any name where the file system can do that, so that
// even a killed export leaves nothing.
class Unfinished {
 public:
  static Result<Unfinished> Create(const std::string& like) {
    Unfinished out;
    out.fd_.reset(::open(DirectoryOf(like).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644));
    if (out.fd_.valid()) return out;
    out.name_ = like + std::string(kUnfinished) + "XXXXXX";
    out.fd_.reset(::mkostemp(out.name_.data(), O_CLOEXEC));
    if (out.fd_.valid()) return out;
    Status status = ErrnoError("make a file beside " + like);
    out.name_.clear();
    return status;
  }
  Unfinished() = default;
  Unfinished(Unfinished&& other) noexcept
      : fd_(std::move(other.fd_)), name_(std::exchange(other.name_, {})) {}
  Unfinished& operator=(Unfinished&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(name_, other.name_);
    return *this;
  }
  ~Unfinished() {
    if (!name_.empty()) (void)::unlink(name_.c_str());
  }
  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }

  // Durable but for the directory. What has the name already is replaced or, if not `over`,
  // refused.
  Status Name(const std::string& path, bool over) {
    if (::fchmod(fd_.get(), 0644) != 0 || ::fdatasync(fd_.get()) != 0) {
      return ErrnoError("sync " + path);
    }
    if (over && name_.empty()) {
      const std::string between = path + std::string(kUnfinished) + std::to_string(::getpid());
      (void)::unlink(between.c_str());
      ESKER_RETURN_IF_ERROR(Link(between));
      name_ = between;
    }
    if (!over) {
      ESKER_RETURN_IF_ERROR(Link(path));
      if (!name_.empty()) (void)::unlink(name_.c_str());
    } else if (::rename(name_.c_str(), path.c_str()) != 0) {
      return ErrnoError("publish " + path);
    }
    name_.clear();
    fd_.reset();
    return OkStatus();
  }

 private:
  Status Link(const std::string& path) const {
    const std::string self = "/proc/self/fd/" + std::to_string(fd_.get());
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      return OkStatus();
    }
    return ErrnoError("publish " + path);
  }

  UniqueFd fd_;
  std::string name_;  // "" while it has none
};

// --- a layout ----------------------------------------------------------------------------------

class LayoutTarget final : public ExportTarget {
 public:
  LayoutTarget(std::string path, std::string tag)
      : path_(std::move(path)), blobs_(path_ + "/blobs/sha256"), tag_(std::move(tag)) {}

  ~LayoutTarget() override {
    if (finished_) return;
    blob_ = Unfinished();
    for (const std::string& path : made_) (void)::unlink(path.c_str());
    for (auto path = folders_.rbegin(); path != folders_.rend(); ++path)
      (void)::rmdir(path->c_str());
  }

  Status Open() {
    if (PathExists(path_ + "/index.json")) {
      ESKER_ASSIGN_OR_RETURN(index_before_, ReadFileToString(path_ + "/index.json"));
    } else if (PathExists(path_)) {
      ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(path_));
      for (const std::string& name : names) {
        // Of an export that was cut off.
        if (name == "blobs" || name == "oci-layout" || name.find(kUnfinished) != name.npos)
          continue;
        return FailedPreconditionError("export to " + path_ +
                                       ": it is neither empty nor an OCI layout");
      }
    }
    for (const std::string& path : {path_, path_ + "/blobs", blobs_}) {
      if (::mkdir(path.c_str(), 0755) == 0) {
        folders_.push_back(path);
      } else if (errno != EEXIST) {
        return ErrnoError("make the folder " + path);
      }
    }
    return OkStatus();
  }

  Status Write(std::string_view bytes) override {
    if (!blob_.valid()) {
      ESKER_ASSIGN_OR_RETURN(blob_, Unfinished::Create(path_ + "/blob"));
    }
    return WrapNoSpace(WriteFull(blob_.fd(), bytes.data(), bytes.size()), path_);
  }

  Status EndBlob(const std::string& digest) override {
    ESKER_RETURN_IF_ERROR(Write({}));  // an empty one is a file too
    const std::string path = path_ + "/" + BlobPathOf(digest);
    if (!PathExists(path)) made_.push_back(path);
    return blob_.Name(path, /*over=*/true);
  }

  Status Finish(const std::string& manifest_json, const std::string& config_json) override {
    for (const std::string* text : {&config_json, &manifest_json}) {
      ESKER_RETURN_IF_ERROR(Write(*text));
      ESKER_RETURN_IF_ERROR(EndBlob(DigestOf(*text)));
    }
    ESKER_ASSIGN_OR_RETURN(std::string index,
                           MakeIndex(index_before_, manifest_json, config_json, tag_));
    ESKER_RETURN_IF_ERROR(FsyncDirectory(blobs_));
    if (!PathExists(path_ + "/oci-layout")) {
      made_.push_back(path_ + "/oci-layout");
      ESKER_RETURN_IF_ERROR(Put("oci-layout", kOciLayoutFile));
    }
    ESKER_RETURN_IF_ERROR(Put("index.json", index));
    finished_ = true;
    return FsyncDirectory(path_);
  }

 private:
  Status Put(const char* name, std::string_view text) {
    ESKER_ASSIGN_OR_RETURN(Unfinished file, Unfinished::Create(path_ + "/" + name));
    ESKER_RETURN_IF_ERROR(WrapNoSpace(WriteFull(file.fd(), text.data(), text.size()), path_));
    return file.Name(path_ + "/" + name, /*over=*/true);
  }

  const std::string path_, blobs_, tag_;
  std::string index_before_;
  Unfinished blob_;
  std::vector<std::string> made_, folders_;  // by this export
  bool finished_ = false;
};

// --- one tar -----------------------------------------------------------------------------------

constexpr uint64_t kBlock = 512;

std::string TarHeader(const std::string& name, uint64_t size) {
  std::string block(kBlock, '\0');
  auto put = [&](size_t at, std::string_view text) { block.replace(at, text.size(), text); };
  char text[24];
  put(0, name);  // ours are short
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  if (size >> 33 == 0) {
    std::snprintf(text, sizeof(text), "%011llo", static_cast<unsigned long long>(size));
    put(124, text);
  } else {  // base 256, as GNU and others read it
    block[124] = '\x80';
    for (int i = 0; i < 8; ++i) block[135 - i] = static_cast<char>(size >> (8 * i));
  }
  put(136, "00000000000");
  put(148, "        ");
  block[156] = '0';
  put(257, std::string_view("ustar\00000", 8));
  unsigned sum = 0;
  for (char c : block) sum += static_cast<uint8_t>(c);
  std::snprintf(text, sizeof(text), "%06o", sum);
  put(148, std::string_view(text, 7));
  return block;
}

// A member's header is written when its digest and size are known, over the room left for it.
class ArchiveTarget final : public ExportTarget {
 public:
  ArchiveTarget(std::string path, std::string tag, bool docker, std::string docker_name)
      : path_(std::move(path)),
        tag_(std::move(tag)),
        docker_(docker),
        docker_name_(std::move(docker_name)) {}

  Status Open() {
    if (PathExists(path_)) {
      return AlreadyExistsError("export to " + path_ + ": the file exists; remove it first");
    }
    ESKER_ASSIGN_OR_RETURN(file_, Unfinished::Create(path_));
    return OkStatus();
  }

  Status Write(std::string_view bytes) override {
    ESKER_RETURN_IF_ERROR(WrapNoSpace(
        PWriteFull(file_.fd(), bytes.data(), bytes.size(), begin_ + kBlock + size_), path_));
    size_ += bytes.size();
    return OkStatus();
  }
  Status EndBlob(const std::string& digest) override {
    if (!blobs_.insert(digest).second) {  // it is there already
      size_ = 0;
      return OkStatus();
    }
    return EndMember(BlobPathOf(digest));
  }

  Status Finish(const std::string& manifest_json, const std::string& config_json) override {
    for (const std::string* text : {&config_json, &manifest_json}) {
      ESKER_RETURN_IF_ERROR(Write(*text));
      ESKER_RETURN_IF_ERROR(EndBlob(DigestOf(*text)));
    }
    ESKER_ASSIGN_OR_RETURN(std::string index,
                           MakeIndex("", manifest_json, config_json, tag_, docker_name_));
    ESKER_RETURN_IF_ERROR(Member("oci-layout", kOciLayoutFile));
    if (docker_) {
      ESKER_ASSIGN_OR_RETURN(std::string docker, MakeDockerManifest(manifest_json, docker_name_));
      ESKER_RETURN_IF_ERROR(Member("manifest.json", docker));
    }
    ESKER_RETURN_IF_ERROR(Member("index.json", index));
    if (::ftruncate(file_.fd(), static_cast<off_t>(begin_ + 2 * kBlock)) != 0) {
      return ErrnoError("end the archive " + path_);
    }
    ESKER_RETURN_IF_ERROR(file_.Name(path_, /*over=*/false));
    return FsyncDirectory(DirectoryOf(path_));
  }

 private:
  Status Member(const std::string& name, std::string_view text) {
    ESKER_RETURN_IF_ERROR(Write(text));
    return EndMember(name);
  }
  Status EndMember(const std::string& name) {
    const std::string header = TarHeader(name, size_);
    ESKER_RETURN_IF_ERROR(
        WrapNoSpace(PWriteFull(file_.fd(), header.data(), header.size(), begin_), path_));
    const uint64_t end = begin_ + kBlock + size_;
    begin_ = (end + kBlock - 1) / kBlock * kBlock;
    size_ = 0;
    // Zeros behind the content, also over bytes of a blob that turned out to be there already.
    if (::ftruncate(file_.fd(), static_cast<off_t>(end)) != 0 ||
        ::ftruncate(file_.fd(), static_cast<off_t>(begin_)) != 0) {
      return ErrnoError("pad the archive " + path_);
    }
    return OkStatus();
  }

  const std::string path_, tag_;
  const bool docker_;
  const std::string docker_name_;
  Unfinished file_;
  uint64_t begin_ = 0, size_ = 0;  // of the member at hand
  std::set<std::string> blobs_;
};

// "@project/name:tag" and "name:tag" have names; an id has none.
std::string NameIn(const std::string& reference) {
  const bool is_id = reference.size() >= 12 &&
                     reference.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (is_id) return "";
  if (!reference.starts_with('@')) return reference;
  return reference.substr(reference.find('/') + 1);
}

std::string TagIn(const std::string& name) {
  const size_t colon = name.rfind(':');
  return colon == std::string::npos || name.find('/', colon) != std::string::npos
             ? "latest"
             : name.substr(colon + 1);
}

template <typename T>
Result<std::unique_ptr<ExportTarget>> Opened(std::unique_ptr<T> target) {
  ESKER_RETURN_IF_ERROR(target->Open());
  return std::unique_ptr<ExportTarget>(std::move(target));
}

}  // namespace

Result<std::unique_ptr<ExportTarget>> ExportTarget::Open(const std::string& target,
                                                         const std::string& reference) {
  const size_t colon = target.find(':');
  const std::string kind = target.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : target.substr(colon + 1);
  if (rest.empty() || (kind != "oci" && kind != "oci-archive" && kind != "docker-archive")) {
    return InvalidArgumentError("cannot export to " + target +
                                ": want oci:PATH[:TAG], oci-archive:FILE[:TAG] or "
                                "docker-archive:FILE[:NAME[:TAG]]");
  }
  PathAndName split = SplitPathAndName(rest);
  std::string name = NameIn(reference);
  if (kind != "docker-archive") {
    const std::string tag = split.name.empty() ? TagIn(name) : split.name;
    if (kind == "oci") return Opened(std::make_unique<LayoutTarget>(split.path, tag));
    return Opened(std::make_unique<ArchiveTarget>(split.path, tag, false, ""));
  }
  // FILE:NAME:TAG has two colons behind a file that does not exist yet.
  if (const size_t inner = split.path.rfind(':');
      inner != std::string::npos && split.path.find('/', inner) == std::string::npos) {
    split.name = split.path.substr(inner + 1) + ":" + split.name;
    split.path.resize(inner);
  }
  if (!split.name.empty()) name = split.name;
  const std::string tag = TagIn(name);
  if (!name.empty() && !name.ends_with(":" + tag)) name += ":" + tag;
  return Opened(std::make_unique<ArchiveTarget>(split.path, tag, true, name));
}

}  // namespace esker::cli
