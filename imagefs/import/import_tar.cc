#include <optional>

#include "byte_source.h"
#include "decompress.h"
#include "imagefs/import.h"
#include "layer_builder.h"
#include "tar_reader.h"
#include "xattr_policy.h"

namespace esker {
namespace {

using import_internal::HashingSource;
using import_internal::LayerBuilder;
using import_internal::TarEntry;
using import_internal::TarReader;
using import_internal::XattrVerdict;

constexpr std::string_view kWhiteoutPrefix = ".wh.";
constexpr std::string_view kWhiteoutMeta = ".wh..wh.";
constexpr std::string_view kOpaqueName = ".wh..wh..opq";
constexpr size_t kMaxInodes = 8'000'000;  // some hundred bytes of memory each
constexpr size_t kPeekBytes = 16;         // enough to recognise a compressed stream

// The OCI image specification's layer markers, by the entry's name alone.
struct Marker {
  enum class Kind { kNone, kWhiteout, kOpaque, kIgnore };
  Kind kind = Kind::kNone;
  std::string path;  // what is hidden, or the opaque directory
};

std::string_view StripTrailingSlashes(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  return path;
}

Result<Marker> MarkerOf(std::string_view path) {
  path = StripTrailingSlashes(path);
  size_t slash = path.rfind('/');
  std::string_view directory = slash == path.npos ? "" : path.substr(0, slash);
  std::string_view base = slash == path.npos ? path : path.substr(slash + 1);
  for (std::string_view rest = directory; !rest.empty();) {
    size_t end = rest.find('/');
    std::string_view part = rest.substr(0, end);
    rest = end == rest.npos ? "" : rest.substr(end + 1);
    if (part.starts_with(kWhiteoutMeta)) return Marker{Marker::Kind::kIgnore, {}};
    if (part.starts_with(kWhiteoutPrefix)) {
      return InvalidArgumentError("it lies below a name that is reserved for whiteouts");
    }
  }
  if (!base.starts_with(kWhiteoutPrefix)) return Marker{};
  if (base == kOpaqueName) return Marker{Marker::Kind::kOpaque, std::string(directory)};
  if (base.starts_with(kWhiteoutMeta)) return Marker{Marker::Kind::kIgnore, {}};
  std::string hidden(base.substr(kWhiteoutPrefix.size()));
  if (hidden.empty() || hidden == "." || hidden == "..") {
    return InvalidArgumentError("a whiteout that names nothing");
  }
  return Marker{Marker::Kind::kWhiteout, std::string(directory) + "/" + hidden};
}

Result<uint32_t> CheckId(const char* what, int64_t id) {
  // The highest value means "no id" to the kernel.
  if (id < 0 || id >= int64_t{0xffffffff}) {
    return InvalidArgumentError(std::string(what) + " " + std::to_string(id) +
                                " is not a 32-bit id");
  }
  return static_cast<uint32_t>(id);
}

Result<uint32_t> CheckDevice(int64_t number) {
  if (number < 0 || number > int64_t{0xffffffff}) {
    return InvalidArgumentError("device number " + std::to_string(number));
  }
  return static_cast<uint32_t>(number);
}

erofs::FileType TypeOf(TarEntry::Kind kind) {
  switch (kind) {
    case TarEntry::Kind::kSymlink:
      return erofs::FileType::kSymlink;
    case TarEntry::Kind::kCharDevice:
      return erofs::FileType::kCharDevice;
    case TarEntry::Kind::kBlockDevice:
      return erofs::FileType::kBlockDevice;
    case TarEntry::Kind::kDirectory:
      return erofs::FileType::kDirectory;
    case TarEntry::Kind::kFifo:
      return erofs::FileType::kFifo;
    case TarEntry::Kind::kFile:
    case TarEntry::Kind::kHardLink:
      return erofs::FileType::kRegular;
  }
  return erofs::FileType::kRegular;
}

Status FillXattrs(TarEntry& entry, erofs::Node& node) {
  for (auto& [name, value] : entry.xattrs) {
    switch (import_internal::JudgeTarXattr(name)) {
      case XattrVerdict::kKeep:
        node.xattrs.emplace(name, std::move(value));
        break;
      case XattrVerdict::kDrop:
        break;
      case XattrVerdict::kRefuse:
        return InvalidArgumentError("the attribute " + name + " may not come from an archive");
    }
  }
  return OkStatus();
}

Result<erofs::Node> NodeOf(TarEntry& entry) {
  erofs::Node node;
  node.type = TypeOf(entry.kind);
  node.mode = static_cast<uint16_t>(entry.mode);
  ESKER_ASSIGN_OR_RETURN(node.uid, CheckId("uid", entry.uid));
  ESKER_ASSIGN_OR_RETURN(node.gid, CheckId("gid", entry.gid));
  node.mtime_seconds = entry.mtime_seconds;
  node.mtime_nanos = entry.mtime_nanos;
  if (node.type == erofs::FileType::kCharDevice || node.type == erofs::FileType::kBlockDevice) {
    ESKER_ASSIGN_OR_RETURN(node.device_major, CheckDevice(entry.device_major));
    ESKER_ASSIGN_OR_RETURN(node.device_minor, CheckDevice(entry.device_minor));
  }
  if (node.type == erofs::FileType::kSymlink) node.symlink_target = entry.link_target;
  ESKER_RETURN_IF_ERROR(FillXattrs(entry, node));
  return node;
}

Status AddLink(erofs::Tree& tree, const TarEntry& entry) {
  Status status = tree.Link(entry.path, entry.link_target);
  if (status.code() != Code::kNotFound) return status;
  return InvalidArgumentError("a hard link to \"" + entry.link_target +
                              "\", which does not come before it in its layer");
}

Status AddEntry(TarReader& tar, TarEntry& entry, LayerBuilder& builder) {
  ESKER_ASSIGN_OR_RETURN(Marker marker, MarkerOf(entry.path));
  switch (marker.kind) {
    case Marker::Kind::kIgnore:
      return OkStatus();
    case Marker::Kind::kOpaque:
      return builder.tree().Opaque(marker.path);
    case Marker::Kind::kWhiteout:
      return builder.tree().Whiteout(marker.path);
    case Marker::Kind::kNone:
      break;
  }
  if (entry.kind == TarEntry::Kind::kHardLink) return AddLink(builder.tree(), entry);
  ESKER_ASSIGN_OR_RETURN(erofs::Node node, NodeOf(entry));
  // The overlay would take this device for a whiteout; so it is one.
  if (node.type == erofs::FileType::kCharDevice && node.device_major == 0 &&
      node.device_minor == 0) {
    return builder.tree().Whiteout(entry.path);
  }
  if (node.type == erofs::FileType::kRegular) {
    node.size = entry.size;
    builder.content().Begin(entry.size);
    ESKER_RETURN_IF_ERROR(tar.ReadContent(builder.content()));
    ESKER_ASSIGN_OR_RETURN(node.extents, builder.content().End());
  }
  return builder.tree().Put(entry.path, std::move(node));
}

class StringSource : public ByteSource {
 public:
  explicit StringSource(std::string_view text) : rest_(text) {}
  Result<size_t> Read(void* buffer, size_t size) override {
    const size_t n = rest_.copy(static_cast<char*>(buffer), size);
    rest_.remove_prefix(n);
    return n;
  }

