#include "tar_maker.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/digest.h"

namespace esker::testing {
namespace {

constexpr size_t kTarBlock = 512;

// POSIX.1-1988 ustar header.
std::string Header(const std::string& path, size_t size) {
  std::string block(kTarBlock, '\0');
  std::memcpy(block.data(), path.data(), std::min<size_t>(path.size(), 100));
  std::snprintf(&block[100], 8, "%07o", 0644);
  std::snprintf(&block[108], 8, "%07o", 0);
  std::snprintf(&block[116], 8, "%07o", 0);
  std::snprintf(&block[124], 12, "%011zo", size);
  std::snprintf(&block[136], 12, "%011o", 1'600'000'000);
  block[156] = '0';
  std::memcpy(&block[257], "ustar\00000", 8);
  std::memset(&block[148], ' ', 8);
  unsigned sum = 0;
  for (unsigned char c : block) sum += c;
  std::snprintf(&block[148], 8, "%06o", sum);
  return block;
}

}  // namespace

std::string MakeTar(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string tar;
  for (const auto& [path, content] : files) {
    tar += Header(path, content.size()) + content;
    tar.resize((tar.size() + kTarBlock - 1) / kTarBlock * kTarBlock);
  }
  tar.append(2 * kTarBlock, '\0');
  return tar;
}

OciImage MakeOciImage(const std::string& label, const std::vector<std::string>& tars) {
  OciImage image;
  image.config.architecture = "amd64";
  image.config.os = "linux";
  image.config.env = {"PATH=/bin"};
  image.config.labels["label"] = label;
  std::string all = label;
  for (const std::string& tar : tars) {
    OciLayer layer;
    layer.media_type = "application/vnd.oci.image.layer.v1.tar";
    layer.digest = "sha256:" + Sha256::Of(tar).ToHex();
    layer.diff_id = layer.digest;
    layer.size = tar.size();
    all += layer.digest;
    image.layers.push_back(layer);
  }
  image.manifest_digest = "sha256:" + Sha256::Of(all).ToHex();
  return image;
}

Result<size_t> StringSource::Read(void* buffer, size_t size) {
  size_t n = std::min(size, text_.size() - at_);
  std::memcpy(buffer, text_.data() + at_, n);
  at_ += n;
  return n;
}

}  // namespace esker::testing
