#include "command.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace esker {
namespace {

constexpr uint64_t kDefaultKeep = 64u << 20;
constexpr size_t kShare = 256u << 10;  // moved or handed out before others get their turn
constexpr size_t kFinalShare = 16u << 20;
constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kFloodTurnNs = 100 * kMillisecond;
constexpr uint64_t kFloodBytes = 16u << 20;
constexpr int64_t kDrainSilenceNs = 200 * kMillisecond;
constexpr int64_t kDrainLimitNs = 1000 * kMillisecond;
constexpr int64_t kDrainCheckNs = 20 * kMillisecond;
constexpr int64_t kFollowerPatienceNs = 30'000 * kMillisecond;

int64_t Now() { return Clock::System().MonotonicNanos(); }

Status SetNonBlocking(int fd) {
  int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoError("make a command's pipe non-blocking");
  }
  return OkStatus();
}

}  // namespace

Command::Command(CommandOwner& owner, CommandRecord record, std::string log_prefix)
    : owner_(owner),
      id_(record.info.id),
      sandbox_id_(record.info.sandbox_id),
      log_prefix_(std::move(log_prefix)),
      record_(std::move(record)),
      stdin_(owner.loop()) {
  pty_ = record_.info.spec.pty;
  bool ended = record_.info.status.state == InitCommandState::kExited;
  exit_seen_ = exit_recorded_ = drained_ = finished_ = ended;
}

Command::~Command() = default;

CommandInfo Command::Info() const {
  std::lock_guard lock(mutex_);
  return record_.info;
}

CommandRecord Command::Record() const {
  std::lock_guard lock(mutex_);
  return record_;
}

bool Command::Ended() const {
  std::lock_guard lock(mutex_);
  return record_.info.status.state == InitCommandState::kExited;
}

void Command::SetOomKilled() {
  std::lock_guard lock(mutex_);
  record_.info.oom_killed = true;
}

uint64_t Command::keep() const {
  std::lock_guard lock(mutex_);
  uint64_t asked = record_.info.spec.output_limit;
  return asked == 0 ? kDefaultKeep : asked;
}

Status Command::OpenLog(int stream) {
  if (streams_[stream].log) return OkStatus();
  std::string path = log_prefix_ + (stream == 0 ? ".out" : ".err");
  Result<OutputLog> log =
      finished_ && !has_pipes() ? OutputLog::OpenForReading(path) : OutputLog::Open(path, keep());
  if (!log.ok()) return std::move(log).status();
  streams_[stream].log = std::move(*log);
  return OkStatus();
}

Status Command::Begin(const InitCommandStatus& status, InitCommandPipes pipes) {
  begun_ = true;
  {
    std::lock_guard lock(mutex_);
    record_.started = true;
    // An end is taken in by OnExit, after the output.
    if (status.state == InitCommandState::kRunning) record_.info.status = status;
  }
  if (pipes.in.valid()) {
    ESKER_RETURN_IF_ERROR(SetNonBlocking(pipes.in.get()));
    stdin_.pty = pty_;
    stdin_.on_end = [this] { owner_.CloseStdin(*this); };
    stdin_.on_progress = [this](std::function<void()> then) {
      {
        std::lock_guard lock(mutex_);
        record_.stdin_accepted = stdin_.written();
        record_.stdin_closed = stdin_.closed_by_sender();
      }
      owner_.Persist(shared_from_this(), false, [then = std::move(then)](Status) { then(); });
    };
    CommandRecord record = Record();
    stdin_.Open(std::move(pipes.in), record.stdin_accepted, record.stdin_closed);
  }
  UniqueFd* fds[2] = {&pipes.out, &pipes.err};
  for (int i = 0; i < 2; ++i) {
    if (!fds[i]->valid()) continue;
    ESKER_RETURN_IF_ERROR(SetNonBlocking(fds[i]->get()));
    streams_[i].pipe = std::move(*fds[i]);
    ESKER_RETURN_IF_ERROR(OpenLog(i));
    StartWatching(i);
  }
  UpdateSizes();
  if (status.state == InitCommandState::kExited) early_exit_ = status;
  if (early_exit_) OnExit(*std::exchange(early_exit_, std::nullopt));
  return OkStatus();
}

void Command::StartWatching(int i) {
  Stream& stream = streams_[i];
  if (stream.watched || !stream.pipe.valid()) return;
  Status status = owner_.loop().Watch(stream.pipe.get(), EPOLLIN, [this, i](uint32_t) {
    std::shared_ptr<Command> self = shared_from_this();
    OnReadable(i);
  });
  if (!status.ok()) {
    LogError("watch_output", {{"command", id_}, {"cause", status.ToString()}});
    return;
  }
  stream.watched = true;
}

void Command::StopWatching(int i) {
  if (!streams_[i].watched) return;
  owner_.loop().Unwatch(streams_[i].pipe.get());
  streams_[i].watched = false;
}

