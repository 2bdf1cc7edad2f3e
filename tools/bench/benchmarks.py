"""The benchmarks: each yields rows that stand beside a floor or a peer of the same run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from harness import Server, Workplace
from images import ImageStore
from peers import Floor, OciRuntime, busybox_root, durable_tar_ms

Say = Callable[[str], None]


@dataclass
class Row:
    """A figure of Esker's and what it is measured against, both medians of the rounds."""

    bench: str
    what: str
    unit: str
    esker: float
    peer: str = ""
    peer_value: float | None = None
    higher_is_better: bool = True
    target: str = ""

    @property
    def ratio(self) -> float | None:
        """Above 1: Esker is better."""
        if not self.peer_value or not self.esker:
            return None
        return self.esker / self.peer_value if self.higher_is_better else self.peer_value / self.esker


@dataclass
class Settings:
    place: Workplace
    images: ImageStore  # for the group image; its roots are made when that runs
    rounds: int
    seconds: float
    say: Say
    quick: bool = False  # small inputs and a warm machine: for development, no figures to keep
    steps: list[dict] = field(default_factory=list)  # latencies by step, for the second table

    @property
    def big_root(self) -> str:
        """A real root of more than 400 MB."""
        return "cpp"


Measures = dict[str, Callable[[], dict[str, float]]]


def interleaved(settings: Settings, measures: Measures) -> dict[str, dict[str, float]]:
    """Every measure once a round, one after the other; the median of each figure."""
    seen: dict[str, dict[str, list[float]]] = {name: {} for name in measures}
    for number in range(settings.rounds):
        for name, measure in measures.items():
            settings.say(f"round {number + 1} of {settings.rounds}: {name}")
            for figure, value in measure().items():
                seen[name].setdefault(figure, []).append(value)
    return {name: {figure: statistics.median(values) for figure, values in figures.items()}
            for name, figures in seen.items()}


def flat(load: dict) -> dict[str, float]:
    """What esker-load printed as one level of figures: per_second, create.p50_us, ..."""
    figures = {"per_second": load["per_second"]}
    for step, values in load["steps"].items():
        for name, value in values.items():
            figures[f"{step}.{name}"] = value
    return figures


def note_steps(settings: Settings, what: str, figures: dict[str, float]) -> None:
    steps = sorted({name.split(".")[0] for name in figures if name.endswith(".p50_us")})
    if len(steps) == 2:  # a cycle of one step
        steps.remove("cycle")
    for step in steps:
        settings.steps.append({"load": what, "step": step, "p50_ms": figures[f"{step}.p50_us"] / 1000,
                               "p99_ms": figures[f"{step}.p99_us"] / 1000})


def push_busybox(settings: Settings, server: Server) -> str:
    root = busybox_root(settings.place.root / "busybox")
    server.cli("image", "push", f"dir:{root}", "busybox:1")
    server.load("busybox:1", cycles=3)  # mounts the layer, fills pools
    return "busybox:1"


def container(settings: Settings) -> Iterator[Row]:
    """create -> `true` -> delete through the gateway."""
    place, seconds = settings.place, settings.seconds
    floor = Floor(place)
    runtimes = {name: OciRuntime(place, name, busybox_root(place.root / "busybox"))
                for name in ("runc", "crun")}
    targets = {("floor", 64): "at least 0.35; 300/s", ("runc", 64): "at least 5", ("crun", 64): "at least 2"}
    with place.server() as server:
        image = push_busybox(settings, server)
        measures: Measures = {}
        for n in (1, 2, 64):
            measures[f"esker {n}"] = lambda n=n: flat(server.load(image, in_flight=n, seconds=seconds))
            measures[f"floor {n}"] = lambda n=n: floor.measure(n, seconds)
            for name, runtime in runtimes.items():
                if n > 1:
                    measures[f"{name} {n}"] = lambda n=n, r=runtime: {
                        "per_second": r.per_second(n, seconds)}
        seen = interleaved(settings, measures)
    for n in (1, 2, 64):
        note_steps(settings, f"container, {n} in flight", seen[f"esker {n}"])
    one, many = seen["esker 1"], seen["esker 64"]
    yield Row("container", "latency p50, 1 in flight", "ms", one["cycle.p50_us"] / 1000, "floor",
              1000 / seen["floor 1"]["per_second"], False, "below 8 ms")
    yield Row("container", "latency p99, 1 in flight", "ms", one["cycle.p99_us"] / 1000)
    for n in (2, 64):
        for peer in ("floor", "runc", "crun"):
            yield Row("container", f"cycles, {n} in flight", "/s", seen[f"esker {n}"]["per_second"], peer,
                      seen[f"{peer} {n}"]["per_second"], True, targets.get((peer, n), ""))
    yield Row("container", "latency p99, 64 in flight", "ms", many["cycle.p99_us"] / 1000,
              target="below 400 ms")


