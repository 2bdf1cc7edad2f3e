#include "crash_story.h"

#include <algorithm>

#include "index_fixture.h"

namespace esker::testing {
namespace {

ImageLayer Layer(Store& store, Index& index, const std::string& name,
                 const std::vector<std::string>& data) {
  PackText text;
  text.chunks = data;
  text.chunks.push_back("meta of " + name);
  text.blobs = {{"meta of " + name}, data};
  Must(index.RegisterPack(WritePack(store, text)));
  return LayerOf(name, data, DiffId(name));
}

Status Publish(Store& store, Index& index, const std::string& label,
               const std::vector<std::string>& layer_names) {
  auto session = index.StartImport();
  std::vector<ImageLayer> layers;
  for (const std::string& name : layer_names) {
    layers.push_back(Layer(store, index, name, {"data of " + name, "shared"}));
  }
  return index.PublishImage(ManifestOf(label, layers)).status();
}

Result<ImageId> IdOf(Index& index, const std::string& label) {
  ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> images, index.ListImages());
  for (const ImageRecord& image : images) {
    if (image.manifest.config.labels.at("label") == label) return image.id;
  }
  return NotFoundError("no image labelled " + label);
}

Step PublishStep(const std::string& label, std::vector<std::string> layers) {
  return {"publish " + label,
          [=](Store& store, Index& index) { return Publish(store, index, label, layers); }};
}
Step TagStep(const std::string& tag, const std::string& label) {
  return {"tag " + tag + " " + label, [=](Store&, Index& index) -> Status {
            ESKER_ASSIGN_OR_RETURN(ImageId id, IdOf(index, label));
            return index.SetTag(tag, id);
          }};
}
Step UntagStep(const std::string& tag) {
  return {"untag " + tag, [=](Store&, Index& index) { return index.DeleteTag(tag); }};
}
Step DeleteStep(const std::string& label) {
  return {"delete " + label, [=](Store&, Index& index) -> Status {
            ESKER_ASSIGN_OR_RETURN(ImageId id, IdOf(index, label));
            return index.DeleteImage(id, true);
          }};
}
Step CollectStep() {
  return {"collect",
          [](Store&, Index& index) { return index.CollectGarbage(GcOptions{}).status(); }};
}

Status CheckBlob(Store& store, Index& index, const BlobId& id) {
  ESKER_ASSIGN_OR_RETURN(BlobMap map, index.GetBlobMap(id));
  for (const BlobMap::Entry& entry : map.entries) {
    ESKER_ASSIGN_OR_RETURN(UniqueFd pack, store.OpenPack(entry.location.pack));
    ESKER_ASSIGN_OR_RETURN(std::vector<uint8_t> frame, ReadFrame(pack.get(), entry.location));
    if (entry.location.offset + entry.chunk.length > frame.size() ||
        Sha256::Of(frame.data() + entry.location.offset, entry.chunk.length) !=
            entry.chunk.digest) {
      return DataLossError("blob " + id.ToHex() + " has wrong bytes");
    }
  }
  return OkStatus();
}

std::string Label(const ImageRecord& image) {
  auto name = image.manifest.origin.find("name");
  if (name != image.manifest.origin.end()) return name->second;
  auto label = image.manifest.config.labels.find("label");
  return label == image.manifest.config.labels.end() ? "?" : label->second;
}

}  // namespace

std::vector<Step> IndexStory() {
  return {
      PublishStep("A", {"base"}),
      TagStep("app:1", "A"),
      PublishStep("B", {"base", "top"}),
      TagStep("app:2", "B"),
      TagStep("app:1", "B"),  // A loses its only tag
      CollectStep(),
      PublishStep("A", {"base"}),  // again, after its tombstone
      TagStep("team/a", "A"),
      UntagStep("app:1"),
      UntagStep("app:2"),  // B goes with its last tag
      CollectStep(),
      PublishStep("C", {"top"}),
      DeleteStep("A"),
      PublishStep("A", {"base"}),  // while its packs and its tombstone are still there
      TagStep("team/a", "A"),
      DeleteStep("C"),
      CollectStep(),
      DeleteStep("A"),
      CollectStep(),
  };
}

Status CheckLayers(Store& store, Index& index, const Manifest& manifest) {
  for (const ImageLayer& layer : manifest.layers) {
    ESKER_RETURN_IF_ERROR(CheckBlob(store, index, layer.metadata));
    if (layer.has_data()) ESKER_RETURN_IF_ERROR(CheckBlob(store, index, layer.data));
  }
  return OkStatus();
}

Result<std::string> Describe(Store& store, Index& index) {
  ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> images, index.ListImages());
  std::vector<std::string> lines;
  for (const ImageRecord& image : images) {
    std::string line = Label(image) + ":";
    for (const std::string& tag : image.tags) {
      line += " " + tag;
      ESKER_ASSIGN_OR_RETURN(ImageRecord resolved, index.ResolveImage(tag));
      if (resolved.id != image.id) return InternalError("tag " + tag + " resolves elsewhere");
    }
    ESKER_RETURN_IF_ERROR(CheckLayers(store, index, image.manifest));
    lines.push_back(line + "\n");
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

std::vector<Step> StoryByName(std::string_view name) {
  if (name == "index") return IndexStory();
  if (name == "push") return PushStory();
  return {};
}

}  // namespace esker::testing
