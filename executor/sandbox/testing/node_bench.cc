// Figures of the node alone, without API: node_bench DIRECTORY NODE_ID [SANDBOXES_FOR_ADOPTION]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/clock.h"
#include "node_rig.h"

namespace esker::testing {
namespace {

double Now() { return static_cast<double>(Clock::System().MonotonicNanos()) / 1e6; }

void Check(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  std::exit(1);
}

SandboxSpec Spec() {
  SandboxSpec spec;
  spec.image = "busybox:1";
  return spec;
}

void Report(const char* what, std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  std::printf("%-34s p50 %7.2f ms  p99 %7.2f ms\n", what, ms[ms.size() / 2],
              ms[ms.size() * 99 / 100]);
}

void CreateRunDelete(Node& node, int in_flight, int total) {
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  double began = Now();
  for (int t = 0; t < in_flight; ++t) {
    threads.emplace_back([&] {
      while (next++ < total) {
        Result<SandboxInfo> info = node.Create(Spec());
        Check(info.status(), "create");
        Check(RunShell(node, info->id, "true").status(), "run");
        Check(node.Delete(info->id).status(), "delete");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("create -> true -> delete, %2d at once  %7.1f /s\n", in_flight,
              total * 1000 / (Now() - began));
}

int Main(int argc, char** argv) {
  if (argc < 3) return 2;
  NodeRig rig(argv[1], argv[2]);
  Check(rig.Open(), "open");
  CreateRunDelete(rig.node(), 1, 5);
  CreateRunDelete(rig.node(), 1, 100);
  CreateRunDelete(rig.node(), 2, 200);
  CreateRunDelete(rig.node(), 64, 400);
  std::vector<double> create, destroy, exec, snapshot;
  std::string id;
  for (int i = 0; i < 50; ++i) {
    double began = Now();
    Result<SandboxInfo> info = rig.node().Create(Spec());
    Check(info.status(), "create");
    create.push_back(Now() - began);
    if (i == 49) {
      id = info->id;
      break;
    }
    began = Now();
    Check(rig.node().Delete(info->id).status(), "delete");
    destroy.push_back(Now() - began);
  }
  for (int i = 0; i < 300; ++i) {
    CommandSpec spec;
    spec.argv = {"/bin/true"};
    double began = Now();
    Result<CommandInfo> info = Start(rig.node(), id, spec);
    Check(info.status(), "start");
    Collector collector;
    auto subscription = rig.node().Attach(id, info->id, 0, 0, true, &collector);
    Check(subscription.status(), "attach");
    collector.Follow(std::move(*subscription));
    Check(collector.WaitExit().status(), "exit");
    exec.push_back(Now() - began);
    collector.Drop();
  }
  for (int i = 0; i < 20; ++i) {
    Check(RunShell(rig.node(), id, "echo " + std::to_string(i) + " > /file").status(), "run");
    double began = Now();
    Check(rig.node().Snapshot(id, "", "").status(), "snapshot");
    snapshot.push_back(Now() - began);
  }
  Report("create", create);
  Report("delete", destroy);
  Report("exec /bin/true", exec);
  Report("snapshot of one changed file", snapshot);
  double began = Now();
  ImageId image;
  auto children = rig.node().Fork(id, "", 16, 0, {}, &image);
  Check(children.status(), "fork");
  std::printf("fork of 16                          %7.1f ms\n", Now() - began);
  if (argc > 3) {
    std::atomic<int> left{std::atoi(argv[3])};
    began = Now();
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        while (left-- > 0) Check(rig.node().Create(Spec()).status(), "create");
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::printf("%s more                            %7.1f ms\n", argv[3], Now() - began);
    rig.Close();
    began = Now();
    Check(rig.Open(), "adopt");
    std::printf("adoption of %llu                      %7.1f ms\n",
                static_cast<unsigned long long>(rig.node().GetStats().sandboxes), Now() - began);
  }
  began = Now();
  Check(rig.Drain(), "drain");
  std::printf("drain                               %7.1f ms\n", Now() - began);
  return 0;
}

}  // namespace
}  // namespace esker::testing

int main(int argc, char** argv) { return esker::testing::Main(argc, argv); }
