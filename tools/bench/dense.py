"""How many sandboxes live at once on one node, and what that costs. Not among what runs unasked: it takes minutes."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import Row, Settings, flat, note_steps, push_busybox
from harness import BenchError, Server


@dataclass
class Memory:
    """Bytes in use: of the whole machine, charged to sandboxes' cgroups (v1), and of our own processes."""

    machine: int
    charged: int
    servers: int

    @staticmethod
    def now(server: Server) -> Memory:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        kib = {name: int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable")}
        groups = Path("/sys/fs/cgroup/memory").glob(f"esker-{server.node_id}/*/memory.usage_in_bytes")
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.pids().values()]
        return Memory(machine=(kib["MemTotal"] - kib["MemAvailable"]) * 1024,
                      charged=sum(int(group.read_text()) for group in groups),
                      servers=sum(pages) * resource.getpagesize())


def dense(settings: Settings) -> Iterator[Row]:
    """Many sandboxes that live at once on one node; a command in each; the server is killed among them."""
    place, count = settings.place, 300 if settings.quick else 3000
    with place.server(config=f"[node]\nmax_sandboxes = {count + 200}\n") as server:
        image = push_busybox(settings, server)
        memory, created = {0: Memory.now(server)}, {0: flat(server.load(image, cycles=100))["create.p50_us"]}
        for step in (count // 3, count):
            settings.say(f"filling up to {step}")
            filled = server.load(image, "fill", in_flight=16, cycles=step - max(created))
            note_steps(settings, f"fill up to {step}, 16 in flight", flat(filled))
            memory[step] = Memory.now(server)
            created[step] = flat(server.load(image, cycles=100))["create.p50_us"]
        settings.say("a command in each")
        each = flat(server.load(image, "each", in_flight=16))
        note_steps(settings, f"exec, one in each of {count}", each)
        descriptors = {name: len(list(Path(f"/proc/{pid}/fd").iterdir()))
                       for name, pid in server.pids().items()}
        settings.say("killing and starting the server")
        server.kill()
        begin = time.monotonic()
        server.start()
        adopted = time.monotonic() - begin
        again = flat(server.load(image, "each", in_flight=16))
        if server.load(image, cycles=1) and again["exec.count"] != count:
            raise BenchError(f"{again['exec.count']} of {count} sandboxes were adopted")
        after = flat(server.load(image, cycles=100))["create.p50_us"]
        settings.say("deleting all")
        emptied = server.load(image, "empty", in_flight=16)
        note_steps(settings, f"delete all {count}, 16 in flight", flat(emptied))
        if server.load(image, "each")["cycles"] != 0:
            raise BenchError("sandboxes are left after all were deleted")
    for step in (count // 3, count):
        yield Row("dense", f"create p50, {step} live", "ms", created[step] / 1000, "none live",
                  created[0] / 1000, False)
    yield Row("dense", f"create p50, {count} live, restarted server", "ms", after / 1000, "none live",
              created[0] / 1000, False)
    yield Row("dense", f"restart by SIGKILL, all {count} adopted", "s", adopted, target="below 10 s")
    for what in ("machine", "charged", "servers"):
        grown = getattr(memory[count], what) - getattr(memory[0], what)
        yield Row("dense", f"memory of an idle sandbox, {what}", "KiB", grown / count / 1024)
    for name, number in descriptors.items():
        yield Row("dense", f"descriptors of {name}, {count} live", "", number)


ALL: dict[str, Callable[[Settings], Iterator[Row]]] = {"dense": dense}
