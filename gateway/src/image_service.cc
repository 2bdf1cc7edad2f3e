#include "image_service.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "base/id.h"
#include "convert.h"
#include "snapshotter/push.h"

namespace esker::gateway {
namespace {

using PushStream = grpc::ServerReaderWriter<v1::PushEvent, v1::PushRequest>;

v1::PushProgress ToProto(const ImportProgress& progress) {
  v1::PushProgress out;
  out.set_bytes_read(progress.bytes_read);
  out.set_bytes_plain(progress.bytes_plain);
  out.set_bytes_stored(progress.bytes_stored);
  out.set_bytes_deduplicated(progress.bytes_deduplicated);
  out.set_entries(progress.entries);
  return out;
}

// One layer's bytes as they come in data messages, until end_of_layer.
class StreamSource final : public ByteSource {
 public:
  explicit StreamSource(PushStream* stream) : stream_(stream) {}

  Result<size_t> Read(void* buffer, size_t size) override {
    while (at_ == message_.data().size()) {
      if (ended_) return size_t{0};
      if (!stream_->Read(&message_)) {
        return CancelledError("the client ended the push in the middle of a layer");
      }
      at_ = 0;
      if (message_.has_end_of_layer()) {
        ended_ = true;
        message_.Clear();
      } else if (message_.part_case() != v1::PushRequest::kData) {
        return InvalidArgumentError("push: expected layer data or its end");
      }
    }
    size_t n = std::min(size, message_.data().size() - at_);
    std::memcpy(buffer, message_.data().data() + at_, n);
    at_ += n;
    return n;
  }

  // What the importer did not need (bytes after the end of the archive) is still to be read.
  Status Drain() {
    char buffer[65536];
    for (;;) {
      ESKER_ASSIGN_OR_RETURN(size_t n, Read(buffer, sizeof(buffer)));
      if (n == 0) return OkStatus();
    }
  }

