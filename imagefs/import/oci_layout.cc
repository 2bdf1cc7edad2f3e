// OCI image layouts: https://github.com/opencontainers/image-spec/blob/main/image-layout.md
#include <fcntl.h>
#include <sys/stat.h>

#include "base/digest.h"
#include "base/io.h"
#include "imagefs/import.h"
#include "oci_json.h"

namespace esker {
namespace {

using import_internal::Json;

constexpr int kMaxIndexDepth = 4;
constexpr const char* kRefName = "org.opencontainers.image.ref.name";

Result<UniqueFd> OpenRegular(int root, const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenBeneath(root, path, O_RDONLY | O_NONBLOCK));
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("stat " + path);
  if (!S_ISREG(status.st_mode)) return InvalidArgumentError(path + " is not a regular file");
  return fd;
}

Result<std::string> ReadAll(int root, const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(root, path));
  std::string text(import_internal::kMaxOciJsonBytes + 1, '\0');
  ESKER_ASSIGN_OR_RETURN(size_t n, ReadFull(fd.get(), text.data(), text.size()));
  if (n > import_internal::kMaxOciJsonBytes) {
    return InvalidArgumentError(path + " is larger than " +
                                std::to_string(import_internal::kMaxOciJsonBytes) + " bytes");
  }
  text.resize(n);
  text.shrink_to_fit();
  return text;
}

std::string BlobPath(std::string_view digest) {
  return "blobs/sha256/" + std::string(digest.substr(digest.find(':') + 1));
}

// A small blob, compared with its name.
Result<std::string> ReadBlob(int root, const std::string& digest) {
  ESKER_RETURN_IF_ERROR(import_internal::CheckOciDigest(digest));
  ESKER_ASSIGN_OR_RETURN(std::string text, ReadAll(root, BlobPath(digest)));
  std::string found = "sha256:" + Sha256::Of(text).ToHex();
  if (found != digest) return DataLossError("blob " + digest + " holds the bytes of " + found);
  return text;
}

// What index.json or a nested index offers.
struct Descriptor {
  std::string media_type;
  std::string digest;
  std::string ref_name;
  std::string platform;  // "os/arch[/variant]", "" if it does not say
  bool IsIndex() const {
    return media_type == "application/vnd.oci.image.index.v1+json" ||
           media_type == "application/vnd.docker.distribution.manifest.list.v2+json";
  }
};

Result<Descriptor> ReadDescriptor(const Json& json) {
  const std::string what = "image index: a descriptor";
  if (!json.is_object()) return InvalidArgumentError(what + " is not an object");
  Descriptor out;
  ESKER_ASSIGN_OR_RETURN(out.media_type, import_internal::GetString(json, "mediaType", what));
  ESKER_ASSIGN_OR_RETURN(out.digest, import_internal::GetString(json, "digest", what));
  ESKER_ASSIGN_OR_RETURN(const Json* notes, import_internal::GetObject(json, "annotations", what));
  if (notes != nullptr) {
    ESKER_ASSIGN_OR_RETURN(out.ref_name, import_internal::GetString(*notes, kRefName, what));
  }
  ESKER_ASSIGN_OR_RETURN(const Json* platform, import_internal::GetObject(json, "platform", what));
  if (platform != nullptr) {
    ESKER_ASSIGN_OR_RETURN(std::string os, import_internal::GetString(*platform, "os", what));
    ESKER_ASSIGN_OR_RETURN(std::string architecture,
                           import_internal::GetString(*platform, "architecture", what));
    ESKER_ASSIGN_OR_RETURN(std::string variant,
                           import_internal::GetString(*platform, "variant", what));
    out.platform = os + "/" + architecture + (variant.empty() ? "" : "/" + variant);
  }
  return out;
}

Result<std::vector<Descriptor>> ReadIndex(std::string_view text) {
  ESKER_ASSIGN_OR_RETURN(Json index, import_internal::ParseJsonObject(text, "image index"));
  ESKER_ASSIGN_OR_RETURN(const Json* list,
                         import_internal::GetArray(index, "manifests", "image index"));
  std::vector<Descriptor> out;
  if (list == nullptr) return out;
  for (const Json& item : *list) {
    ESKER_ASSIGN_OR_RETURN(Descriptor descriptor, ReadDescriptor(item));
    out.push_back(std::move(descriptor));
  }
  return out;
}

// "linux/arm64" accepts "linux/arm64/v8", not the other way round.
bool PlatformFits(std::string_view wanted, std::string_view offered) {
  return offered == wanted ||
         (offered.starts_with(wanted) && offered.substr(wanted.size()).starts_with('/'));
}

std::string Join(const std::vector<Descriptor>& all, std::string Descriptor::*member) {
  std::string out;
  for (const Descriptor& one : all) {
    if ((one.*member).empty()) continue;
    if (!out.empty()) out += ", ";
    out += one.*member;
  }
  return out.empty() ? "none" : out;
}

