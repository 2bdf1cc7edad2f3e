// How fast containers are built; prints figures, and fails only when they are absurd.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "base/clock.h"
#include "base/socket.h"
#include "testing/keeper_fixture.h"

namespace esker::keeper {
namespace {

class KeeperRateTest : public KeeperFixture {
 protected:
  struct Figures {
    double per_second = 0;
    int64_t p50_us = 0, p99_us = 0;
  };
  // `count` containers on tmpfs uppers, without cgroups, `parallel` at a time.
  Figures Measure(int count, int parallel, bool network, uint32_t first_range, bool reuse) {
    std::vector<int64_t> took(count);
    std::vector<std::thread> threads;
    int64_t start = Clock::System().MonotonicNanos();
    for (int t = 0; t < parallel; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t; i < count; i += parallel) {
          ContainerSpec spec = Spec("rate-" + std::to_string(first_range) + "-" + std::to_string(i),
                                    first_range + static_cast<uint32_t>(reuse ? t : i));
          spec.private_network = network;
          Result<std::pair<UniqueFd, UniqueFd>> socket = SeqpacketPair();
          ASSERT_TRUE(socket.ok());
          int64_t begin = Clock::System().MonotonicNanos();
          Result<ContainerHandle> handle = client_->Create(spec, -1, socket->first.get(), {}, -1);
          took[i] = (Clock::System().MonotonicNanos() - begin) / 1000;
          ASSERT_TRUE(handle.ok()) << handle.status().ToString();
          Process init = Process::FromPidfd(handle->init.pid, std::move(handle->pidfd));
          ASSERT_TRUE(init.Kill(SIGKILL).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    double seconds = static_cast<double>(Clock::System().MonotonicNanos() - start) / 1e9;
    std::sort(took.begin(), took.end());
    return {count / seconds, took[count / 2], took[count * 99 / 100]};
  }
  void Print(const char* what, const Figures& f) {
    printf("%-40s per_second=%.0f p50_us=%ld p99_us=%ld\n", what, f.per_second, long{f.p50_us},
           long{f.p99_us});
  }
};

TEST_F(KeeperRateTest, Figures) {
  Print("1 at a time, new ranges", Measure(200, 1, true, 0, false));
  Print("1 at a time", Measure(200, 1, true, 1000, true));
  Print("1 at a time, no network namespace", Measure(200, 1, false, 2000, true));
  Figures busy = Measure(400, 8, true, 3000, true);
  Print("8 at a time", busy);
  Print("8 at a time, no network namespace", Measure(400, 8, false, 4000, true));
  EXPECT_GT(busy.per_second, 20);
}

}  // namespace
}  // namespace esker::keeper
