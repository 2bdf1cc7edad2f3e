#include "file_streams.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <optional>

#include "base/wire.h"
#include "convert.h"

namespace esker::gateway {
namespace {

constexpr size_t kDownloadBuffer = 256 * 1024;

struct PipeEnds {
  UniqueFd read, write;
};

// The gateway's own end is non-blocking; the worker's is not.
Result<PipeEnds> MakePipe(bool nonblocking_read) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoError("make a pipe for a file transfer");
  PipeEnds pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
  ::fcntl(fds[nonblocking_read ? 0 : 1], F_SETFL, O_NONBLOCK);
  ::fcntl(fds[0], F_SETPIPE_SZ, kDownloadBuffer);  // best effort: the default only costs speed
  return pipe;
}

// stat, then read. Steps run on the io loop; it owns the pipe's watch.
class Download final : public grpc::ServerWriteReactor<v1::ReadFileResponse> {
 public:
  static Download* Make(Services& services, grpc::CallbackServerContext* context,
                        const v1::ReadFileRequest& request) {
    std::shared_ptr<Download> self(new Download(services, context, request));
    self->self_ = self;
    return self.get();
  }

  void Begin() {
    if (Status allowed = services_.CheckSandbox(*context_, sandbox_); !allowed.ok()) {
      return FinishOnce(allowed, "SANDBOX");
    }
    InitFileRequest stat{.op = InitFileOp::kStat, .user = read_.user, .path = read_.path};
    services_.node.File(sandbox_, stat, UniqueFd(), [keep = self_](Result<InitFileResult> result) {
      keep->OnStat(std::move(result));
    });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return FinishOnce(CancelledError("the client is gone"), "FILE");
    OnLoop([this] {
      if (pipe_.valid()) Arm();
    });
  }
  void OnCancel() override { FinishOnce(CancelledError("cancelled by the client"), "FILE"); }
  void OnDone() override {
    OnLoop([this] { ClosePipe(); });
    std::lock_guard lock(mutex_);
    self_.reset();
  }

 private:
  Download(Services& services, grpc::CallbackServerContext* context,
           const v1::ReadFileRequest& request)
      : services_(services), context_(context), sandbox_(request.sandbox_id()) {
    read_.op = InitFileOp::kRead;
    read_.user = request.user();
    read_.path = request.path();
    read_.offset = request.offset();
    if (request.length() != 0) read_.length = request.length();
  }

  void OnLoop(std::function<void()> step) {
    std::shared_ptr<Download> keep;
    {
      std::lock_guard lock(mutex_);
      keep = self_;
    }
    if (keep == nullptr) return;
    services_.io.Post([keep, step = std::move(step)] { step(); });
  }

  void OnStat(Result<InitFileResult> result) {
    if (Status status = FileStatus(result); !status.ok()) return FinishOnce(status, "FILE");
    if (result->entries.size() == 1) info_ = ToProto(result->entries.front());
    Result<PipeEnds> pipe = MakePipe(/*nonblocking_read=*/true);
    if (!pipe.ok()) return FinishOnce(pipe.status(), "FILE");
    std::shared_ptr<Download> keep;
    {
      std::lock_guard lock(mutex_);
      keep = self_;
    }
    if (keep == nullptr) return;
    auto shared_end = std::make_shared<UniqueFd>(std::move(pipe->read));
    services_.io.Post([keep, shared_end] {
      keep->pipe_ = std::move(*shared_end);
      keep->Arm();
    });
    services_.node.File(sandbox_, read_, std::move(pipe->write),
                        [keep](Result<InitFileResult> done) {
                          Status status = FileStatus(done);
                          keep->services_.io.Post([keep, status] {
                            keep->worker_done_ = status;
                            keep->FinishIfComplete();
                          });
                        });
  }

  // --- on the io loop
  // ------------------------------------------------------------------------------
  void Arm() {
    if (finished()) return ClosePipe();
    Status watched = services_.io.Watch(pipe_.get(), EPOLLIN, [this](uint32_t) { OnReadable(); });
    if (!watched.ok()) FinishOnce(watched, "FILE");
  }

