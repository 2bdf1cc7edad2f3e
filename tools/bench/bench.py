"""Benchmarks as ratios: each figure stands beside a floor or a peer measured in the same run.

    tools/dev bench [NAME...] [--rounds N] [--seconds S] [--json FILE] [--quick]

Names: container, exec, snapshot, and the group image, of which single ones may follow: `image cold reads`
(import, gzip, again, cold, slow, reads, burst, size). All when none is given. Starts its own `esker serve` on
a temporary directory under /var/tmp and leaves nothing behind but the images that it makes once in
.dev/bench-images. Needs root.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import benchmarks
import dense
import image_bench
from harness import BenchError, Programs, Workplace, enter_own_mount_namespace
from images import ImageStore

GROUP = "image"
ROOT = Path(__file__).resolve().parents[2]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known()))
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="the built programs")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (the median counts)")
    parser.add_argument("--seconds", type=float, default=5, help="of load for each figure and round")
    parser.add_argument("--quick", action="store_true",
                        help="small inputs, one round, other programs' caches left alone: no figures to keep")
    parser.add_argument("--json", type=Path, help="write all figures there too")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in known()]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known())}")
    if options.quick:
        options.rounds, options.seconds = 1, 1
    return options


def known() -> dict:
    return {**benchmarks.ALL, GROUP: None, **image_bench.ALL, **dense.ALL}


def chosen(names: list[str]) -> list[str]:
    """The group's name alone stands for all of it."""
    if not names:
        return [*benchmarks.ALL, *image_bench.ALL]
    if GROUP in names and not set(names) & image_bench.ALL.keys():
        names = [*names, *image_bench.ALL]
    return [name for name in names if name != GROUP]


def number(value: float | None, unit: str = "") -> str:
    if value is None:
        return ""
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def show(console: Console, rows: list[benchmarks.Row], steps: list[dict]) -> None:
    table = Table(title="Esker beside floors and peers of the same run (ratio above 1: Esker is better)")
    for name in ("bench", "what", "esker", "beside", "", "ratio", "target"):
        table.add_column(name, justify="right" if name in ("esker", "", "ratio") else "left")
    for row in rows:
        table.add_row(row.bench, row.what, number(row.esker, row.unit), row.peer,
                      number(row.peer_value, row.unit), number(row.ratio), row.target)
    console.print(table)
    if not steps:
        return
    table = Table(title="Where the time goes")
    for name in ("load", "step", "p50", "p99"):
        table.add_column(name, justify="left" if name in ("load", "step") else "right")
    for step in steps:
        table.add_row(step["load"], step["step"], number(step["p50_ms"], "ms"), number(step["p99_ms"], "ms"))
    console.print(table)


def machine() -> dict:
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "kernel": os.uname().release,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
    }


def main() -> int:
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 140)
    notes = Console(stderr=True)
    if os.geteuid() != 0:
        notes.print("bench: needs root, as esker serve does")
        return 1
    enter_own_mount_namespace()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all is cleaned up
    names = chosen(options.names)
    images = ImageStore(ROOT / ".dev/bench-images")
    if image_bench.ALL.keys() & set(names):
        images.make_roots()
    rows: list[benchmarks.Row] = []
    before = machine()
    try:
        place = Workplace(Programs(options.bin.resolve()))
    except BenchError as error:
        notes.print(f"bench: {error}")
        return 1
    settings = benchmarks.Settings(place, images, options.rounds, options.seconds, lambda _: None,
                                   options.quick)
    failed = False
    try:
        for name in names:
            with notes.status(name) as status:
                settings.say = lambda text, name=name: status.update(f"{name}: {text}")
                try:
                    rows += known()[name](settings)
                except (BenchError, subprocess.SubprocessError) as error:
                    failed = True
                    notes.print(f"bench: {name}: {error}", markup=False)
    finally:
        place.remove()
    after = machine()
    show(console, rows, settings.steps)
    console.print(f"{before['when']}, Linux {before['kernel']}, {before['cpus']} cores, load average "
                  f"{before['load_average'][0]:.1f} before and {after['load_average'][0]:.1f} after; medians "
                  f"of {options.rounds} rounds of {options.seconds:g} s", highlight=False)
    if options.json:
        options.json.write_text(json.dumps({
            "before": before, "after": after, "rounds": options.rounds, "seconds": options.seconds,
            "rows": [dataclasses.asdict(row) | {"ratio": row.ratio} for row in rows],
            "steps": settings.steps}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