 private:
  PushStream* stream_;
  v1::PushRequest message_;
  size_t at_ = 0;
  bool ended_ = false;
};

Result<OciImage> DescribeImage(const v1::PushRequest::Begin& begin) {
  if (!begin.single_tar()) return ParseOciImage(begin.manifest_json(), begin.config_json());
  OciImage image;
  image.layers.emplace_back();  // one layer of unknown digest
  return image;
}

Status ImportMissing(PushStream* stream, grpc::ServerContext* context, const OciImage& image,
                     ImagePush* push) {
  ImportProgress before;
  for (size_t layer : push->missing()) {
    v1::PushRequest request;
    if (!stream->Read(&request)) return CancelledError("the client ended the push");
    if (!request.has_layer() || request.layer().index() != layer) {
      return InvalidArgumentError("push: expected layer " + std::to_string(layer) + " next");
    }
    ImportOptions options;
    options.expected_digest = image.layers[layer].digest;
    options.expected_diff_id = image.layers[layer].diff_id;
    options.cancelled = [context] { return context->IsCancelled(); };
    options.on_progress = [&](const ImportProgress& now) {
      v1::PushEvent event;
      ImportProgress sum = before;
      sum.bytes_read += now.bytes_read;
      sum.bytes_plain += now.bytes_plain;
      sum.bytes_stored += now.bytes_stored;
      sum.bytes_deduplicated += now.bytes_deduplicated;
      sum.entries += now.entries;
      *event.mutable_progress() = ToProto(sum);
      stream->Write(event);
    };
    StreamSource source(stream);
    ESKER_RETURN_IF_ERROR(
        push->ImportLayer(layer, source, options).Wrap("import layer " + std::to_string(layer)));
    ESKER_RETURN_IF_ERROR(source.Drain());
    before = push->totals().bytes;
  }
  return OkStatus();
}

// Where names are looked up and nothing is changed: a caller of all projects that says none means
// the one that its sandboxes are in then.
constexpr const char* kUsualProject = "default";

Result<ImageView> ViewFor(const Caller& caller, const std::string& asked) {
  ESKER_ASSIGN_OR_RETURN(std::string project, caller.ChooseProject(asked, kUsualProject));
  return caller.View(project);
}

// The full name that a caller gives or takes away: of its project, else a shared one.
Result<std::string> NameToChange(const Caller& caller, const std::string& asked,
                                 const std::string& reference) {
  ESKER_ASSIGN_OR_RETURN(std::string project, caller.ChooseProject(asked, ""));
  return NameInProject(project, reference);
}

Result<v1::Image> Show(Services& s, const ImageView& view, const ImageId& id) {
  ESKER_ASSIGN_OR_RETURN(ImageRecord record, s.index.GetImage(id));
  RestrictToView(view, record);
  return gateway::ToProto(record, view);
}

std::string Origin(const ImageRecord& record, const char* key) {
  auto it = record.manifest.origin.find(key);
  return it == record.manifest.origin.end() ? std::string() : it->second;
}

bool IsSnapshotOf(const ImageRecord& record, const std::string& project) {
  return record.manifest.kind == "snapshot" && Origin(record, "project") == project;
}

// The name under which a push ends, "" for none.
Result<std::string> NameOfPush(const Caller& caller, const v1::PushRequest::Begin& begin) {
  if (!begin.job().empty()) ESKER_RETURN_IF_ERROR(CheckIdentifier("job", begin.job()));
  if (!begin.tag().empty()) return NameToChange(caller, begin.project(), begin.tag());
  if (!caller.bound() && begin.project().empty()) return std::string();
  return InvalidArgumentError(
      "push: an image of a project needs a name: it is its project's by that");
}

// Who knows a layer's name need not know the layer: a caller of one project takes by name only what
// images that it sees are made of. The rest it sends, and it is stored once all the same.
Result<ImagePush::MayReuse> LayersToReuse(Services& s, const Caller& caller) {
  if (!caller.bound()) return ImagePush::MayReuse();
  auto seen = std::make_shared<std::set<std::string>>();
  ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> records, s.index.ListImages());
  for (ImageRecord& record : records) {
    if (!RestrictToView(caller.View(caller.project), record)) continue;
    for (const ImageLayer& layer : record.manifest.layers) seen->insert(layer.diff_id);
  }
  return ImagePush::MayReuse(
      [seen](const std::string& diff_id) { return seen->contains(diff_id); });
}

Status DoPush(Services& s, const Caller& caller, grpc::ServerContext* context, PushStream* stream) {
  v1::PushRequest request;
  if (!stream->Read(&request) || !request.has_begin()) {
    return InvalidArgumentError("push: the first message must begin the push");
  }
  v1::PushRequest::Begin begin = request.begin();
  ESKER_ASSIGN_OR_RETURN(std::string name, NameOfPush(caller, begin));
  ESKER_ASSIGN_OR_RETURN(OciImage image, DescribeImage(begin));
  ESKER_ASSIGN_OR_RETURN(ImagePush::MayReuse may_reuse, LayersToReuse(s, caller));
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ImagePush> push,
                         ImagePush::Start(s.store, s.index, image, std::move(may_reuse)));
  v1::PushEvent event;
  event.mutable_missing();
  for (size_t layer : push->missing()) {
    event.mutable_missing()->add_layers(static_cast<uint32_t>(layer));
  }
  if (!stream->Write(event)) return CancelledError("the client ended the push");
  ESKER_RETURN_IF_ERROR(ImportMissing(stream, context, image, push.get()));
  if (!stream->Read(&request) || !request.end()) {
    return CancelledError("the client ended the push before its end");
  }
  ESKER_ASSIGN_OR_RETURN(ImageId id, push->Finish(name, begin.job()));
  ESKER_ASSIGN_OR_RETURN(ImageView view, ViewFor(caller, begin.project()));
  event.Clear();
  ESKER_ASSIGN_OR_RETURN(*event.mutable_done()->mutable_image(), Show(s, view, id));
  v1::PushProgress* totals = event.mutable_done()->mutable_totals();
  *totals = ToProto(push->totals().bytes);
  totals->set_layers(push->totals().layers);
  totals->set_layers_reused(push->totals().layers_reused);
  stream->Write(event);
  return OkStatus();
}