  void OnReadable() {
    services_.io.Unwatch(pipe_.get());
    std::string data(kDownloadBuffer, '\0');
    ssize_t n;
    do {
      n = ::read(pipe_.get(), data.data(), data.size());
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return Arm();
    if (n < 0) return FinishOnce(ErrnoError("read from the sandbox"), "FILE");
    if (n == 0) {
      pipe_.reset();
      end_of_file_ = true;
      return FinishIfComplete();
    }
    data.resize(static_cast<size_t>(n));
    Send(std::move(data));
  }

  void Send(std::string data) {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    message_.Clear();
    if (info_) {
      *message_.mutable_info() = *info_;
      info_.reset();
    }
    message_.set_data(std::move(data));
    StartWrite(&message_);
  }

  // All bytes are sent when the pipe has ended (each Send was done before the next read), and the
  // file is whole when the worker says so.
  void FinishIfComplete() {
    if (!worker_done_) return;
    if (!worker_done_->ok()) return FinishOnce(*worker_done_, "FILE");
    if (!end_of_file_) return;
    if (info_) {  // an empty file: say what it is
      std::lock_guard lock(mutex_);
      if (finished_) return;
      finished_ = true;
      message_.Clear();
      *message_.mutable_info() = *info_;
      return StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
    }
    FinishOnce(OkStatus(), "FILE");
  }

  void ClosePipe() {
    if (!pipe_.valid()) return;
    services_.io.Unwatch(pipe_.get());
    pipe_.reset();
  }

  bool finished() {
    std::lock_guard lock(mutex_);
    return finished_;
  }

  void FinishOnce(const Status& status, Noun noun) {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(ToGrpc(*context_, status, noun));
  }

  Services& services_;
  grpc::CallbackServerContext* const context_;  // valid until finished_
  const std::string sandbox_;
  InitFileRequest read_;

  // Touched on the io loop only (info_ is set before the first post).
  UniqueFd pipe_;
  bool end_of_file_ = false;
  std::optional<Status> worker_done_;
  std::optional<v1::FileInfo> info_;

  std::mutex mutex_;
  std::shared_ptr<Download> self_;  // guarded by mutex_
  v1::ReadFileResponse message_;
  bool finished_ = false;  // guarded by mutex_
};

class Upload final : public grpc::ServerReadReactor<v1::WriteFileRequest> {
 public:
  static Upload* Make(Services& services, grpc::CallbackServerContext* context,
                      v1::FileInfo* response) {
    std::shared_ptr<Upload> self(new Upload(services, context, response));
    self->self_ = self;
    return self.get();
  }

  void Begin() { StartRead(&message_); }

  void OnReadDone(bool ok) override {
    // Also called with !ok when the client is gone; then the call is cancelled and no frame
    // commits.
    if (!ok && context_->IsCancelled()) {
      return FinishOnce(CancelledError("cancelled by the client"));
    }
    std::shared_ptr<Upload> keep = self();
    if (keep == nullptr) return;
    services_.io.Post([keep, ok] { keep->OnMessage(ok); });
  }
  void OnCancel() override { FinishOnce(CancelledError("cancelled by the client")); }
  void OnDone() override {
    if (std::shared_ptr<Upload> keep = self()) {
      services_.io.Post([keep] { keep->ClosePipe(); });
    }
    std::lock_guard lock(mutex_);
    self_.reset();
  }

 private:
  Upload(Services& services, grpc::CallbackServerContext* context, v1::FileInfo* response)
      : services_(services), context_(context), response_(response) {}

  std::shared_ptr<Upload> self() {
    std::lock_guard lock(mutex_);
    return self_;
  }

  // --- on the io loop
  // ------------------------------------------------------------------------------
  void OnMessage(bool ok) {
    if (finished()) return;
    if (!ok) {  // the client has sent everything
      if (!opened_) return FinishOnce(InvalidArgumentError("the first message must open the file"));
      committed_ = true;
      return QueueFrame("");
    }
    if (message_.has_open()) return Open(message_.open());
    if (!opened_) return FinishOnce(InvalidArgumentError("the first message must open the file"));
    if (message_.data().empty()) return NextRead();
    QueueFrame(message_.data());
  }

