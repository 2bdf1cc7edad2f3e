#include "compressor.h"
#include "data_reader.h"
#include "imagefs/erofs_reader.h"
#include "imagefs/export.h"
#include "imagefs/read_blob.h"
#include "layer_names.h"
#include "tar_writer.h"

namespace esker {
namespace {

using export_internal::Compressor;
using export_internal::DataReader;
using export_internal::LayerNames;
using export_internal::TarMember;
using export_internal::TarWriter;

constexpr std::string_view kWhiteoutPrefix = ".wh.";
constexpr const char* kOpaqueMarker = ".wh..wh..opq";
constexpr const char* kOpaqueXattr = "trusted.overlay.opaque";
constexpr const char* kImplicitXattr = "trusted.esker.implicit";
// Fewer bytes of holes are written as zeros: importing makes holes of them all the same, and not
// every tool knows sparse members.
constexpr uint64_t kLeastHoles = 1u << 20;
constexpr size_t kMaxLeftOut = 100;

bool IsWhiteout(const erofs::Node& node) {
  return node.type == erofs::FileType::kCharDevice && node.device_major == 0 &&
         node.device_minor == 0;
}

char TypeOf(erofs::FileType type) {
  switch (type) {
    case erofs::FileType::kDirectory:
      return '5';
    case erofs::FileType::kSymlink:
      return '2';
    case erofs::FileType::kCharDevice:
      return '3';
    case erofs::FileType::kBlockDevice:
      return '4';
    case erofs::FileType::kFifo:
      return '6';
    case erofs::FileType::kRegular:
    case erofs::FileType::kSocket:
      break;
  }
  return '0';
}

std::string Joined(const std::string& directory, std::string_view name) {
  return directory.empty() ? std::string(name) : directory + "/" + std::string(name);
}

class LayerExport {
 public:
  LayerExport(const ExportSource& source, const erofs::LayerReader& layer, DataReader* data,
              TarWriter& tar, ExportedLayer& out)
      : source_(source), layer_(layer), data_(data), tar_(tar), out_(out) {}

  Status Run() {
    ESKER_ASSIGN_OR_RETURN(names_, LayerNames::Gather(layer_));
    for (const LayerNames::Name& name : names_.directories()) {
      ESKER_RETURN_IF_ERROR(Each(name, &LayerExport::AddDirectory));
    }
    for (const LayerNames::Name& name : names_.inodes()) {
      ESKER_RETURN_IF_ERROR(Each(name, &LayerExport::AddInode));
    }
    for (const LayerNames::Link& link : names_.links()) ESKER_RETURN_IF_ERROR(AddLink(link));
    return tar_.End();
  }

 private:
  using Add = Status (LayerExport::*)(const LayerNames::Name&, const std::string&, erofs::Node&);

  Status Each(const LayerNames::Name& name, Add add) {
    if (source_.cancelled && source_.cancelled()) return CancelledError("the export was cancelled");
    erofs::LayerReader::Info info;
    ESKER_ASSIGN_OR_RETURN(erofs::Node node, layer_.Read(name.nid, &info));
    const std::string path = names_.Path(name);
    Status status = CheckName(path);
    if (status.ok()) status = (this->*add)(name, path, node);
    return status.ok() ? status : std::move(status).Wrap("export \"" + path + "\"");
  }

  static Status CheckName(const std::string& path) {
    if (!std::string_view(path).substr(path.rfind('/') + 1).starts_with(kWhiteoutPrefix)) {
      return OkStatus();
    }
    return FailedPreconditionError(
        "an OCI layer takes this name for a whiteout, so it cannot hold it");
  }

  static TarMember MemberOf(const std::string& path, erofs::Node& node) {
    TarMember member;
    member.type = TypeOf(node.type);
    member.path = path;
    member.link_target = std::move(node.symlink_target);
    member.mode = node.mode;
    member.uid = node.uid;
    member.gid = node.gid;
    member.mtime_seconds = node.mtime_seconds;
    member.mtime_nanos = node.mtime_nanos;
    member.device_major = node.device_major;
    member.device_minor = node.device_minor;
    member.xattrs = std::move(node.xattrs);
    member.size = node.size;
    return member;
  }

