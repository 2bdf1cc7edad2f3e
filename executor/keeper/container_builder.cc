#include "container_builder.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/log.h"
#include "child_process.h"
#include "container_steps.h"
#include "syscall_filter.h"

namespace esker::keeper {
namespace {

constexpr size_t kMaxPending = 1024;  // each holds up to 20 descriptors
constexpr size_t kMaxRunning = 32;    // more children only take turns on the processors
constexpr size_t kCachedRanges = 1024;
constexpr size_t kPooledNetworks = 16;
constexpr int64_t kBuildDeadlineNs = 30'000'000'000;

}  // namespace

struct ContainerBuilder::Job {
  CreateRequest request;
  UniqueFd listen, unified, volume;
  std::vector<UniqueFd> tasks;
  Done done;
  std::vector<std::shared_ptr<const MountedLayer>> layers;
  size_t layers_missing = 0;
  Status layer_error;

  Process child;
  UniqueFd report;
  EventLoop::TimerId deadline = 0;
  bool timed_out = false;
  Report last;  // {kExec, 0} when init was about to run, or the failure

  std::string What(const char* doing) const {
    return "container " + request.spec.sandbox_id + ": " + doing;
  }
};

ContainerBuilder::ContainerBuilder(EventLoop& loop, LayerTable& layers,
                                   const KeeperOptions& options)
    : loop_(loop),
      layers_(layers),
      user_namespaces_(options.first_host_id, options.range_size, kCachedRanges),
      init_(options.binary_directory + "/esker-init"),
      networks_(loop, kPooledNetworks) {}

ContainerBuilder::~ContainerBuilder() = default;

Status ContainerBuilder::Open() {
  ESKER_ASSIGN_OR_RETURN(templates_, MakeTemplates());
  covers_ = FindProcCovers();
  ESKER_ASSIGN_OR_RETURN(filter_, MakeFilterFile(BuildSyscallFilter()));
  filter_path_ = "/proc/self/fd/" + std::to_string(filter_.get());
  ESKER_ASSIGN_OR_RETURN(Process self, Process::Open(getpid()));
  self_.reset(fcntl(self.pidfd(), F_DUPFD_CLOEXEC, 0));
  if (!self_.valid()) return ErrnoError("duplicate the keeper's own pidfd");
  ESKER_RETURN_IF_ERROR(init_.Current().ok() ? OkStatus() : init_.Current().status());
  networks_.Refill();
  return OkStatus();
}

void ContainerBuilder::Build(CreateRequest request, std::vector<UniqueFd> fds, Done done) {
  size_t expected = 1 + request.has_unified + request.has_volume + request.task_count;
  if (fds.size() != expected) {
    return done(InvalidArgumentError("the request came with " + std::to_string(fds.size()) +
                                     " descriptors instead of " + std::to_string(expected)));
  }
  if (pending_ >= kMaxPending) {
    return done(ResourceExhaustedError("the keeper builds " + std::to_string(kMaxPending) +
                                       " containers already; try again in a second"));
  }
  auto job = std::make_shared<Job>();
  job->request = std::move(request);
  job->done = std::move(done);
  size_t next = 0;
  job->listen = std::move(fds[next++]);
  if (job->request.has_unified) job->unified = std::move(fds[next++]);
  if (job->request.has_volume) job->volume = std::move(fds[next++]);
  while (next < fds.size()) job->tasks.push_back(std::move(fds[next++]));
  ++pending_;

  const std::vector<KeeperLayer>& layers = job->request.spec.layers;
  job->layers.resize(layers.size());
  job->layers_missing = layers.size();
  for (size_t i = 0; i < layers.size(); ++i) {
    layers_.Get(layers[i], [this, job, i](Result<std::shared_ptr<const MountedLayer>> layer) {
      if (layer.ok()) {
        job->layers[i] = std::move(*layer);
      } else {
        job->layer_error = std::move(layer).status();
      }
      if (--job->layers_missing == 0) LayersReady(job);
    });
  }
}

void ContainerBuilder::LayersReady(const std::shared_ptr<Job>& job) {
  if (!job->layer_error.ok()) {
    return Finish(job, job->layer_error.Wrap("container " + job->request.spec.sandbox_id));
  }
  ready_.push_back(job);
  Pump();
}

void ContainerBuilder::Pump() {
  while (!ready_.empty() && running_ < kMaxRunning) {
    std::shared_ptr<Job> job = std::move(ready_.front());
    ready_.pop_front();
    Status launched = Launch(job);
    if (!launched.ok()) Finish(job, std::move(launched));
  }
}

Status ContainerBuilder::Launch(const std::shared_ptr<Job>& job) {
  const ContainerSpec& spec = job->request.spec;
  ESKER_ASSIGN_OR_RETURN(int user_ns, user_namespaces_.Get(spec.range));
  ESKER_ASSIGN_OR_RETURN(int init, init_.Current());
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoError(job->What("make the report pipe"));
  job->report.reset(pipe_fds[0]);
  UniqueFd write_end(pipe_fds[1]);
  if (fcntl(job->report.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoError(job->What("make the report pipe"));
  }

  uint32_t first = user_namespaces_.FirstId(spec.range);
  std::string first_text = std::to_string(first), tty_text = std::to_string(first + 5);
  std::string shm_text = std::to_string(spec.shm_bytes);
  std::vector<int> tasks, layers;
  for (const UniqueFd& fd : job->tasks) tasks.push_back(fd.get());
  for (const auto& layer : job->layers) layers.push_back(layer->mount.get());

  UniqueFd network;
  if (spec.private_network) network = networks_.Take();

  BuildPlan plan;
  plan.network_ns = network.get();
  plan.report = write_end.get();
  plan.keeper_pidfd = self_.get();
  plan.template_ns = templates_.mount_namespace.get();
  plan.user_ns = user_ns;
  plan.skeleton = templates_.skeleton.get();
  plan.dev = templates_.dev.get();
  plan.sys = templates_.sys.get();
  plan.volume = job->volume.get();
  plan.init = init;
  plan.log = 2;
  plan.listen = job->listen.get();
  plan.unified = job->unified.get();
  plan.filter_path = filter_path_.c_str();
  plan.tasks = tasks.data();
  plan.task_count = tasks.size();
  plan.layers = layers.data();
  plan.layer_count = layers.size();
  plan.covers = covers_.data();
  plan.cover_count = covers_.size();
  plan.first_id = first;
  plan.read_only = spec.read_only;
  plan.private_network = spec.private_network;
  plan.nofile_limit = spec.nofile_limit;
  plan.hostname = spec.hostname.c_str();
  plan.first_id_text = first_text.c_str();
  plan.tty_gid_text = tty_text.c_str();
  plan.shm_bytes_text = shm_text.c_str();

  int pidfd = -1;
  clone_args args = {};
  args.flags = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD;
  args.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  if (job->unified.valid()) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<uint64_t>(job->unified.get());
  }
  pid_t pid = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof(args)));
  if (pid == 0) BuildContainer(plan);
  if (pid < 0) return ErrnoError(job->What("clone into the sandbox's cgroup"));
  job->child = Process::FromPidfd(pid, UniqueFd(pidfd));
  ++running_;
  // The child has copies of all that only it needed.
  job->listen.reset();
  job->unified.reset();
  job->volume.reset();
  job->tasks.clear();
  job->deadline = loop_.After(kBuildDeadlineNs, [job] {
    job->timed_out = true;
    Status killed = job->child.Kill(SIGKILL);
    if (!killed.ok()) LogWarning("kill-container", {{"error", killed.ToString()}});
  });
  Status watched =
      loop_.Watch(job->report.get(), EPOLLIN, [this, job](uint32_t) { ReadReport(job); });
  if (watched.ok()) return watched;
  job->last = {Step::kNone, EIO, "watch the report pipe"};
  job->report.reset();  // the child sees EPIPE at the latest at execve
  Status killed = job->child.Kill(SIGKILL);
  if (!killed.ok()) LogWarning("kill-container", {{"error", killed.ToString()}});
  Complete(job);
  return OkStatus();
}