  void Open(const v1::WriteFileRequest::Open& open) {
    if (opened_) return FinishOnce(InvalidArgumentError("the file is open already"));
    if (Status allowed = services_.CheckSandbox(*context_, open.sandbox_id()); !allowed.ok()) {
      return FinishOnce(allowed, "SANDBOX");
    }
    Result<PipeEnds> pipe = MakePipe(/*nonblocking_read=*/false);
    if (!pipe.ok()) return FinishOnce(pipe.status());
    opened_ = true;
    pipe_ = std::move(pipe->write);
    InitFileRequest request{
        .op = InitFileOp::kWrite, .user = open.user(), .path = open.path(), .mode = open.mode()};
    std::shared_ptr<Upload> keep = self();
    services_.node.File(open.sandbox_id(), request, std::move(pipe->read),
                        [keep](Result<InitFileResult> result) {
                          keep->services_.io.Post(
                              [keep, result = std::move(result)] { keep->OnWorkerDone(result); });
                        });
    NextRead();
  }

  void QueueFrame(std::string_view data) {
    WireWriter frame;
    frame.PutBytes(data);
    pending_ = frame.Take();
    written_ = 0;
    Flush();
  }

  void Flush() {
    while (written_ < pending_.size()) {
      ssize_t n = ::write(pipe_.get(), pending_.data() + written_, pending_.size() - written_);
      if (n >= 0) {
        written_ += static_cast<size_t>(n);
      } else if (errno == EAGAIN) {
        return WaitWritable();
      } else if (errno != EINTR) {
        return;  // the worker is gone (EPIPE): its own report says why
      }
    }
    if (committed_) {
      ClosePipe();
    } else {
      NextRead();
    }
  }

  void WaitWritable() {
    Status watched = services_.io.Watch(pipe_.get(), EPOLLOUT, [this](uint32_t) {
      services_.io.Unwatch(pipe_.get());
      if (!finished()) Flush();
    });
    if (!watched.ok()) FinishOnce(watched);
  }

  void OnWorkerDone(const Result<InitFileResult>& result) {
    ClosePipe();
    Status status = FileStatus(result);
    if (status.ok() && !committed_) status = InternalError("the sandbox ended the upload early");
    std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    if (status.ok() && result->entries.size() == 1) *response_ = ToProto(result->entries.front());
    Finish(ToGrpc(*context_, status, "FILE"));
  }

  void NextRead() {
    std::lock_guard lock(mutex_);
    if (!finished_) StartRead(&message_);
  }

  void ClosePipe() {
    if (!pipe_.valid()) return;
    services_.io.Unwatch(pipe_.get());
    pipe_.reset();
  }

  bool finished() {
    std::lock_guard lock(mutex_);
    return finished_;
  }

  void FinishOnce(const Status& status, Noun noun = "FILE") {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(ToGrpc(*context_, status, noun));
  }

  Services& services_;
  grpc::CallbackServerContext* const context_;  // valid until finished_
  v1::FileInfo* const response_;                // the same
  v1::WriteFileRequest message_;                // owned by gRPC while a read is under way

  // Touched on the io loop only.
  UniqueFd pipe_;
  std::string pending_;
  size_t written_ = 0;
  bool opened_ = false, committed_ = false;

  std::mutex mutex_;
  std::shared_ptr<Upload> self_;  // guarded by mutex_
  bool finished_ = false;         // guarded by mutex_
};

}  // namespace

grpc::ServerWriteReactor<v1::ReadFileResponse>* StartFileDownload(
    Services& services, grpc::CallbackServerContext* context, const v1::ReadFileRequest& request) {
  Download* download = Download::Make(services, context, request);
  download->Begin();
  return download;
}

grpc::ServerReadReactor<v1::WriteFileRequest>* StartFileUpload(Services& services,
                                                               grpc::CallbackServerContext* context,
                                                               v1::FileInfo* response) {
  Upload* upload = Upload::Make(services, context, response);
  upload->Begin();
  return upload;
}

}  // namespace esker::gateway