  Status AddEmpty(const std::string& path) {
    TarMember marker;
    marker.path = path;
    return tar_.Begin(marker);
  }

  Status AddDirectory(const LayerNames::Name& name, const std::string& path, erofs::Node& node) {
    const bool opaque = node.xattrs.erase(kOpaqueXattr) != 0;
    bool implicit = node.xattrs.erase(kImplicitXattr) != 0;
    if (implicit && !opaque) {
      // Without a name below it nothing would make it again.
      ESKER_ASSIGN_OR_RETURN(bool empty, IsEmpty(name.nid));
      implicit = !empty || path.empty();
    }
    if (!implicit) {
      TarMember member = MemberOf(path.empty() ? "./" : path + "/", node);
      member.size = 0;
      ESKER_RETURN_IF_ERROR(tar_.Begin(member));
    }
    return opaque ? AddEmpty(Joined(path, kOpaqueMarker)) : OkStatus();
  }

  Result<bool> IsEmpty(uint64_t directory) const {
    bool empty = true;
    ESKER_RETURN_IF_ERROR(layer_.ForEachChild(directory, [&](std::string_view, uint64_t) {
      empty = false;
      return OkStatus();
    }));
    return empty;
  }

  Status AddInode(const LayerNames::Name&, const std::string& path, erofs::Node& node) {
    if (IsWhiteout(node)) return AddWhiteout(path);
    if (node.type == erofs::FileType::kSocket) {
      if (out_.left_out.size() < kMaxLeftOut) out_.left_out.push_back(path);
      ++out_.left_out_count;
      return OkStatus();
    }
    if (node.type == erofs::FileType::kRegular) return AddFile(path, node);
    return tar_.Begin(MemberOf(path, node));
  }

  Status AddWhiteout(const std::string& path) {
    const size_t slash = path.rfind('/');
    const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash);
    return AddEmpty(Joined(directory, std::string(kWhiteoutPrefix) + path.substr(slash + 1)));
  }

  Status AddFile(const std::string& path, erofs::Node& node) {
    const std::vector<erofs::Extent> extents = std::move(node.extents);
    TarMember member = MemberOf(path, node);
    uint64_t stored = 0;
    for (const erofs::Extent& extent : extents) stored += extent.length;
    member.sparse = member.size - stored >= kLeastHoles;
    if (member.sparse) member.runs = RunsOf(extents);
    ESKER_RETURN_IF_ERROR(tar_.Begin(member));
    const ByteSink sink = [this](std::string_view bytes) { return tar_.Write(bytes); };
    uint64_t at = 0;
    for (const erofs::Extent& extent : extents) {
      if (data_ == nullptr) return DataLossError("it has content, its layer has no data");
      if (!member.sparse) ESKER_RETURN_IF_ERROR(WriteZeros(extent.file_offset - at));
      ESKER_RETURN_IF_ERROR(data_->Read(extent.device_offset, extent.length, sink));
      at = extent.file_offset + extent.length;
    }
    if (!member.sparse) ESKER_RETURN_IF_ERROR(WriteZeros(member.size - at));
    return tar_.EndContent();
  }

  // Neighbours in the file are one run, wherever they lie in the device.
  static std::vector<std::pair<uint64_t, uint64_t>> RunsOf(
      const std::vector<erofs::Extent>& extents) {
    std::vector<std::pair<uint64_t, uint64_t>> runs;
    for (const erofs::Extent& extent : extents) {
      if (!runs.empty() && runs.back().first + runs.back().second == extent.file_offset) {
        runs.back().second += extent.length;
      } else {
        runs.emplace_back(extent.file_offset, extent.length);
      }
    }
    return runs;
  }

  Status WriteZeros(uint64_t bytes) {  // less than kLeastHoles
    return bytes == 0 ? OkStatus() : tar_.Write(std::string(bytes, '\0'));
  }

