#include <fcntl.h>

#include <fstream>

#include "crash_story.h"
#include "index_fixture.h"
#include "snapshotter/push.h"
#include "tar_maker.h"

namespace esker::testing {
namespace {

std::string Base() { return MakeTar({{"etc/os", "sand"}, {"bin/tool", std::string(9000, 't')}}); }
std::string Top() { return MakeTar({{"app/main.py", "print(1)"}, {"bin/tool", "newer"}}); }

Status Push(Store& store, Index& index, const std::string& label,
            const std::vector<std::string>& tars, const std::string& tag) {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ImagePush> push,
                         ImagePush::Start(store, index, MakeOciImage(label, tars)));
  for (size_t layer : push->missing()) {
    StringSource source(tars[layer]);
    ESKER_RETURN_IF_ERROR(push->ImportLayer(layer, source, {}));
  }
  return push->Finish(tag).status();
}

Status Commit(Store& store, Index& index, const std::string& parent, const std::string& name,
              const std::vector<std::string>& files) {
  ESKER_ASSIGN_OR_RETURN(ImageRecord image, index.ResolveImage(parent));
  ESKER_ASSIGN_OR_RETURN(TempDir upper, TempDir::Create());
  for (const std::string& file : files) std::ofstream(upper.path() + "/" + file) << file;
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(upper.path(), O_RDONLY | O_DIRECTORY));
  CommitRequest request;
  request.parent = image.id;
  request.upper_fd = fd.get();
  request.origin["name"] = name;
  return CommitUpper(store, index, request, {}).status();
}

Result<ImageId> SnapshotNamed(Index& index, const std::string& name) {
  ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> images, index.ListImages());
  for (const ImageRecord& image : images) {
    auto it = image.manifest.origin.find("name");
    if (it != image.manifest.origin.end() && it->second == name) return image.id;
  }
  return NotFoundError("no snapshot named " + name);
}

Step PushStep(const std::string& label, std::vector<std::string> tars, const std::string& tag) {
  return {"push " + label,
          [=](Store& store, Index& index) { return Push(store, index, label, tars, tag); }};
}
Step CommitStep(const std::string& parent, const std::string& name,
                std::vector<std::string> files) {
  return {"commit " + name,
          [=](Store& store, Index& index) { return Commit(store, index, parent, name, files); }};
}
Step DropStep(const std::string& name) {
  return {"drop " + name, [=](Store&, Index& index) -> Status {
            ESKER_ASSIGN_OR_RETURN(ImageId id, SnapshotNamed(index, name));
            return index.DeleteImage(id, false);
          }};
}
Step CollectStep() {
  return {"collect",
          [](Store&, Index& index) { return index.CollectGarbage(GcOptions{}).status(); }};
}

}  // namespace

std::vector<Step> PushStory() {
  return {
      PushStep("base", {Base()}, ""),  // untagged: it exists from the moment it is published
      {"tag base",
       [](Store& store, Index& index) { return Push(store, index, "base", {Base()}, "base"); }},
      PushStep("app", {Base(), Top()}, ""),
      CommitStep("base", "snap 1", {"one", "two"}),
      CommitStep("base", "snap 2", {}),
      {"untag base", [](Store&, Index& index) { return index.DeleteTag("base"); }},
      CollectStep(),
      DropStep("snap 1"),
      CollectStep(),
      PushStep("base", {Base()}, ""),
      DropStep("snap 2"),
  };
}

}  // namespace esker::testing