 private:
  std::string_view rest_;
};

Result<bool> LooksCompressed(HashingSource& raw) {
  ESKER_ASSIGN_OR_RETURN(const std::string start, raw.Peek(kPeekBytes));
  StringSource peeked(start);
  return import_internal::IsCompressed(peeked);
}

Status AddEntries(ByteSource& plain, const HashingSource& raw, LayerBuilder& builder) {
  TarReader tar(plain);
  for (TarEntry entry;;) {
    ESKER_ASSIGN_OR_RETURN(bool more, tar.Next(entry));
    if (!more) return OkStatus();
    ++builder.progress().entries;
    builder.progress().bytes_read = raw.bytes();
    ESKER_RETURN_IF_ERROR(builder.Tick());
    Status status = AddEntry(tar, entry, builder);
    if (!status.ok()) return std::move(status).Wrap("tar entry \"" + entry.path + "\"");
    if (builder.tree().inode_count() > kMaxInodes) {
      return ResourceExhaustedError("the layer has more than " + std::to_string(kMaxInodes) +
                                    " files and directories");
    }
  }
}

}  // namespace

Result<ImportedLayer> ImportTar(ByteSource& source, Store& store, ChunkLookup& lookup,
                                const ImportOptions& options) {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<LayerBuilder> builder,
                         LayerBuilder::Create(store, lookup, options));
  HashingSource raw(source);
  ESKER_ASSIGN_OR_RETURN(const bool compressed, LooksCompressed(raw));
  ImageLayer layer;
  if (compressed) {
    ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> decompressed,
                           import_internal::Decompress(raw));
    HashingSource plain(*decompressed);
    ESKER_RETURN_IF_ERROR(AddEntries(plain, raw, *builder));
    // Both streams are read to their ends: what follows the archive belongs to the digests.
    ESKER_ASSIGN_OR_RETURN(layer.diff_id, plain.DrainAndDigest());
    ESKER_ASSIGN_OR_RETURN(layer.source_digest, raw.DrainAndDigest());
  } else {
    ESKER_RETURN_IF_ERROR(AddEntries(raw, raw, *builder));
    ESKER_ASSIGN_OR_RETURN(layer.diff_id, raw.DrainAndDigest());
    layer.source_digest = layer.diff_id;
  }
  builder->progress().bytes_read = raw.bytes();
  ESKER_RETURN_IF_ERROR(import_internal::CheckDigest("the digest of the layer as read",
                                                     options.expected_digest, layer.source_digest));
  ESKER_RETURN_IF_ERROR(import_internal::CheckDigest("the digest of the uncompressed layer",
                                                     options.expected_diff_id, layer.diff_id));
  return builder->Finish(std::move(layer), nullptr);
}

}  // namespace esker
