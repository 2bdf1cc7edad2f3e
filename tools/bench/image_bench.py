"""The group `image`: images in, what is touched out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks import Row, Settings
from image_burst import burst
from image_import import import_again, import_gzip, import_plain, stored_size
from image_reads import reads
from image_start import cold, slow_store

ALL: dict[str, Callable[[Settings], Iterator[Row]]] = {
    "import": import_plain,
    "gzip": import_gzip,
    "again": import_again,
    "cold": cold,
    "slow": slow_store,
    "reads": reads,
    "burst": burst,
    "size": stored_size,
}
