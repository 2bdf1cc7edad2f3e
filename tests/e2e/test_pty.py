"""Terminals: through the SDK, and `esker sandbox exec -it` on a real one."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import esker
import pytest
from esker_server import wait_until


class Typist:
    """Reads a terminal's output in the background of the test, by iterating."""

    def __init__(self, handle) -> None:
        import threading

        self.handle, self.output = handle, ""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for event in self.handle:
                self.output += event.text
        except esker.CancelledError:
            pass

    def expect(self, text: str, after: int = 0) -> int:
        """Waits for `text`; the position behind it."""
        wait_until(
            lambda: text in self.output[after:],
            what=f"{text!r} in {self.output[after:][-300:]!r}",
        )
        return self.output.index(text, after) + len(text)


def test_interactive_shell(sandbox):
    handle = sandbox.pty.create(rows=30, cols=100, user="agent")
    typist = Typist(handle)
    handle.send_input("tty; stty size; echo $TERM; id -un\n")
    at = typist.expect("/dev/pts/")
    at = typist.expect("30 100", at)
    at = typist.expect("xterm-256color", at)
    at = typist.expect("agent", at)
    handle.resize(50, 132)
    handle.send_input("stty size\n")
    at = typist.expect("50 132", at)
    handle.send_input("sleep 1000\n")
    wait_until(lambda: "sleep 1000" in sandbox.commands.run(["ps", "-o", "args"]).stdout)
    handle.send_input("\x03")
    at = typist.expect("$ ", typist.expect("^C", at))  # what is typed before that is dropped
    handle.send_input("echo after=$?\n")
    at = typist.expect("after=130", at)
    handle.send_input("exit 3\n")
    assert handle.wait(timeout=20).exit_code == 3
    typist.thread.join(20)


def test_end_of_file_and_reconnecting(sandbox):
    seen = []
    handle = sandbox.pty.create(["cat"], on_data=seen.append)
    sandbox.pty.send_input(handle.id, b"h\xc3\xa9\n")
    again = sandbox.pty.connect(handle.id)
    Typist(again).expect("h\u00e9\r\nh\u00e9")
    sandbox.pty.send_input(handle.id, "\x04")
    assert handle.wait(timeout=20).exit_code == 0
    assert all(isinstance(piece, bytes) for piece in seen)
    assert b"".join(seen).count(b"h\xc3\xa9") == 2


def test_kill(sandbox):
    handle = sandbox.pty.create()
    assert sandbox.pty.kill(handle.id)
    assert handle.wait(timeout=20).exit_code == 137


def test_commands_without_a_terminal_have_none(sandbox):
    assert "not a tty" in sandbox.commands.run("tty").stdout
    handle = sandbox.commands.run("sleep 100", background=True)
    with pytest.raises(esker.FailedPreconditionError):
        sandbox.pty.resize(handle.id, 10, 10)


class Terminal:
    """A program on a pseudo-terminal of this machine."""

    def __init__(self, argv) -> None:
        self.master, slave = pty.openpty()
        self.slave = slave
        self.resize(33, 111, tell=False)
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        self.before = termios.tcgetattr(slave)
        self.output = b""

    def expect(self, text: bytes, timeout: float = 20) -> bytes:
        """Waits for `text`; what came before it."""
        end = time.monotonic() + timeout
        while text not in self.output:
            left = end - time.monotonic()
            assert left > 0, f"no {text!r} in {self.output[-500:]!r}"
            if select.select([self.master], [], [], left)[0]:
                self.output += os.read(self.master, 65536)
        before, self.output = self.output.split(text, 1)
        return before

    def resize(self, rows: int, cols: int, tell: bool = True) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        if tell:  # the program has no controlling terminal, so the kernel does not
            self.process.send_signal(signal.SIGWINCH)

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        os.close(self.master)
        os.close(self.slave)


def test_exec_it_is_a_real_terminal(server, sandbox):
    command = ["sandbox", "exec", "-it", sandbox.id, "sh"]
    terminal = Terminal([server.bin / "esker", "--address", server.address, *command])
    try:
        terminal.type(b"tty; echo si''ze $(stty size)\n")
        terminal.expect(b"/dev/pts/")
        terminal.expect(b"size 33 111")
        terminal.resize(44, 122)
        # The size arrives by a call of its own, which the typed line may overtake.
        wait_until(lambda: stty_size(terminal) == "44 122", what="the new size arrives")
        terminal.type(b"cat\n")
        wait_until(lambda: "cat" in sandbox.commands.run(["ps", "-o", "comm"]).stdout.split())
        terminal.type(b"\x03")
        terminal.expect(b"^C")
        terminal.expect(b"# ")  # what is typed before that is dropped
        terminal.type(b"echo ca''ught $?\n")
        terminal.expect(b"caught 130")
        terminal.type(b"exit 42\n")
        assert terminal.process.wait(20) == 42
        assert termios.tcgetattr(terminal.slave)[3] == terminal.before[3]  # local modes restored
    finally:
        terminal.close()


def stty_size(terminal: Terminal) -> str:
    terminal.type(b"echo si''ze $(stty size) e''nd\n")
    terminal.expect(b"size ")
    return terminal.expect(b" end").decode()
