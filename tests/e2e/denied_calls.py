"""Runs a program on a kernel that "lacks" something: chosen system calls fail as they would there.

A seccomp filter reports the chosen calls of the program, and of all that it starts, to this process,
which lets each go on or answers it with an errno. So a rule may look at a call's strings too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import signal
import struct
import subprocess
from dataclasses import dataclass
from fcntl import ioctl
from typing import Any, Callable, Optional

# Numbers of x86-64, and those that all newer calls share.
_NUMBERS = {
    "mount": 165, "setns": 308, "seccomp": 317, "memfd_create": 319, "unshare": 272,
    "pidfd_send_signal": 424, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "pidfd_open": 434, "clone3": 435, "close_range": 436, "openat2": 437,
    "mount_setattr": 442,
}  # fmt: skip
_SECCOMP = 317
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_RET_ALLOW, _RET_USER_NOTIF = 0x7FFF0000, 0x7FC00000
_NOTIF_RECV, _NOTIF_SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def supported() -> bool:
    return platform.machine() == "x86_64" and os.geteuid() == 0


def _syscall(number: int, *arguments: Any) -> int:
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return result


@dataclass
class Call:
    """One call that waits for its answer."""

    pid: int
    arguments: tuple[int, ...]

    def text(self, index: int) -> str:
        """The string that the argument points at."""
        if self.arguments[index] == 0:
            return ""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(self.arguments[index])
            return memory.read(64).split(b"\0")[0].decode(errors="replace")


@dataclass
class Deny:
    """A system call that fails, or only those of its calls that `when` picks."""

    name: str
    error: int = errno.ENOSYS
    when: Optional[Callable[[Call], bool]] = None


def _install(numbers: list[int]) -> int:
    """Filters this process for good; the listener's descriptor."""
    program = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # load the call's number
    for place, number in enumerate(numbers):
        program.append(struct.pack("HBBI", 0x15, len(numbers) - place, 0, number))
    program.append(struct.pack("HBBI", 0x06, 0, 0, _RET_ALLOW))
    program.append(struct.pack("HBBI", 0x06, 0, 0, _RET_USER_NOTIF))
    code = ctypes.create_string_buffer(b"".join(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    return _syscall(_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, header)


def _answer(listener: int, rules: dict[int, Deny]) -> None:
    notice = bytearray(80)
    try:
        ioctl(listener, _NOTIF_RECV, notice)
    except OSError as gone:  # the caller was killed meanwhile
        if gone.errno in (errno.ENOENT, errno.EINTR):
            return
        raise
    identity, pid, _, number, _, _, *arguments = struct.unpack("QIIiIQ6Q", notice)
    rule = rules[number]
    try:
        refuse = rule.when is None or rule.when(Call(pid, tuple(arguments)))
    except OSError:
        refuse = False
    error, flags = (-rule.error, 0) if refuse else (0, _CONTINUE)
    try:
        ioctl(listener, _NOTIF_SEND, bytearray(struct.pack("QqiI", identity, 0, error, flags)))
    except OSError as gone:
        if gone.errno != errno.ENOENT:
            raise


def _child(command: list[str], numbers: list[int], said: int, go: int, output: int) -> None:
    """Never returns."""
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.write(said, struct.pack("i", _install(numbers)))
        os.read(go, 1)
        os.execv(command[0], command)
    finally:
        os._exit(126)


def run(command: list[str], denied: list[Deny], timeout: float = 60) -> subprocess.CompletedProcess:
    """To its end, stdout and stderr together. It must leave no process behind: such a one would wait
    for answers for ever."""
    rules = {_NUMBERS[rule.name]: rule for rule in denied}
    command = [str(part) for part in command]
    said, go, output = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(command, list(rules), said[1], go[0], output[1])
    for end in (said[1], go[0], output[1]):
        os.close(end)
    pidfd = _syscall(_PIDFD_OPEN, pid, 0)
    number = struct.unpack("i", os.read(said[0], 4))[0]
    listener = _syscall(_PIDFD_GETFD, pidfd, number, 0)
    os.write(go[1], b"g")
    text = bytearray()
    poll = select.poll()
    for end in (listener, output[0]):
        poll.register(end, select.POLLIN)
    try:
        while True:
            events = dict(poll.poll(timeout * 1000))
            assert events, f"{command} said nothing for {timeout} s: {text.decode()}"
            if listener in events and events[listener] & select.POLLIN:
                _answer(listener, rules)
            elif listener in events:
                poll.unregister(listener)  # the last process under the filter has ended
            if output[0] in events:
                data = os.read(output[0], 65536)
                if not data:
                    break
                text += data
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for end in (said[0], go[1], output[0], listener, pidfd):
            os.close(end)
    return subprocess.CompletedProcess(command, code, text.decode(errors="replace"))