void ContainerBuilder::ReadReport(const std::shared_ptr<Job>& job) {
  for (;;) {
    Report report;
    ssize_t n = read(job->report.get(), &report, sizeof(report));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n != sizeof(report)) break;
    report.detail[sizeof(report.detail) - 1] = 0;
    job->last = report;
  }
  loop_.Unwatch(job->report.get());
  job->report.reset();
  Complete(job);
}

// The report pipe has closed: init runs, or the child is dead or about to be.
void ContainerBuilder::Complete(const std::shared_ptr<Job>& job) {
  loop_.Cancel(job->deadline);
  --running_;
  if (job->last.step == Step::kExec && job->last.error == 0 && !job->timed_out) {
    BuiltContainer built;
    built.init = std::move(job->child);
    built.layers = std::move(job->layers);
    return Finish(job, std::move(built));
  }
  Status why;
  if (job->last.error != 0) {
    std::string what = job->What(StepName(job->last.step));
    if (job->last.detail[0] != 0) what += std::string(" (") + job->last.detail + ")";
    why = Status::FromErrno(job->last.error, what);
  } else if (job->timed_out) {
    why = DeadlineExceededError(job->What("building took longer than 30 s"));
  } else {
    why = ResourceExhaustedError(
        job->What("it was killed while it was built; is its memory limit too small?"));
  }
  // Answered when all of it is gone: a dead PID 1 has taken its namespaces along.
  Status reaping =
      ReapWhenEnded(loop_, std::move(job->child), [this, job, why](int) { Finish(job, why); });
  if (!reaping.ok()) Finish(job, why);
}

void ContainerBuilder::Finish(const std::shared_ptr<Job>& job, Result<BuiltContainer> result) {
  --pending_;
  job->layers.clear();
  Done done = std::move(job->done);
  done(std::move(result));
  // Not from within Pump's own loop: it goes on by itself.
  loop_.Post([this] { Pump(); });
}

}  // namespace esker::keeper
