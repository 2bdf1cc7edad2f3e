// Between clone and execve. init has one thread, so the child may allocate; what it must not do is
// return, or touch anything of the loop.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "accounts.h"
#include "launch.h"

namespace esker {
namespace {

constexpr char kDefaultPath[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
constexpr mode_t kUmask = 022;

[[noreturn]] void Fail(int progress, int exit_code, const std::string& text) {
  LaunchFailure failure;
  failure.exit_code = exit_code;
  std::memcpy(failure.text, text.data(), std::min(text.size(), sizeof(failure.text) - 1));
  ssize_t ignored = ::write(progress, &failure, sizeof(failure));
  (void)ignored;  // init is gone then, and so are we
  ::_exit(exit_code);
}

// As a shell has it: 127 for what is not there, 126 for what is there and cannot be run.
int ExitCodeFor(int error) { return error == ENOENT || error == ENOTDIR ? 127 : 126; }

[[noreturn]] void FailErrno(int progress, int error, const std::string& what) {
  Fail(progress, ExitCodeFor(error), what + ": " + ::strerror(error));
}

const char* Find(const std::vector<std::string>& env, std::string_view name) {
  for (const std::string& each : env) {
    if (each.size() > name.size() && each[name.size()] == '=' && each.starts_with(name)) {
      return each.c_str() + name.size() + 1;
    }
  }
  return nullptr;
}

std::vector<std::string> Environment(const InitCommandSpec& spec, const Account& account) {
  std::vector<std::string> env = spec.env;
  auto add = [&](std::string_view name, std::string_view value) {
    if (!value.empty() && Find(env, name) == nullptr) {
      env.push_back(std::string(name) + "=" + std::string(value));
    }
  };
  add("PATH", kDefaultPath);
  add("HOME", account.home);
  add("USER", account.name);
  add("LOGNAME", account.name);
  add("SHELL", account.shell.empty() ? "/bin/sh" : account.shell);
  if (spec.pty) add("TERM", "xterm-256color");
  return env;
}

std::vector<std::string> Arguments(const InitCommandSpec& spec) {
  if (!spec.argv.empty()) return spec.argv;
  for (const char* shell : {"/bin/bash", "/usr/bin/bash", "/bin/sh"}) {
    if (::access(shell, X_OK) == 0) return {shell, "-c", spec.shell};
  }
  return {"/bin/sh", "-c", spec.shell};  // execve then says what is wrong with it
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& each : strings) out.push_back(each.data());
  out.push_back(nullptr);
  return out;
}

// execvp with the command's own PATH. Returns the errno that says most: of several places EACCES
// is better than "not there".
int Execute(const std::string& program, char* const* argv, char* const* env,
            std::string_view path) {
  if (program.find('/') != std::string::npos) {
    ::execve(program.c_str(), argv, env);
    return errno;
  }
  int result = ENOENT;
  while (!program.empty()) {
    std::string_view directory = path.substr(0, path.find(':'));
    std::string candidate = std::string(directory.empty() ? "." : directory) + "/" + program;
    ::execve(candidate.c_str(), argv, env);
    if (errno == EACCES || errno == EPERM) {
      struct stat st;
      // A directory of that name is not the command.
      if (::stat(candidate.c_str(), &st) != 0 || S_ISREG(st.st_mode)) result = errno = EACCES;
    } else if (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG && errno != ELOOP) {
      return errno;
    }
    if (directory.size() == path.size()) break;
    path.remove_prefix(directory.size() + 1);
  }
  return result;
}

constexpr int kProgress = 3;

// Standard streams at 0 to 2, the progress pipe at 3, and nothing else: this child may wait for a
// slow file system, and must not keep other commands' pipes open meanwhile.
void ArrangeDescriptors(const ChildEnds& ends) {
  // init keeps 0 to 2 occupied, so none of ours is among them and their order does not matter.
  if (::dup2(ends.in, 0) < 0 || ::dup2(ends.out, 1) < 0 || ::dup2(ends.err, 2) < 0) {
    FailErrno(ends.progress, errno, "attach the streams");
  }
  if (ends.progress != kProgress && ::dup3(ends.progress, kProgress, O_CLOEXEC) < 0) {
    FailErrno(ends.progress, errno, "keep the progress pipe");
  }
  ::close_range(kProgress + 1, ~0U, 0);
}

// As login(1) does: the user owns the terminal and others may not write to it.
void TakeTerminal(const Account& account) {
  // Refused on a kernel or devpts that knows better; then the user just cannot reopen it by name.
  (void)!::fchown(0, account.uid, account.gid);
  (void)!::fchmod(0, 0620);
  if (::ioctl(0, TIOCSCTTY, 0) != 0) FailErrno(kProgress, errno, "take the terminal");
}

// Without a directory asked for: home, as at a login, or the root where there is no home to go to.
void EnterDirectory(const InitCommandSpec& spec, const Account& account) {
  if (spec.cwd.empty()) {
    if (account.home.empty() || ::chdir(account.home.c_str()) != 0) (void)!::chdir("/");
    return;
  }
  if (::chdir(spec.cwd.c_str()) != 0) {
    Fail(kProgress, 126, "change to directory " + spec.cwd + ": " + ::strerror(errno));
  }
}

}  // namespace

void RunChild(const InitCommandSpec& spec, const ChildEnds& ends, const LaunchContext& context) {
  ResetSignals();
  ::setsid();
  ArrangeDescriptors(ends);
  Result<Account> account = Accounts::Load().Resolve(spec.user);
  if (!account.ok()) Fail(kProgress, 126, account.status().message());
  if (ends.terminal) TakeTerminal(*account);
  ::umask(kUmask);
  if (context.file_limit.rlim_max != 0) ::setrlimit(RLIMIT_NOFILE, &context.file_limit);
  Status confined = Confine(*account, context.filter);
  if (!confined.ok()) Fail(kProgress, 126, confined.message());
  // As the user, who may be barred from the directory.
  EnterDirectory(spec, *account);
  std::vector<std::string> arguments = Arguments(spec);
  std::vector<std::string> env = Environment(spec, *account);
  std::string program = arguments[0];
  const char* path = Find(env, "PATH");
  int error = Execute(program, Pointers(arguments).data(), Pointers(env).data(),
                      path == nullptr ? kDefaultPath : path);
  FailErrno(kProgress, error, "execute " + program.substr(0, 300));
}

}  // namespace esker
