// Compares homes for the writable upper of container sandboxes; the figures of
// docs/decisions/0001-upper.md come from here.
//
//   g++ -std=c++20 -O2 -pthread tools/bench/upper_spike.cc -o upper_spike
//   sudo ./upper_spike DIR BACKEND[,BACKEND...] [limit|inodes|create|snapshot|clones|latency ...]
//
// Backends: btrfs-squota btrfs-qgroup btrfs-none (suffix -dio: loop with direct I/O, -nb: also
// nobarrier), ext4-loop, xfs-loop, tmpfs, plain. All mounts live in a private mount namespace and
// loop devices clear themselves, so nothing outlives the program but DIR, which the caller removes.

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <sched.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kMiB = 1 << 20;
constexpr unsigned long kQuotaEnableSimple = 4;  // BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA, Linux 6.7

double Micros(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

[[noreturn]] void Die(const std::string& what) {
  fprintf(stderr, "%s: %s\n", what.c_str(), strerror(errno));
  exit(1);
}

void Check(bool ok, const std::string& what) {
  if (!ok) Die(what);
}

struct Stats {
  std::vector<double> v;
  double At(double q) {
    if (v.empty()) return 0;
    std::sort(v.begin(), v.end());
    return v[std::min(v.size() - 1, static_cast<size_t>(q * v.size()))];
  }
};

void Run(std::vector<std::string> args) {
  std::vector<char*> argv;
  for (auto& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t fa;
  posix_spawn_file_actions_init(&fa);
  posix_spawn_file_actions_addopen(&fa, 1, "/dev/null", O_WRONLY, 0);
  pid_t pid;
  int rc = posix_spawnp(&pid, argv[0], &fa, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&fa);
  errno = rc;
  Check(rc == 0, "spawn " + args[0]);
  int status;
  waitpid(pid, &status, 0);
  Check(status == 0, args[0] + " failed");
}

void MakeSparse(const std::string& path, uint64_t bytes) {
  int fd = open(path.c_str(), O_CREAT | O_RDWR | O_TRUNC | O_CLOEXEC, 0600);
  Check(fd >= 0 && ftruncate(fd, bytes) == 0, path);
  close(fd);
}

// Mounts an image over a loop device that clears itself with the mount.
void MountLoop(const std::string& image, const std::string& at, const char* type, const char* opts,
               bool direct) {
  int backing = open(image.c_str(), O_RDWR | O_CLOEXEC);
  Check(backing >= 0, image);
  int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  Check(control >= 0, "loop-control");
  for (;;) {
    int n = ioctl(control, LOOP_CTL_GET_FREE);
    Check(n >= 0, "LOOP_CTL_GET_FREE");
    std::string dev = "/dev/loop" + std::to_string(n);
    int fd = open(dev.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) {
      // The kernel made the device; devtmpfs may not be there to make the node.
      mknod(dev.c_str(), S_IFBLK | 0600, (7 << 8) | (n & 0xff) | ((n & ~0xff) << 12));
      fd = open(dev.c_str(), O_RDWR | O_CLOEXEC);
    }
    Check(fd >= 0, dev);
    loop_config config = {};
    config.fd = backing;
    config.block_size = 4096;
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR | (direct ? LO_FLAGS_DIRECT_IO : 0);
    if (ioctl(fd, LOOP_CONFIGURE, &config) != 0) {
      close(fd);
      if (errno == EBUSY) continue;
      Die("LOOP_CONFIGURE");
    }
    Check(mount(dev.c_str(), at.c_str(), type, MS_NOATIME, opts) == 0, "mount " + at);
    close(fd);
    break;
  }
  close(backing);
  close(control);
}

void CopyTree(int from, int to) {
  DIR* d = fdopendir(dup(from));
  rewinddir(d);
  while (dirent* e = readdir(d)) {
    std::string name = e->d_name;
    if (name == "." || name == "..") continue;
    struct stat st;
    fstatat(from, e->d_name, &st, AT_SYMLINK_NOFOLLOW);
    if (S_ISDIR(st.st_mode)) {
      mkdirat(to, e->d_name, 0755);
      int a = openat(from, e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      int b = openat(to, e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      CopyTree(a, b);
      close(a);
      close(b);
    } else if (S_ISREG(st.st_mode)) {
      int a = openat(from, e->d_name, O_RDONLY | O_CLOEXEC);
      int b = openat(to, e->d_name, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
      if (ioctl(b, FICLONE, a) != 0) {
        off_t left = st.st_size;
        while (left > 0) {
          ssize_t n = copy_file_range(a, nullptr, b, nullptr, left, 0);
          if (n <= 0) Die("copy_file_range");
          left -= n;
        }
      }
      close(a);
      close(b);
    }
  }
  closedir(d);
}

struct Backend {
  std::string dir, name;
  virtual ~Backend() = default;
  virtual void Setup() {}
  virtual std::string Create(int i, uint64_t limit) = 0;  // -> directory with upper, work
  virtual void Destroy(int i) = 0;
  virtual std::string Path(int i) { return dir + "/v" + std::to_string(i); }
  virtual void Snapshot(int i) {
    std::string to = Path(i) + "/snap";
    Check(mkdir(to.c_str(), 0755) == 0, to);
    int a = open((Path(i) + "/upper").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int b = open(to.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CopyTree(a, b);
    close(a);
    close(b);
  }
  virtual void DropSnapshot(int i) { std::filesystem::remove_all(Path(i) + "/snap"); }
  virtual int64_t Usage(int i) {
    struct statfs s;
    statfs(Path(i).c_str(), &s);
    return (s.f_blocks - s.f_bfree) * s.f_bsize;
  }
  static void MakeDirs(const std::string& p) {
    Check(mkdir((p + "/upper").c_str(), 0755) == 0, p + "/upper");
    Check(mkdir((p + "/work").c_str(), 0755) == 0, p + "/work");
  }
};

struct Plain : Backend {
  std::string Create(int i, uint64_t) override {
    mkdir(Path(i).c_str(), 0700);
    MakeDirs(Path(i));
    return Path(i);
  }
  void Destroy(int i) override { std::filesystem::remove_all(Path(i)); }
};

struct Tmpfs : Backend {
  std::string Create(int i, uint64_t limit) override {
    mkdir(Path(i).c_str(), 0700);
    std::string opts = "size=" + std::to_string(limit);
    Check(mount("tmpfs", Path(i).c_str(), "tmpfs", 0, opts.c_str()) == 0, "tmpfs");
    MakeDirs(Path(i));
    return Path(i);
  }
  void Destroy(int i) override {
    umount2(Path(i).c_str(), MNT_DETACH);
    rmdir(Path(i).c_str());
  }
};

struct LoopImage : Backend {
  bool xfs = false;
  std::string Create(int i, uint64_t limit) override {
    std::string image = Path(i) + ".img";
    MakeSparse(image, limit);
    if (xfs) {
      Run({"mkfs.xfs", "-q", "-f", "-s", "size=4096", "-m", "reflink=1", image});
    } else {
      Run({"mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-E",
           "lazy_itable_init=1,lazy_journal_init=1", image});
    }
    mkdir(Path(i).c_str(), 0700);
    MountLoop(image, Path(i), xfs ? "xfs" : "ext4", "", true);
    MakeDirs(Path(i));
    return Path(i);
  }
  void Destroy(int i) override {
    Check(umount2(Path(i).c_str(), 0) == 0, "umount image");
    rmdir(Path(i).c_str());
    unlink((Path(i) + ".img").c_str());
  }
};

struct Btrfs : Backend {
  enum { kNone, kClassic, kSimple } quota = kNone;
  bool direct = false, nobarrier = false;
  uint64_t pool_bytes = 24ull << 30;
  std::string pool;
  int pool_fd = -1;
  std::map<int, uint64_t> ids;
  std::string Path(int i) override { return pool + "/v" + std::to_string(i); }
  void Setup() override {
    std::string image = dir + "/pool.img";
    MakeSparse(image, pool_bytes);
    auto t = Clock::now();
    Run({"mkfs.btrfs", "-q", "-K", "-m", "single", "-d", "single", image});
    pool = dir + "/pool";
    mkdir(pool.c_str(), 0700);
    MountLoop(image, pool, "btrfs", nobarrier ? "nobarrier,discard=async" : "discard=async",
              direct);
    pool_fd = open(pool.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (quota != kNone) {
      btrfs_ioctl_quota_ctl_args args = {};
      args.cmd = quota == kSimple ? kQuotaEnableSimple : BTRFS_QUOTA_CTL_ENABLE;
      Check(ioctl(pool_fd, BTRFS_IOC_QUOTA_CTL, &args) == 0, "QUOTA_CTL");
      if (quota == kClassic) ioctl(pool_fd, BTRFS_IOC_QUOTA_RESCAN_WAIT);
    }
    printf("%-16s pool made and mounted in %.0f ms\n", name.c_str(), Micros(t) / 1000);
  }
  ~Btrfs() override {
    if (pool_fd >= 0) close(pool_fd);
    umount2(pool.c_str(), 0);
  }
  std::string Create(int i, uint64_t limit) override {
    btrfs_ioctl_vol_args_v2 args = {};
    snprintf(args.name, sizeof args.name, "v%d", i);
    Check(ioctl(pool_fd, BTRFS_IOC_SUBVOL_CREATE_V2, &args) == 0, "SUBVOL_CREATE_V2");
    int fd = open(Path(i).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    Check(fd >= 0, "open subvolume");
    if (quota != kNone) {
      btrfs_ioctl_qgroup_limit_args lim = {};  // qgroupid 0: the subvolume of fd
      lim.lim.flags = BTRFS_QGROUP_LIMIT_MAX_RFER;
      lim.lim.max_rfer = limit;
      Check(ioctl(fd, BTRFS_IOC_QGROUP_LIMIT, &lim) == 0, "QGROUP_LIMIT");
    }
    Check(mkdirat(fd, "upper", 0755) == 0 && mkdirat(fd, "work", 0755) == 0, "mkdir");
    close(fd);
    return Path(i);
  }
  void DestroyName(const std::string& n) {
    btrfs_ioctl_vol_args_v2 args = {};
    snprintf(args.name, sizeof args.name, "%s", n.c_str());
    Check(ioctl(pool_fd, BTRFS_IOC_SNAP_DESTROY_V2, &args) == 0, "SNAP_DESTROY_V2");
  }
  void Destroy(int i) override { DestroyName("v" + std::to_string(i)); }
  void Snapshot(int i) override {
    int fd = open(Path(i).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    btrfs_ioctl_vol_args_v2 args = {};
    args.fd = fd;
    args.flags = BTRFS_SUBVOL_RDONLY;
    snprintf(args.name, sizeof args.name, "s%d", i);
    Check(ioctl(pool_fd, BTRFS_IOC_SNAP_CREATE_V2, &args) == 0, "SNAP_CREATE_V2");
    close(fd);
  }
  void DropSnapshot(int i) override { DestroyName("s" + std::to_string(i)); }
  void Clone(int from, int to, uint64_t limit) {
    int fd = open(Path(from).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    btrfs_ioctl_vol_args_v2 args = {};
    args.fd = fd;
    snprintf(args.name, sizeof args.name, "v%d", to);
    Check(ioctl(pool_fd, BTRFS_IOC_SNAP_CREATE_V2, &args) == 0, "SNAP_CREATE_V2");
    close(fd);
    if (quota == kNone) return;
    fd = open(Path(to).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    btrfs_ioctl_qgroup_limit_args lim = {};
    lim.lim.flags = BTRFS_QGROUP_LIMIT_MAX_RFER;
    lim.lim.max_rfer = limit;
    Check(ioctl(fd, BTRFS_IOC_QGROUP_LIMIT, &lim) == 0, "QGROUP_LIMIT");
    close(fd);
  }
  // Flags of the quota status item, and how many quota groups there are.
  std::pair<uint64_t, int> QuotaState() {
    btrfs_ioctl_search_args s = {};
    s.key.tree_id = BTRFS_QUOTA_TREE_OBJECTID;
    s.key.min_type = BTRFS_QGROUP_STATUS_KEY;
    s.key.max_type = BTRFS_QGROUP_INFO_KEY;
    s.key.max_offset = s.key.max_transid = UINT64_MAX;
    s.key.nr_items = 1000;
    if (ioctl(pool_fd, BTRFS_IOC_TREE_SEARCH, &s) != 0) return {0, -1};
    std::pair<uint64_t, int> out = {0, 0};
    char* at = s.buf;
    for (unsigned i = 0; i < s.key.nr_items; ++i) {
      btrfs_ioctl_search_header h;
      memcpy(&h, at, sizeof h);
      if (h.type == BTRFS_QGROUP_STATUS_KEY) {
        out.first = reinterpret_cast<btrfs_qgroup_status_item*>(at + sizeof h)->flags;
      } else {
        ++out.second;
      }
      at += sizeof h + h.len;
    }
    return out;
  }
  int64_t Usage(int i) override {
    syncfs(pool_fd);
    int fd = open(Path(i).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    btrfs_ioctl_ino_lookup_args look = {};
    look.objectid = BTRFS_FIRST_FREE_OBJECTID;
    Check(ioctl(fd, BTRFS_IOC_INO_LOOKUP, &look) == 0, "INO_LOOKUP");
    close(fd);
    btrfs_ioctl_search_args s = {};
    s.key.tree_id = BTRFS_QUOTA_TREE_OBJECTID;
    s.key.min_type = s.key.max_type = BTRFS_QGROUP_INFO_KEY;
    s.key.min_offset = s.key.max_offset = look.treeid;
    s.key.max_transid = UINT64_MAX;
    s.key.nr_items = 1;
    if (ioctl(pool_fd, BTRFS_IOC_TREE_SEARCH, &s) != 0 || s.key.nr_items == 0) return -1;
    auto* item =
        reinterpret_cast<btrfs_qgroup_info_item*>(s.buf + sizeof(btrfs_ioctl_search_header));
    return item->rfer;
  }
};

std::unique_ptr<Backend> MakeBackend(const std::string& name, const std::string& dir) {
  std::unique_ptr<Backend> b;
  if (name == "plain") {
    b = std::make_unique<Plain>();
  } else if (name == "tmpfs") {
    b = std::make_unique<Tmpfs>();
  } else if (name.ends_with("-loop")) {
    auto l = std::make_unique<LoopImage>();
    l->xfs = name.starts_with("xfs");
    b = std::move(l);
  } else {
    auto x = std::make_unique<Btrfs>();
    if (name.find("squota") != std::string::npos) x->quota = Btrfs::kSimple;
    if (name.find("qgroup") != std::string::npos) x->quota = Btrfs::kClassic;
    x->direct = name.find("-dio") != std::string::npos || name.find("-nb") != std::string::npos;
    x->nobarrier = name.find("-nb") != std::string::npos;
    b = std::move(x);
  }
  b->name = name;
  b->dir = dir + "/" + name;
  Check(mkdir(b->dir.c_str(), 0700) == 0, b->dir);
  b->Setup();
  return b;
}

// An overlay over the volume, as a sandbox has it.
std::string MountOverlay(const std::string& dir, const std::string& vol, bool is_volatile) {
  std::string lower = dir + "/lower", at = dir + "/merged";
  mkdir(lower.c_str(), 0755);
  mkdir(at.c_str(), 0755);
  std::string opts = "lowerdir=" + lower + ",upperdir=" + vol + "/upper,workdir=" + vol + "/work" +
                     (is_volatile ? ",volatile" : "");
  Check(mount("overlay", at.c_str(), "overlay", 0, opts.c_str()) == 0, "overlay");
  return at;
}

void TestLimit(Backend& b) {
  constexpr uint64_t kLimit = 320 * kMiB;
  std::string vol = b.Create(1, kLimit);
  std::string at = MountOverlay(b.dir, vol, true);
  std::atomic<uint64_t> accepted = 0;
  std::atomic<int> error = 0;
  auto writer = [&](int id) {
    std::string f = at + "/fill" + std::to_string(id);
    int fd = open(f.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    std::vector<char> buf(kMiB);
    for (size_t i = 0; i < buf.size(); ++i) buf[i] = static_cast<char>(rand());
    size_t chunk = buf.size();
    while (accepted < 4 * kLimit) {
      ssize_t n = write(fd, buf.data(), chunk);
      if (n < 0) {
        error = errno;
        if (chunk == 512) break;
        chunk = 512;  // squeeze into what is left
        continue;
      }
      accepted += n;
    }
    close(fd);
  };
  auto t = Clock::now();
  std::thread a(writer, 0), c(writer, 1);
  a.join();
  c.join();
  double ms = Micros(t) / 1000;
  int64_t usage = b.Usage(1);
  // Can a full sandbox free space again?
  bool freed = unlink((at + "/fill0").c_str()) == 0;
  printf(
      "%-16s limit: %.1f MiB asked, accepted %.3f MiB (over %+.3f), usage then %+.3f over, %s, "
      "%.0f MB/s, rm when full %s\n",
      b.name.c_str(), kLimit / 1048576.0, accepted / 1048576.0,
      (static_cast<double>(accepted) - kLimit) / kMiB, (static_cast<double>(usage) - kLimit) / kMiB,
      error ? strerror(error) : "never stopped", accepted / ms / 1000,
      freed ? "works" : strerror(errno));
  umount2(at.c_str(), 0);
  b.Destroy(1);
}

void TestInodes(Backend& b) {
  constexpr uint64_t kLimit = 320 * kMiB;
  std::string vol = b.Create(2, kLimit);
  std::string at = MountOverlay(b.dir, vol, true);
  int made = 0, error = 0;
  auto t = Clock::now();
  while (made < 1000000) {
    if (made % 1000 == 0) mkdir((at + "/d" + std::to_string(made / 1000)).c_str(), 0755);
    std::string f = at + "/d" + std::to_string(made / 1000) + "/f" + std::to_string(made);
    int fd = open(f.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0) {
      error = errno;
      break;
    }
    if (write(fd, f.data(), f.size()) < 0) error = errno;
    close(fd);
    if (error) break;
    ++made;
  }
  double s = Micros(t) / 1e6;
  int64_t usage = b.Usage(2);
  printf("%-16s inodes: %d files of 1,000,000 (%.0f/s), usage %+.3f MiB over, %s\n", b.name.c_str(),
         made, made / s, (static_cast<double>(usage) - kLimit) / kMiB,
         error ? strerror(error) : "never stopped");
  umount2(at.c_str(), 0);
  t = Clock::now();
  b.Destroy(2);
  printf("%-16s inodes: delete of them %.1f ms\n", b.name.c_str(), Micros(t) / 1000);
}

// Eight writable clones of one filled volume, each rewriting a part, then all deleted.
void TestClones(Btrfs& b) {
  auto fill = [&](const std::string& vol, int files, int mib) {
    for (int i = 0; i < files; ++i) {
      int fd = open((vol + "/upper/f" + std::to_string(i)).c_str(), O_CREAT | O_WRONLY, 0644);
      char buf[4096] = {2};
      Check(write(fd, buf, sizeof buf) == sizeof buf, "write");
      close(fd);
    }
    int fd = open((vol + "/upper/big").c_str(), O_CREAT | O_WRONLY, 0644);
    std::vector<char> buf(kMiB, 'x');
    for (int i = 0; i < mib; ++i) Check(write(fd, buf.data(), kMiB) == kMiB, "write");
    close(fd);
  };
  fill(b.Create(10, 1024 * kMiB), 10000, 256);
  syncfs(b.pool_fd);
  int64_t parent_before = b.Usage(10);
  Stats clone;
  for (int i = 11; i < 19; ++i) {
    auto t = Clock::now();
    b.Clone(10, i, 1024 * kMiB);
    clone.v.push_back(Micros(t) / 1000);
  }
  std::string quiet = b.Create(19, 1024 * kMiB);
  std::atomic<bool> stop = false;
  Stats small;
  std::thread watcher([&] {
    for (int n = 0; !stop; ++n) {
      auto u = Clock::now();
      std::string f = quiet + "/upper/q" + std::to_string(n);
      int fd = open(f.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
      char buf[4096] = {1};
      Check(write(fd, buf, sizeof buf) == sizeof buf, "quiet write");
      close(fd);
      small.v.push_back(Micros(u));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  auto t = Clock::now();
  for (int i = 11; i < 19; ++i) fill(b.Path(i), 1000, 64);
  double write_ms = Micros(t) / 1000;
  t = Clock::now();
  syncfs(b.pool_fd);
  double sync_ms = Micros(t) / 1000;
  int64_t child = b.Usage(11);
  std::filesystem::remove_all(b.Path(10) + "/upper");
  int64_t parent_after = b.Usage(10);
  for (int i = 10; i < 19; ++i) b.Destroy(i);
  t = Clock::now();
  // The cleaner works behind the call: wait until it is done, as the next commits show it.
  for (int i = 0; i < 600; ++i) {
    syncfs(b.pool_fd);
    if (b.QuotaState().second <= 3 && b.QuotaState().second >= 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  double clean_ms = Micros(t) / 1000;
  stop = true;
  watcher.join();
  auto [flags, groups] = b.QuotaState();
  printf(
      "%-16s clones: clone p50 %.2f max %.2f ms; rewrites %.0f ms + sync %.0f ms; cleaned after "
      "%.0f ms; beside it 4 KiB file p50 %.0f p99 %.0f max %.0f us; usage MiB parent %.1f, "
      "child %.1f, parent after rm of all %.1f; status flags %llx, groups left %d\n",
      b.name.c_str(), clone.At(.5), clone.At(1), write_ms, sync_ms, clean_ms, small.At(.5),
      small.At(.99), small.At(1), parent_before / 1048576.0, child / 1048576.0,
      parent_after / 1048576.0, static_cast<unsigned long long>(flags), groups);
  b.Destroy(19);
}

std::map<std::string, long> MemInfo() {
  std::map<std::string, long> m;
  std::ifstream f("/proc/meminfo");
  std::string key, unit;
  long value;
  while (f >> key >> value) {
    m[key.substr(0, key.size() - 1)] = value;
    std::getline(f, unit);
  }
  return m;
}

void TestCreate(Backend& b, int count) {
  auto before = MemInfo();
  Stats create;
  auto t = Clock::now();
  for (int i = 0; i < count; ++i) {
    auto u = Clock::now();
    b.Create(1000 + i, 1024 * kMiB);
    create.v.push_back(Micros(u));
  }
  double one = count / (Micros(t) / 1e6);
  sync();
  auto after = MemInfo();
  auto delta = [&](const char* k) { return static_cast<double>(after[k] - before[k]) / count; };
  printf(
      "%-16s create: %.0f/s, p50 %.0f p99 %.0f us; per live volume KiB: unreclaimable slab "
      "%.1f, reclaimable %.1f, percpu %.1f, stacks %.1f, MemAvailable %.1f\n",
      b.name.c_str(), one, create.At(.5), create.At(.99), delta("SUnreclaim"),
      delta("SReclaimable"), delta("Percpu"), delta("KernelStack"), delta("MemAvailable"));
  Stats destroy;
  t = Clock::now();
  for (int i = 0; i < count; ++i) {
    auto u = Clock::now();
    b.Destroy(1000 + i);
    destroy.v.push_back(Micros(u));
  }
  printf("%-16s delete: %.0f/s, p50 %.0f p99 %.0f us\n", b.name.c_str(), count / (Micros(t) / 1e6),
         destroy.At(.5), destroy.At(.99));
  t = Clock::now();
  auto work = [&](int from) {
    for (int i = 0; i < count / 2; ++i) {
      b.Create(from + i, 1024 * kMiB);
      b.Destroy(from + i);
    }
  };
  work(5000);
  double pair1 = count / 2 / (Micros(t) / 1e6);
  t = Clock::now();
  std::thread x(work, 10000), y(work, 20000);
  x.join();
  y.join();
  printf("%-16s create+delete pairs: 1 worker %.0f/s, 2 workers %.0f/s\n", b.name.c_str(), pair1,
         count / (Micros(t) / 1e6));
}

void TestSnapshot(Backend& b) {
  for (int kind = 0; kind < 3; ++kind) {
    std::string vol = b.Create(3, 4096 * kMiB);
    if (kind < 2) {
      int n = kind == 0 ? 1 : 10000;
      for (int i = 0; i < n; ++i) {
        int fd = open((vol + "/upper/f" + std::to_string(i)).c_str(), O_CREAT | O_WRONLY, 0644);
        char buf[4096];
        memset(buf, i, sizeof buf);
        Check(write(fd, buf, sizeof buf) == sizeof buf, "write");
        close(fd);
      }
    } else {
      int fd = open((vol + "/upper/big").c_str(), O_CREAT | O_WRONLY, 0644);
      std::vector<char> buf(kMiB, 'x');
      for (int i = 0; i < 1024; ++i) Check(write(fd, buf.data(), kMiB) == kMiB, "write");
      close(fd);
    }
    Stats first, again;
    auto t = Clock::now();
    b.Snapshot(3);
    double dirty = Micros(t) / 1000;
    b.DropSnapshot(3);
    for (int i = 0; i < 5; ++i) {
      int fd = open((vol + "/upper/f0").c_str(), O_CREAT | O_WRONLY, 0644);
      Check(pwrite(fd, "y", 1, 4096 * i) == 1, "write");
      close(fd);
      t = Clock::now();
      b.Snapshot(3);
      again.v.push_back(Micros(t) / 1000);
      t = Clock::now();
      b.DropSnapshot(3);
      first.v.push_back(Micros(t) / 1000);
    }
    printf("%-16s snapshot of %s: dirty %.1f ms, then p50 %.2f max %.2f ms, drop %.2f ms\n",
           b.name.c_str(),
           kind == 0   ? "1 file"
           : kind == 1 ? "10,000 files"
                       : "1 GiB file",
           dirty, again.At(.5), again.At(1), first.At(.5));
    fflush(stdout);
    t = Clock::now();
    b.Destroy(3);
    printf("%-16s   delete of that volume %.2f ms\n", b.name.c_str(), Micros(t) / 1000);
  }
}

void TestLatency(Backend& b) {
  std::string noisy = b.Create(4, 2048 * kMiB), quiet = b.Create(5, 1024 * kMiB);
  std::string at = MountOverlay(b.dir, quiet, true);
  for (bool load : {false, true}) {
    std::atomic<bool> stop = false;
    std::atomic<uint64_t> written = 0;
    std::thread writer([&] {
      if (!load) return;
      std::vector<char> buf(kMiB, 'n');
      int fd = open((noisy + "/upper/noise").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
      while (!stop) {
        for (int i = 0; i < 768 && !stop; ++i) {
          if (pwrite(fd, buf.data(), kMiB, i * kMiB) > 0) written += kMiB;
        }
      }
      close(fd);
    });
    Stats small, create;
    auto t = Clock::now();
    int n = 0;
    while (Micros(t) < 6e6) {
      auto u = Clock::now();
      std::string f = at + "/q" + std::to_string(n++);
      int fd = open(f.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
      char buf[4096] = {1};
      Check(write(fd, buf, sizeof buf) == sizeof buf, "quiet write");
      close(fd);
      unlink(f.c_str());
      small.v.push_back(Micros(u));
      if (n % 50 == 0) {
        u = Clock::now();
        b.Create(100000 + n, 1024 * kMiB);
        create.v.push_back(Micros(u));
        b.Destroy(100000 + n);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    stop = true;
    writer.join();
    printf(
        "%-16s latency %s: 4 KiB file p50 %.0f p99 %.0f max %.0f us; create p50 %.0f p99 %.0f "
        "us; writer %.0f MB/s\n",
        b.name.c_str(), load ? "beside a writer" : "alone", small.At(.5), small.At(.99),
        small.At(1), create.At(.5), create.At(.99), written / 6e6);
  }
  umount2(at.c_str(), 0);
  b.Destroy(4);
  b.Destroy(5);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: upper_spike DIR BACKENDS [TESTS...]\n");
    return 2;
  }
  Check(unshare(CLONE_NEWNS) == 0, "unshare");
  Check(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private");
  std::vector<std::string> tests(argv + 3, argv + argc);
  if (tests.empty()) tests = {"limit", "inodes", "create", "snapshot", "clones", "latency"};
  std::string names = argv[2];
  for (size_t at = 0; at < names.size();) {
    size_t end = std::min(names.find(',', at), names.size());
    auto b = MakeBackend(names.substr(at, end - at), argv[1]);
    for (auto& test : tests) {
      if (test == "limit") TestLimit(*b);
      if (test == "inodes") TestInodes(*b);
      if (test == "create") TestCreate(*b, b->name.ends_with("-loop") ? 200 : 1000);
      if (test == "snapshot") TestSnapshot(*b);
      if (auto* x = dynamic_cast<Btrfs*>(b.get()); x && test == "clones") TestClones(*x);
      if (test == "latency") TestLatency(*b);
      fflush(stdout);
    }
    std::string dir = b->dir;
    b.reset();
    std::filesystem::remove_all(dir);
    at = end + 1;
  }
  return 0;
}