// All that a caller of one project can remove of an image: its names, and its snapshot once that
// has no other names.
Status RemoveOwn(Services& s, const Caller& caller, const ImageRecord& record, bool force) {
  std::vector<std::string> own;
  for (const std::string& name : record.tags) {
    if (ProjectOfName(name) == caller.project) own.push_back(name);
  }
  const bool own_snapshot = IsSnapshotOf(record, caller.project);
  if (own.empty() && !own_snapshot) {
    return PermissionDeniedError("image " + record.id.ToHex() + " is shared by all projects; " +
                                 caller.project + " cannot remove it");
  }
  if (!own.empty() && !force) {
    return FailedPreconditionError("image " + record.id.ToHex() + " has " +
                                   std::to_string(own.size()) + " tag(s), first " + own.front() +
                                   "; remove them first, or force it");
  }
  for (const std::string& name : own) {
    Status removed = s.index.DeleteTag(name);
    if (removed.code() != Code::kNotFound) ESKER_RETURN_IF_ERROR(removed);
  }
  if (!own_snapshot) return OkStatus();
  // Refused while it has names, which can only be those of others now: then they keep it.
  Status deleted = s.index.DeleteImage(record.id, /*force=*/false);
  return deleted.code() == Code::kFailedPrecondition ? OkStatus() : deleted;
}

Status RemoveById(Services& s, const Caller& caller, const ImageRecord& record, bool force) {
  if (caller.bound()) return RemoveOwn(s, caller, record, force);
  return s.index.DeleteImage(record.id, force);
}

Status RemoveName(Services& s, const Caller& caller, const ImageRecord& record,
                  const std::string& full_name) {
  if (std::find(record.tags.begin(), record.tags.end(), full_name) != record.tags.end()) {
    return s.index.DeleteTag(full_name);
  }
  const std::string why = "project " + std::string(ProjectOfName(full_name)) +
                          " has no image name " + std::string(NameWithoutProject(full_name)) +
                          "; the one there is is shared by all projects";
  return caller.bound() ? PermissionDeniedError(why) : NotFoundError(why);
}

// Names come before ids, as in look-ups.
bool IsNamed(const ImageRecord& record, const std::string& reference) {
  Result<std::string> full = NormaliseTag(reference);
  return full.ok() && std::any_of(record.tags.begin(), record.tags.end(), [&](auto& tag) {
           return NameWithoutProject(tag) == NameWithoutProject(*full);
         });
}

Status RemoveImage(Services& s, const Caller& caller, const v1::RemoveImageRequest& request,
                   v1::RemoveImageResponse* response) {
  ESKER_ASSIGN_OR_RETURN(std::string project, caller.ChooseProject(request.project(), ""));
  const ImageView view = caller.View(project);
  ESKER_ASSIGN_OR_RETURN(ImageRecord record, s.index.ResolveImage(request.reference(), view));
  if (IsNamed(record, request.reference())) {
    ESKER_ASSIGN_OR_RETURN(std::string name, NameInProject(project, request.reference()));
    ESKER_RETURN_IF_ERROR(RemoveName(s, caller, record, name));
  } else {
    ESKER_RETURN_IF_ERROR(RemoveById(s, caller, record, request.force()));
  }
  Status left = s.index.ResolveImage(record.id.ToHex(), view).status();
  response->set_removed_image(left.code() == Code::kNotFound);
  return OkStatus();
}

// Leaves only the names that match; false if the image is not to be listed.
bool MatchForList(const v1::ListImagesRequest& request, ImageRecord& record) {
  const bool snapshot = record.manifest.kind == "snapshot";
  if (snapshot && !request.include_snapshots()) return false;
  auto named = [&](const std::string& name) {
    return NameWithoutProject(name).starts_with(request.prefix());
  };
  if (!request.project().empty()) {
    std::erase_if(record.tags, [&](auto& tag) { return ProjectOfName(tag) != request.project(); });
    if (record.tags.empty() && !IsSnapshotOf(record, request.project())) return false;
  }
  return request.prefix().empty() || std::any_of(record.tags.begin(), record.tags.end(), named);
}

}  // namespace

grpc::Status ImageService::Push(grpc::ServerContext* context, PushStream* stream) {
  Result<Caller> caller = s_.Authenticate(*context);
  Status status = caller.ok() ? DoPush(s_, *caller, context, stream) : caller.status();
  return ToGrpc(*context, status, "IMAGE");
}