OutputLog::Moved Command::Pump(int i, size_t limit) {
  Stream& stream = streams_[i];
  if (!stream.pipe.valid()) return OutputLog::Moved::kEnd;
  Result<OutputLog::Moved> moved = pty_ ? stream.log->MoveFromTerminal(stream.pipe.get())
                                        : stream.log->MoveFromPipe(stream.pipe.get(), limit);
  if (!moved.ok()) {
    LogError("move_output", {{"command", id_}, {"cause", moved.status().ToString()}});
    return OutputLog::Moved::kEnd;
  }
  if (*moved == OutputLog::Moved::kSome) last_output_ns_ = Now();
  return *moved;
}

// A flood costs its sandbox, not the loop that serves all of them.
bool Command::TookItsShare(int i, uint64_t bytes) {
  Stream& stream = streams_[i];
  int64_t now = Now();
  if (now - stream.turn_began_ns >= kFloodTurnNs) {
    stream.turn_began_ns = now;
    stream.turn_bytes = 0;
  }
  stream.turn_bytes += bytes;
  if (stream.turn_bytes < kFloodBytes || exit_seen_) return false;
  stream.resting = true;
  StopWatching(i);
  owner_.loop().After(stream.turn_began_ns + kFloodTurnNs - now, [weak = weak_from_this(), i] {
    if (std::shared_ptr<Command> self = weak.lock()) {
      self->streams_[i].resting = false;
      self->Recheck();
    }
  });
  return true;
}

void Command::OnReadable(int i) {
  uint64_t before = streams_[i].log->size();
  OutputLog::Moved moved = Pump(i, kShare);
  UpdateSizes();
  uint64_t bytes = streams_[i].log->size() - before;
  if (moved == OutputLog::Moved::kEnd) CloseStream(i);
  FeedAll();
  if (streams_[i].watched && TookItsShare(i, bytes)) return;
  if (streams_[i].watched && HeldBack(i)) {
    StopWatching(i);
    Recheck();
  }
}

void Command::CloseStream(int i) {
  StopWatching(i);
  streams_[i].pipe.reset();
  if (has_pipes()) return;
  if (exit_seen_ && !drained_) FinishDrain();
  if (finished_ && !forgotten_) {
    forgotten_ = true;
    owner_.Forget(*this);
  }
}

void Command::UpdateSizes() {
  std::lock_guard lock(mutex_);
  if (streams_[0].log) record_.info.stdout_bytes = streams_[0].log->size();
  if (streams_[1].log) record_.info.stderr_bytes = streams_[1].log->size();
}

bool Command::HeldBack(int i) const {
  if (exit_seen_ && !drained_) return false;  // what a pipe holds at the end is little
  uint64_t size = streams_[i].log->size();
  for (const std::shared_ptr<Follower>& follower : followers_) {
    if (!follower->want_output || follower->told_exit) continue;
    uint64_t lag = size - std::min(size, std::max(follower->offset[i], streams_[i].log->start()));
    bool given_up = !follower->ready && Now() - follower->waits_since_ns > kFollowerPatienceNs;
    if (lag > keep() / 2 && !given_up) return true;
  }
  return false;
}

void Command::Recheck() {
  bool waiting = false;
  for (int i = 0; i < 2; ++i) {
    if (!streams_[i].pipe.valid() || streams_[i].watched || streams_[i].resting) continue;
    if (HeldBack(i)) {
      waiting = true;
    } else {
      StartWatching(i);
    }
  }
  if (!waiting || recheck_timer_ != 0) return;
  recheck_timer_ = owner_.loop().After(1000 * kMillisecond, [weak = weak_from_this()] {
    if (std::shared_ptr<Command> self = weak.lock()) {
      self->recheck_timer_ = 0;
      self->Recheck();
    }
  });
}

// --- the end ------------------------------------------------------------------------------------

void Command::OnExit(const InitCommandStatus& status) {
  if (!begun_) {
    early_exit_ = status;
    return;
  }
  if (exit_seen_) {
    // Known from an earlier connection: init only wants to hear it again.
    if (!has_pipes()) owner_.Forget(*this);
    return;
  }
  exit_seen_ = true;
  {
    std::lock_guard lock(mutex_);
    record_.info.status = status;
    record_.started = true;
  }
  stdin_.Close(FailedPreconditionError("the command has ended"));
  StartDrain();
}

void Command::StartDrain() {
  drain_until_ns_ = Now() + kDrainLimitNs;
  last_output_ns_ = Now();
  for (int i = 0; i < 2; ++i) {
    if (!streams_[i].pipe.valid()) continue;
    OutputLog::Moved moved = Pump(i, kFinalShare);
    UpdateSizes();
    // kSome may have met the end of what was there, not yet of the stream.
    if (moved == OutputLog::Moved::kSome) moved = Pump(i, kShare);
    if (moved == OutputLog::Moved::kEnd) CloseStream(i);
  }
  UpdateSizes();
  FeedAll();
  if (drained_) return;
  if (!has_pipes()) return FinishDrain();
  for (int i = 0; i < 2; ++i) StartWatching(i);
  CheckDrain();
}

void Command::CheckDrain() {
  drain_timer_ = 0;
  if (drained_) return;
  int64_t now = Now();
  if (now - last_output_ns_ >= kDrainSilenceNs || now >= drain_until_ns_) return FinishDrain();
  drain_timer_ = owner_.loop().After(kDrainCheckNs, [weak = weak_from_this()] {
    if (std::shared_ptr<Command> self = weak.lock()) self->CheckDrain();
  });
}

