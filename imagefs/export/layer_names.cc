#include "layer_names.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace esker::export_internal {

class LayerNames::Walk {
 public:
  Walk(const erofs::LayerReader& layer, LayerNames& out) : layer_(layer), out_(out) {}

  Status Run() {
    out_.texts_.assign(1, '\0');
    out_.directories_.push_back({0, 0, layer_.root(), 0});
    for (size_t i = 0; i < out_.directories_.size(); ++i) {
      const uint64_t nid = out_.directories_[i].nid;
      const auto parent = static_cast<uint32_t>(i);
      ESKER_RETURN_IF_ERROR(layer_.ForEachChild(
          nid, [&](std::string_view text, uint64_t child) { return Add(parent, text, child); }));
    }
    SortByPlace();
    return OkStatus();
  }

 private:
  Status Add(uint32_t parent, std::string_view text, uint64_t nid) {
    if (out_.texts_.size() + text.size() >= UINT32_MAX) {
      return ResourceExhaustedError("the layer's names have more than 4 GiB");
    }
    const Name name = {parent, static_cast<uint32_t>(out_.texts_.size()), nid, 0};
    out_.texts_ += text;
    out_.texts_ += '\0';
    if (auto first = linked_.find(nid); first != linked_.end()) {
      out_.links_.push_back({name, first->second});
      return OkStatus();
    }
    erofs::LayerReader::Info info;
    ESKER_ASSIGN_OR_RETURN(erofs::Node node, layer_.Read(nid, &info));
    if (info.type == erofs::FileType::kDirectory) {
      out_.directories_.push_back(name);
      return OkStatus();
    }
    if (info.link_count > 1) linked_.emplace(nid, static_cast<uint32_t>(out_.inodes_.size()));
    out_.inodes_.push_back(name);
    if (!node.extents.empty()) {
      out_.inodes_.back().device_offset = node.extents.front().device_offset + 1;  // 0: no content
    }
    return OkStatus();
  }

  void SortByPlace() {
    std::vector<uint32_t> order(out_.inodes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return out_.inodes_[a].device_offset < out_.inodes_[b].device_offset;
    });
    std::vector<uint32_t> place(order.size());
    std::vector<Name> sorted;
    sorted.reserve(order.size());
    for (uint32_t i = 0; i < order.size(); ++i) {
      place[order[i]] = i;
      sorted.push_back(out_.inodes_[order[i]]);
    }
    out_.inodes_ = std::move(sorted);
    for (Link& link : out_.links_) link.target = place[link.target];
  }

  const erofs::LayerReader& layer_;
  LayerNames& out_;
  std::unordered_map<uint64_t, uint32_t> linked_;
};

Result<LayerNames> LayerNames::Gather(const erofs::LayerReader& layer) {
  LayerNames out;
  ESKER_RETURN_IF_ERROR(Walk(layer, out).Run());
  return out;
}

std::string LayerNames::Path(const Name& name) const {
  std::vector<const char*> parts;
  const Name* at = &name;
  while (texts_[at->text] != '\0') {
    parts.push_back(&texts_[at->text]);
    at = &directories_[at->parent];
  }
  std::string path;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (!path.empty()) path += '/';
    path += *part;
  }
  return path;
}

}  // namespace esker::export_internal