Result<std::vector<Descriptor>> PickTag(std::vector<Descriptor> all, std::string_view tag) {
  if (tag.empty()) {
    for (const Descriptor& one : all) {
      if (one.ref_name != all[0].ref_name) {
        return InvalidArgumentError("the layout holds several images, name one: " +
                                    Join(all, &Descriptor::ref_name));
      }
    }
    return all;
  }
  std::vector<Descriptor> fitting;
  for (const Descriptor& one : all) {
    if (one.ref_name == tag) fitting.push_back(one);
  }
  if (fitting.empty()) {
    return NotFoundError("the layout has no tag \"" + std::string(tag) +
                         "\"; it has: " + Join(all, &Descriptor::ref_name));
  }
  return fitting;
}

// The one manifest for the platform, through nested indexes.
Result<Descriptor> PickManifest(int root, std::vector<Descriptor> candidates,
                                std::string_view platform) {
  for (int depth = 0; depth < kMaxIndexDepth; ++depth) {
    const Descriptor* pick = nullptr;
    for (const Descriptor& one : candidates) {
      if (!one.platform.empty() && !PlatformFits(platform, one.platform)) continue;
      // An exact platform comes before one that does not say.
      if (pick == nullptr || (pick->platform.empty() && !one.platform.empty())) pick = &one;
    }
    if (pick == nullptr) {
      return NotFoundError("the image is not there for " + std::string(platform) +
                           "; it is there for: " + Join(candidates, &Descriptor::platform));
    }
    if (!pick->IsIndex()) return *pick;
    ESKER_ASSIGN_OR_RETURN(std::string text, ReadBlob(root, pick->digest));
    ESKER_ASSIGN_OR_RETURN(candidates, ReadIndex(text));
  }
  return InvalidArgumentError("image indexes are nested too deeply");
}

Result<std::string> ConfigDigest(std::string_view manifest_text) {
  ESKER_ASSIGN_OR_RETURN(Json manifest,
                         import_internal::ParseJsonObject(manifest_text, "image manifest"));
  ESKER_ASSIGN_OR_RETURN(const Json* config,
                         import_internal::GetObject(manifest, "config", "image manifest"));
  if (config == nullptr) return InvalidArgumentError("image manifest: it has no \"config\"");
  return import_internal::GetString(*config, "digest", "image manifest: config");
}

Status CheckLayoutVersion(int root) {
  Result<std::string> text = ReadAll(root, "oci-layout");
  if (!text.ok()) {
    if (text.status().code() != Code::kNotFound) return std::move(text).status();
    return InvalidArgumentError("it is not an OCI layout: there is no file \"oci-layout\"");
  }
  ESKER_ASSIGN_OR_RETURN(Json json, import_internal::ParseJsonObject(*text, "oci-layout"));
  ESKER_ASSIGN_OR_RETURN(std::string version,
                         import_internal::GetString(json, "imageLayoutVersion", "oci-layout"));
  if (version.starts_with("1.")) return OkStatus();
  return InvalidArgumentError("OCI layout version \"" + version + "\" is not known");
}

}  // namespace

Result<std::unique_ptr<OciLayout>> OciLayout::Open(const std::string& path, std::string_view tag,
                                                   std::string_view platform) {
  auto layout = std::make_unique<OciLayout>();
  auto open = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(layout->root_, OpenFile(path, O_RDONLY | O_DIRECTORY));
    const int root = layout->root_.get();
    ESKER_RETURN_IF_ERROR(CheckLayoutVersion(root));
    ESKER_ASSIGN_OR_RETURN(std::string index, ReadAll(root, "index.json"));
    ESKER_ASSIGN_OR_RETURN(std::vector<Descriptor> all, ReadIndex(index));
    ESKER_ASSIGN_OR_RETURN(std::vector<Descriptor> tagged, PickTag(std::move(all), tag));
    ESKER_ASSIGN_OR_RETURN(Descriptor pick, PickManifest(root, std::move(tagged), platform));
    ESKER_ASSIGN_OR_RETURN(layout->manifest_json_, ReadBlob(root, pick.digest));
    ESKER_ASSIGN_OR_RETURN(std::string config, ConfigDigest(layout->manifest_json_));
    ESKER_ASSIGN_OR_RETURN(layout->config_json_, ReadBlob(root, config));
    ESKER_ASSIGN_OR_RETURN(layout->image_,
                           ParseOciImage(layout->manifest_json_, layout->config_json_));
    const std::string built_for =
        layout->image_.config.os + "/" + layout->image_.config.architecture;
    if (!PlatformFits(built_for, platform)) {
      return NotFoundError("the image is for " + built_for + ", not for " + std::string(platform));
    }
    return OkStatus();
  };
  Status status = open();
  if (!status.ok()) return std::move(status).Wrap("OCI layout " + path);
  return layout;
}

Result<UniqueFd> OciLayout::OpenBlob(std::string_view digest) const {
  ESKER_RETURN_IF_ERROR(import_internal::CheckOciDigest(digest));
  Result<UniqueFd> fd = OpenRegular(root_.get(), BlobPath(digest));
  if (!fd.ok()) return std::move(fd).status().Wrap("OCI layout: blob " + std::string(digest));
  return fd;
}

}  // namespace esker