void Command::FinishDrain() {
  drained_ = true;
  UpdateSizes();
  owner_.Persist(shared_from_this(), true, [self = shared_from_this()](Status status) {
    if (!status.ok()) {
      // Not acknowledged to init, so the next node process learns of it again.
      LogError("record_exit", {{"command", self->id_}, {"cause", status.ToString()}});
    }
    self->exit_recorded_ = status.ok();
    self->MaybeFinish();
  });
}

void Command::MaybeFinish() {
  finished_ = true;
  if (!has_pipes() && exit_recorded_ && !forgotten_) {
    forgotten_ = true;
    owner_.Forget(*this);
  }
  FeedAll();
}

void Command::EndWithSandbox(const std::string& reason) {
  if (!exit_seen_) {
    exit_seen_ = true;
    std::lock_guard lock(mutex_);
    InitCommandStatus& status = record_.info.status;
    status.command_id = id_;
    status.state = InitCommandState::kExited;
    status.signal = 9;
    status.exit_code = 137;
    status.ended_ns = Clock::System().WallNanos();
    record_.info.end_reason = reason;
    record_.info.oom_killed = record_.info.oom_killed || reason.ends_with(": OOM");
  }
  forgotten_ = true;  // there is no init any more
  stdin_.Close(FailedPreconditionError("the sandbox has ended: " + reason));
  for (int i = 0; i < 2; ++i) {
    if (!streams_[i].pipe.valid()) continue;
    size_t rest = kFinalShare;
    while (rest >= kShare && Pump(i, kShare) == OutputLog::Moved::kSome) rest -= kShare;
    StopWatching(i);
    streams_[i].pipe.reset();
  }
  UpdateSizes();
  if (!drained_) FinishDrain();
}

void Command::Release() {
  for (int i = 0; i < 2; ++i) {
    StopWatching(i);
    streams_[i].pipe.reset();
    streams_[i].log.reset();
  }
  stdin_.Close(UnavailableError("the node is going away; the sandbox stays"));
  if (recheck_timer_ != 0) owner_.loop().Cancel(recheck_timer_);
  if (drain_timer_ != 0) owner_.loop().Cancel(drain_timer_);
  followers_.clear();
}

// --- followers ----------------------------------------------------------------------------------

void Command::Attach(std::shared_ptr<Follower> follower) {
  followers_.push_back(follower);
  Feed(*follower);
  Recheck();
}

void Command::Detach(const std::shared_ptr<Follower>& follower) {
  std::erase(followers_, follower);
  if (followers_.empty() && finished_ && !has_pipes()) {
    for (Stream& stream : streams_) stream.log.reset();
  }
  Recheck();
}

void Command::FollowerReady(const std::shared_ptr<Follower>& follower) {
  follower->ready = true;
  Feed(*follower);
  Recheck();
}

void Command::FeedAll() {
  std::vector<std::shared_ptr<Follower>> followers = followers_;
  for (const std::shared_ptr<Follower>& follower : followers) Feed(*follower);
}

void Command::Feed(Follower& follower) {
  if (!follower.ready || follower.told_exit) return;
  CommandInfo info = Info();
  uint64_t sizes[2] = {info.stdout_bytes, info.stderr_bytes};
  for (int turn = 0; turn < 2 && follower.want_output; ++turn) {
    int i = (follower.next_stream + turn) % 2;
    if (follower.offset[i] >= sizes[i]) continue;
    // A log that was given up, or cannot be read, is told as lost, never as silence.
    OutputLog::Piece piece{.offset = sizes[i], .lost = sizes[i] - follower.offset[i], .data = {}};
    if (Status status = OpenLog(i); status.ok()) {
      Result<OutputLog::Piece> read = streams_[i].log->Read(follower.offset[i], kShare);
      if (read.ok()) {
        piece = std::move(*read);
      } else {
        LogError("read_output", {{"command", id_}, {"cause", read.status().ToString()}});
      }
    }
    follower.offset[i] = piece.offset + piece.data.size();
    follower.next_stream = 1 - i;
    follower.ready = false;
    follower.waits_since_ns = Now();
    std::lock_guard lock(follower.mutex);
    if (follower.observer != nullptr) {
      follower.observer->OnOutput(i + 1, piece.offset, std::move(piece.data), piece.lost);
    }
    return;
  }
  if (!finished_) return;
  follower.told_exit = true;
  std::lock_guard lock(follower.mutex);
  if (follower.observer != nullptr) follower.observer->OnExit(info);
}

void Command::SendStdin(std::string data, bool eof, std::optional<uint64_t> offset,
                        std::function<void(Result<uint64_t>)> done) {
  if (!Info().spec.want_stdin && !pty_) {
    return done(FailedPreconditionError("command " + id_ + " was started without a stdin"));
  }
  if (exit_seen_) return done(FailedPreconditionError("command " + id_ + " has ended"));
  stdin_.Send(std::move(data), eof, offset, std::move(done));
}

}  // namespace esker