  Status AddLink(const LayerNames::Link& link) {
    const LayerNames::Name& first = names_.inodes()[link.target];
    const std::string path = names_.Path(link.name);
    erofs::LayerReader::Info info;
    ESKER_ASSIGN_OR_RETURN(erofs::Node node, layer_.Read(first.nid, &info));
    Status status = CheckName(path);
    if (!status.ok()) return std::move(status).Wrap("export \"" + path + "\"");
    if (IsWhiteout(node)) return AddWhiteout(path);
    if (node.type == erofs::FileType::kSocket) {
      ++out_.left_out_count;
      return OkStatus();
    }
    TarMember member = MemberOf(path, node);
    member.type = '1';
    member.link_target = names_.Path(first);
    member.size = 0;
    member.xattrs.clear();
    return tar_.Begin(member);
  }

  const ExportSource& source_;
  const erofs::LayerReader& layer_;
  DataReader* const data_;
  TarWriter& tar_;
  ExportedLayer& out_;
  LayerNames names_;
};

const char* MediaType(LayerCompression compression) {
  switch (compression) {
    case LayerCompression::kGzip:
      return "application/vnd.oci.image.layer.v1.tar+gzip";
    case LayerCompression::kZstd:
      return "application/vnd.oci.image.layer.v1.tar+zstd";
    case LayerCompression::kNone:
      break;
  }
  return "application/vnd.oci.image.layer.v1.tar";
}

// Counts, hashes and passes on.
class HashingSink {
 public:
  explicit HashingSink(ByteSink next) : next_(std::move(next)) {}
  Status Write(std::string_view bytes) {
    hash_.Update(bytes);
    size_ += bytes.size();
    return next_(bytes);
  }
  std::string Digest() { return "sha256:" + hash_.Finish().ToHex(); }
  uint64_t size() const { return size_; }

 private:
  ByteSink next_;
  Sha256 hash_;
  uint64_t size_ = 0;
};

}  // namespace

Result<LayerCompression> ParseCompression(std::string_view name) {
  if (name == "none") return LayerCompression::kNone;
  if (name == "gzip") return LayerCompression::kGzip;
  if (name == "zstd") return LayerCompression::kZstd;
  return InvalidArgumentError("compression \"" + std::string(name) +
                              "\" is not one of gzip, zstd, none");
}

Result<ExportedLayer> ExportLayer(const ExportSource& source, const ImageLayer& layer,
                                  LayerCompression compression, const ByteSink& sink) {
  ESKER_ASSIGN_OR_RETURN(BlobMap metadata_map, source.maps(layer.metadata));
  ESKER_ASSIGN_OR_RETURN(std::string metadata,
                         ReadBlob(source.store, metadata_map, layer.metadata_bytes));
  ESKER_ASSIGN_OR_RETURN(erofs::LayerReader reader,
                         erofs::LayerReader::Open(
                             {reinterpret_cast<const uint8_t*>(metadata.data()), metadata.size()}));
  std::unique_ptr<DataReader> data;
  if (layer.has_data()) {
    ESKER_ASSIGN_OR_RETURN(BlobMap data_map, source.maps(layer.data));
    data = std::make_unique<DataReader>(source.store, std::move(data_map));
  }
  ExportedLayer out;
  out.media_type = MediaType(compression);
  HashingSink stored(sink);
  ESKER_ASSIGN_OR_RETURN(
      std::unique_ptr<Compressor> compressor,
      Compressor::Create(compression, [&](std::string_view b) { return stored.Write(b); }));
  HashingSink plain([&](std::string_view b) { return compressor->Write(b); });
  TarWriter tar([&](std::string_view b) { return plain.Write(b); });
  ESKER_RETURN_IF_ERROR(LayerExport(source, reader, data.get(), tar, out).Run());
  ESKER_RETURN_IF_ERROR(compressor->Finish());
  out.diff_id = plain.Digest();
  out.plain_size = plain.size();
  out.digest = stored.Digest();
  out.size = stored.size();
  return out;
}

}  // namespace esker
