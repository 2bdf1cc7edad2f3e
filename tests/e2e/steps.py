"""What tests of several files do."""

from __future__ import annotations

import threading

TREE_HASH = (
    "cd / && find . -xdev \\( -path ./proc -o -path ./dev -o -path ./sys \\) -prune -o -print | sort |"
    " while read -r f; do stat -c '%n %F %a %u %g' \"$f\";"
    ' [ -f "$f" ] && [ ! -L "$f" ] && sha256sum "$f"; [ -L "$f" ] && readlink "$f"; done | sha256sum'
)


def tree_hash(sandbox) -> str:
    return sandbox.commands.run(TREE_HASH, timeout=60, check=True).stdout.split()[0]


class Background(threading.Thread):
    """A call in a thread; join() gives its result."""

    def __init__(self, call) -> None:
        super().__init__(daemon=True)
        self.call, self.value, self.error = call, None, None
        self.start()

    def run(self) -> None:
        try:
            self.value = self.call()
        except BaseException as error:
            self.error = error

    def result(self, timeout: float = 60):
        self.join(timeout)
        assert not self.is_alive(), "the call still runs"
        if self.error is not None:
            raise self.error
        return self.value