grpc::Status ImageService::List(grpc::ServerContext* context, const v1::ListImagesRequest* request,
                                v1::ListImagesResponse* response) {
  auto list = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    ESKER_ASSIGN_OR_RETURN(ImageView view, ViewFor(caller, request->project()));
    ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> records, s_.index.ListImages());
    for (ImageRecord& record : records) {
      if (!RestrictToView(view, record) || !MatchForList(*request, record)) continue;
      *response->add_images() = gateway::ToProto(record, view);
    }
    return OkStatus();
  };
  return ToGrpc(*context, list(), "IMAGE");
}

grpc::Status ImageService::Inspect(grpc::ServerContext* context,
                                   const v1::InspectImageRequest* request, v1::Image* response) {
  auto inspect = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    ESKER_ASSIGN_OR_RETURN(ImageView view, ViewFor(caller, request->project()));
    ESKER_ASSIGN_OR_RETURN(ImageRecord record, s_.index.ResolveImage(request->reference(), view));
    *response = gateway::ToProto(record, view);
    return OkStatus();
  };
  return ToGrpc(*context, inspect(), "IMAGE");
}

grpc::Status ImageService::Remove(grpc::ServerContext* context,
                                  const v1::RemoveImageRequest* request,
                                  v1::RemoveImageResponse* response) {
  auto remove = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    return RemoveImage(s_, caller, *request, response);
  };
  return ToGrpc(*context, remove(), "IMAGE");
}

grpc::Status ImageService::Tag(grpc::ServerContext* context, const v1::TagImageRequest* request,
                               v1::Image* response) {
  auto tag = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    ESKER_ASSIGN_OR_RETURN(ImageView view, ViewFor(caller, request->project()));
    ESKER_ASSIGN_OR_RETURN(std::string name,
                           NameToChange(caller, request->project(), request->tag()));
    ESKER_ASSIGN_OR_RETURN(ImageRecord record, s_.index.ResolveImage(request->reference(), view));
    ESKER_RETURN_IF_ERROR(s_.index.SetTag(name, record.id, request->job()));
    ESKER_ASSIGN_OR_RETURN(*response, Show(s_, view, record.id));
    return OkStatus();
  };
  return ToGrpc(*context, tag(), "IMAGE");
}

grpc::Status SnapshotService::List(grpc::ServerContext* context,
                                   const v1::ListSnapshotsRequest* request,
                                   v1::ListImagesResponse* response) {
  auto list = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    ESKER_ASSIGN_OR_RETURN(ImageView view, ViewFor(caller, request->project()));
    ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> records, s_.index.ListImages());
    for (ImageRecord& record : records) {
      const std::string project = Origin(record, "project");
      if (record.manifest.kind != "snapshot" || !caller.MaySee(project)) continue;
      if (!request->project().empty() && project != request->project()) continue;
      if (!request->sandbox_id().empty() && Origin(record, "sandbox") != request->sandbox_id()) {
        continue;
      }
      RestrictToView(view, record);
      *response->add_images() = gateway::ToProto(record, view);
    }
    return OkStatus();
  };
  return ToGrpc(*context, list(), "SNAPSHOT");
}

grpc::Status SnapshotService::Remove(grpc::ServerContext* context,
                                     const v1::RemoveSnapshotRequest* request,
                                     v1::RemoveImageResponse* response) {
  auto remove = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    ESKER_ASSIGN_OR_RETURN(ImageView view, ViewFor(caller, request->project()));
    ESKER_ASSIGN_OR_RETURN(ImageRecord record, s_.index.ResolveImage(request->id(), view));
    if (record.manifest.kind != "snapshot" || !caller.MaySee(Origin(record, "project"))) {
      return NotFoundError("there is no snapshot " + request->id());
    }
    ESKER_RETURN_IF_ERROR(RemoveById(s_, caller, record, /*force=*/true));
    response->set_removed_image(true);
    return OkStatus();
  };
  return ToGrpc(*context, remove(), "SNAPSHOT");
}

}  // namespace esker::gateway
