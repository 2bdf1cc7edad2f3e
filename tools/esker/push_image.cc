#include "push_image.h"

#include <thread>

namespace esker::cli {
namespace {

using PushStream = grpc::ClientReaderWriter<v1::PushRequest, v1::PushEvent>;
constexpr size_t kDataBytes = 1 << 20;

// False when the server has ended the call (its status says why).
Result<bool> SendLayer(PushStream* stream, PushSource& source, uint32_t layer) {
  v1::PushRequest request;
  request.mutable_layer()->set_index(layer);
  if (!stream->Write(request)) return false;
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> bytes, source.OpenLayer(layer));
  std::string buffer(kDataBytes, '\0');
  for (;;) {
    ESKER_ASSIGN_OR_RETURN(size_t n, bytes->Read(buffer.data(), buffer.size()));
    if (n == 0) break;
    request.set_data(buffer.data(), n);
    if (!stream->Write(request)) return false;
  }
  request.set_end_of_layer(true);
  return stream->Write(request);
}

Status SendAll(PushStream* stream, PushSource& source, const v1::PushEvent::Missing& missing) {
  for (uint32_t layer : missing.layers()) {
    ESKER_ASSIGN_OR_RETURN(bool going, SendLayer(stream, source, layer));
    if (!going) return OkStatus();
  }
  v1::PushRequest request;
  request.set_end(true);
  stream->Write(request);
  return OkStatus();
}

// Progress comes while layers are sent, so it is read by a thread of its own.
Status SendMissing(PushStream* stream, grpc::ClientContext& context, PushSource& source,
                   const v1::PushEvent::Missing& missing, const PushProgressFunction& on_progress,
                   v1::PushEvent::Done* done) {
  uint64_t total = 0;
  for (uint32_t layer : missing.layers()) total += source.LayerBytes(layer);
  std::thread events([&] {
    v1::PushEvent event;
    while (stream->Read(&event)) {
      if (event.has_progress()) on_progress(event.progress(), total);
      if (event.has_done()) *done = event.done();
    }
  });
  Status sent = SendAll(stream, source, missing);
  if (!sent.ok()) context.TryCancel();
  stream->WritesDone();
  events.join();
  return sent;
}

}  // namespace

Result<v1::PushEvent::Done> PushImage(const GlobalOptions& options,
                                      const std::shared_ptr<grpc::Channel>& channel,
                                      PushSource& source, const PushTarget& target,
                                      const PushProgressFunction& on_progress) {
  auto stub = v1::ImageService::NewStub(channel);
  grpc::ClientContext context;
  Prepare(options, &context);
  std::unique_ptr<PushStream> stream = stub->Push(&context);
  v1::PushRequest request;
  source.FillBegin(request.mutable_begin());
  request.mutable_begin()->set_tag(target.name);
  request.mutable_begin()->set_project(target.project);
  request.mutable_begin()->set_job(target.job);
  stream->Write(request);
  v1::PushEvent event;
  v1::PushEvent::Done done;
  Status sent;
  if (stream->Read(&event) && event.has_missing()) {
    sent = SendMissing(stream.get(), context, source, event.missing(), on_progress, &done);
  }
  grpc::Status ended = stream->Finish();
  ESKER_RETURN_IF_ERROR(sent);
  ESKER_RETURN_IF_ERROR(FromGrpc(ended, context));
  return done;
}

}  // namespace esker::cli
