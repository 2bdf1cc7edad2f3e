#include "image_service.h"

#include <algorithm>
#include <cstring>

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

// Images and their names belong to no project yet, so a key of one project may add names, but not
// take or move those that others may rely on.
Status CheckMayChange(const Caller& caller) {
  if (caller.project == "*") return OkStatus();
  return PermissionDeniedError("a key of project " + caller.project +
                               " may add image names, but not remove or move them; use a key of "
                               "all projects");
}

Status CheckMayName(Services& s, const Caller& caller, const std::string& tag, const ImageId& id) {
  Result<ImageRecord> now = s.index.ResolveImage(tag);
  if (now.status().code() == Code::kNotFound) return OkStatus();
  ESKER_RETURN_IF_ERROR(now.status());
  return now->id == id ? OkStatus() : CheckMayChange(caller);
}

// Which image it is shows only at the end, so a key that may not move the name is told then.
Result<ImageId> FinishPush(Services& s, const Caller& caller, ImagePush* push,
                           const std::string& tag) {
  if (caller.project == "*" || tag.empty()) return push->Finish(tag);
  ESKER_ASSIGN_OR_RETURN(ImageId id, push->Finish(""));
  Status may = CheckMayName(s, caller, tag, id);
  if (may.ok()) may = s.index.SetTag(tag, id);
  if (may.ok()) return id;
  // Nameless now, unless others have it under another name: then this is refused, as it should be.
  (void)s.index.DeleteImage(id, /*force=*/false);
  return may;
}

Status DoPush(Services& s, const Caller& caller, grpc::ServerContext* context, PushStream* stream) {
  v1::PushRequest request;
  if (!stream->Read(&request) || !request.has_begin()) {
    return InvalidArgumentError("push: the first message must begin the push");
  }
  v1::PushRequest::Begin begin = request.begin();
  std::string tag;
  if (!begin.tag().empty()) {
    ESKER_ASSIGN_OR_RETURN(tag, NormaliseTag(begin.tag()));
  }
  ESKER_ASSIGN_OR_RETURN(OciImage image, DescribeImage(begin));
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ImagePush> push,
                         ImagePush::Start(s.store, s.index, image));
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
  ESKER_ASSIGN_OR_RETURN(ImageId id, FinishPush(s, caller, push.get(), tag));
  ESKER_ASSIGN_OR_RETURN(ImageRecord record, s.index.GetImage(id));
  event.Clear();
  *event.mutable_done()->mutable_image() = gateway::ToProto(record);
  v1::PushProgress* totals = event.mutable_done()->mutable_totals();
  *totals = ToProto(push->totals().bytes);
  totals->set_layers(push->totals().layers);
  totals->set_layers_reused(push->totals().layers_reused);
  stream->Write(event);
  return OkStatus();
}

Status RemoveImage(Services& s, const v1::RemoveImageRequest& request, bool* removed) {
  ESKER_ASSIGN_OR_RETURN(ImageRecord record, s.index.ResolveImage(request.reference()));
  bool by_id = record.id.ToHex().starts_with(request.reference());
  if (by_id) {
    *removed = true;
    return s.index.DeleteImage(record.id, request.force());
  }
  ESKER_ASSIGN_OR_RETURN(std::string tag, NormaliseTag(request.reference()));
  ESKER_RETURN_IF_ERROR(s.index.DeleteTag(tag));
  *removed = record.tags.size() <= 1;
  return OkStatus();
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
    ESKER_RETURN_IF_ERROR(s_.Authenticate(*context).status());
    ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> records, s_.index.ListImages());
    for (const ImageRecord& record : records) {
      if (record.manifest.kind == "snapshot" && !request->include_snapshots()) continue;
      bool named = std::any_of(record.tags.begin(), record.tags.end(), [&](const std::string& t) {
        return t.starts_with(request->prefix());
      });
      if (!request->prefix().empty() && !named) continue;
      *response->add_images() = gateway::ToProto(record);
    }
    return OkStatus();
  };
  return ToGrpc(*context, list(), "IMAGE");
}

grpc::Status ImageService::Inspect(grpc::ServerContext* context,
                                   const v1::InspectImageRequest* request, v1::Image* response) {
  auto inspect = [&]() -> Status {
    ESKER_RETURN_IF_ERROR(s_.Authenticate(*context).status());
    ESKER_ASSIGN_OR_RETURN(ImageRecord record, s_.index.ResolveImage(request->reference()));
    *response = gateway::ToProto(record);
    return OkStatus();
  };
  return ToGrpc(*context, inspect(), "IMAGE");
}

grpc::Status ImageService::Remove(grpc::ServerContext* context,
                                  const v1::RemoveImageRequest* request,
                                  v1::RemoveImageResponse* response) {
  auto remove = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    ESKER_RETURN_IF_ERROR(CheckMayChange(caller));
    bool removed = false;
    ESKER_RETURN_IF_ERROR(RemoveImage(s_, *request, &removed));
    response->set_removed_image(removed);
    return OkStatus();
  };
  return ToGrpc(*context, remove(), "IMAGE");
}

grpc::Status ImageService::Tag(grpc::ServerContext* context, const v1::TagImageRequest* request,
                               v1::Image* response) {
  auto tag = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    ESKER_ASSIGN_OR_RETURN(ImageRecord record, s_.index.ResolveImage(request->reference()));
    ESKER_ASSIGN_OR_RETURN(std::string name, NormaliseTag(request->tag()));
    ESKER_RETURN_IF_ERROR(CheckMayName(s_, caller, name, record.id));
    ESKER_RETURN_IF_ERROR(s_.index.SetTag(name, record.id));
    ESKER_ASSIGN_OR_RETURN(record, s_.index.GetImage(record.id));
    *response = gateway::ToProto(record);
    return OkStatus();
  };
  return ToGrpc(*context, tag(), "IMAGE");
}

grpc::Status SnapshotService::List(grpc::ServerContext* context,
                                   const v1::ListSnapshotsRequest* request,
                                   v1::ListImagesResponse* response) {
  auto list = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> records, s_.index.ListImages());
    auto origin = [](const ImageRecord& record, const char* key) {
      auto it = record.manifest.origin.find(key);
      return it == record.manifest.origin.end() ? std::string() : it->second;
    };
    for (const ImageRecord& record : records) {
      if (record.manifest.kind != "snapshot") continue;
      if (!caller.MaySee(origin(record, "project"))) continue;
      if (!request->project().empty() && origin(record, "project") != request->project()) continue;
      if (!request->sandbox_id().empty() && origin(record, "sandbox") != request->sandbox_id()) {
        continue;
      }
      *response->add_images() = gateway::ToProto(record);
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
    ESKER_ASSIGN_OR_RETURN(ImageRecord record, s_.index.ResolveImage(request->id()));
    auto project = record.manifest.origin.find("project");
    if (record.manifest.kind != "snapshot" ||
        (project != record.manifest.origin.end() && !caller.MaySee(project->second))) {
      return NotFoundError("there is no snapshot " + request->id());
    }
    ESKER_RETURN_IF_ERROR(s_.index.DeleteImage(record.id, /*force=*/true));
    response->set_removed_image(true);
    return OkStatus();
  };
  return ToGrpc(*context, remove(), "SNAPSHOT");
}

}  // namespace esker::gateway