def command(settings: Settings) -> Iterator[Row]:
    """`true` in a running sandbox, beside fork + exec inside the same namespaces."""
    place, seconds = settings.place, settings.seconds
    with place.server() as server:
        image = push_busybox(settings, server)
        sandbox = server.cli("sandbox", "create", image).strip()
        server.cli("sandbox", "cp", place.programs / "esker-floor-spawn", f"{sandbox}:/spawn")
        server.cli("sandbox", "exec", sandbox, "--", "/bin/busybox", "chmod", "755", "/spawn")

        def floor(workers: int) -> dict[str, float]:
            return json.loads(server.cli("sandbox", "exec", sandbox, "--", "/spawn", "/bin/true",
                                         str(workers), str(seconds)))

        measures: Measures = {}
        for n in (1, 64):
            measures[f"esker {n}"] = lambda n=n: flat(
                server.load(image, "exec", in_flight=n, seconds=seconds))
            measures[f"floor {n}"] = lambda n=n: floor(n)
        seen = interleaved(settings, measures)
    for n in (1, 64):
        note_steps(settings, f"exec, {n} in flight", seen[f"esker {n}"])
    yield Row("exec", "round trip p50, 1 in flight", "ms", seen["esker 1"]["exec.p50_us"] / 1000,
              "fork + exec inside", seen["floor 1"]["p50_us"] / 1000, False, "at least 0.4")
    yield Row("exec", "commands, 64 in flight", "/s", seen["esker 64"]["per_second"],
              "fork + exec inside", seen["floor 64"]["per_second"], True, "1,200/s")


def snapshot(settings: Settings) -> Iterator[Row]:
    """Snapshot of a one-file change, and forks."""
    place, seconds = settings.place, settings.seconds
    upper = place.root / "one-file"
    upper.mkdir()
    (upper / "esker-load-0").write_text("load-0123456789abcdef0123456789abcdef\n")
    with place.server() as server:
        image = push_busybox(settings, server)

        def tar() -> dict[str, float]:
            times = [durable_tar_ms(place.root, upper) for _ in range(50)]
            return {"p50_ms": statistics.median(times)}

        seen = interleaved(settings, {
            "snapshot": lambda: flat(server.load(image, "snapshot", seconds=seconds)),
            "durable tar": tar,
            "create": lambda: flat(server.load(image, seconds=seconds)),
            "fork(1)": lambda: flat(server.load(image, "fork", seconds=seconds)),
            "fork(8)": lambda: flat(server.load(image, "fork", count=8, seconds=seconds)),
        })
    note_steps(settings, "snapshot", seen["snapshot"])
    for name in ("fork(1)", "fork(8)"):
        note_steps(settings, name, seen[name])
    created = seen["create"]["create.p50_us"] / 1000
    yield Row("snapshot", "one changed file, p50", "ms", seen["snapshot"]["snapshot.p50_us"] / 1000,
              "tar + fsync + link", seen["durable tar"]["p50_ms"], False)
    yield Row("snapshot", "processes stand still, p50", "ms", seen["snapshot"]["frozen.p50_us"] / 1000)
    yield Row("snapshot", "fork(1), p50", "ms", seen["fork(1)"]["fork.p50_us"] / 1000, "1 create", created,
              False)
    yield Row("snapshot", "fork(8), p50", "ms", seen["fork(8)"]["fork.p50_us"] / 1000,
              "8 creates in turn", created * 8, False)


ALL: dict[str, Callable[[Settings], Iterator[Row]]] = {
    "container": container,
    "exec": command,
    "snapshot": snapshot,
}
