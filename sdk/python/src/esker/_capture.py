"""Keeping and decoding a command's output."""

from __future__ import annotations

import codecs

DEFAULT_CAPTURE = 64 << 20


class Utf8Stream:
    """Decodes pieces of a stream; a character split between two pieces comes whole with the later."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class Capture:
    """The head of a stream, up to `limit` bytes, and the position behind its last byte."""

    def __init__(self, limit: int = DEFAULT_CAPTURE) -> None:
        self.limit = limit
        self.position = 0  # where the next byte is expected
        self.truncated = False
        self._kept = bytearray()

    def add(self, offset: int, data: bytes) -> bytes:
        """Takes data that begins at `offset`; returns the part of it that is new."""
        if offset < self.position:
            data = data[self.position - offset :]
        elif offset > self.position:
            self.truncated = True  # the server no longer keeps what lies between
            self.position = offset
        self.position += len(data)
        if self.truncated:
            return data
        room = self.limit - len(self._kept)
        self._kept += data[:room]
        self.truncated = len(data) > room
        return data

    def content(self) -> bytes:
        return bytes(self._kept)

    def text(self) -> str:
        return self._kept.decode("utf-8", errors="replace")
