"""What root inside a sandbox cannot do. Each line is tried for real; the sandbox must live on."""

from __future__ import annotations

import pytest

FORBIDDEN = {
    "read PID 1's memory": "head -c 1 /proc/1/mem",
    "read PID 1's environment": "cat /proc/1/environ",
    "open PID 1's program": "head -c 4 /proc/1/exe",
    "look through PID 1's root": "ls /proc/1/root/",
    "list PID 1's descriptors": "ls /proc/1/fd/",
    "mount": "mount -t tmpfs none /tmp",
    "mount proc anew": "mkdir -p /p && mount -t proc none /p",
    "unmount": "umount /proc",
    "make a device": "mknod /tmp/sda b 8 0 && head -c 1 /tmp/sda",
    "read kernel memory": "head -c 1 /proc/kcore",
    "read the kernel's log": "dmesg | grep .",
    "set a core pattern": "echo '|/bin/x' > /proc/sys/kernel/core_pattern",
    "trigger the kernel": "echo b > /proc/sysrq-trigger",
    "set a host-wide knob": "echo 1 > /proc/sys/vm/drop_caches",
    "set the clock": "date -s '2001-01-01'; [ $(date +%Y) = 2001 ]",
    "load a module": "insmod /tmp/x.ko",
    "make a user namespace": "unshare -r true",
    "make a mount namespace": "unshare -m true",
    "enter PID 1's namespaces": "nsenter -t 1 -m true",
    "raise priority": "nice -n -20 sh -c '[ $(nice) = -20 ]'",
    "reach the internet": "timeout 2 nc -w 1 1.1.1.1 53 </dev/null",
    "write below /sys": "find /sys -type f -perm -200 2>/dev/null | head -50 | while read f; do"
    " echo 1 > $f && exit 0; done; false",
    "see the host's processes": "[ $(ls -d /proc/[0-9]* | wc -l) -gt 20 ]",
    "see host mounts": "grep -E '/var/tmp|server/data' /proc/self/mountinfo",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_root_inside_cannot(shared, what):
    result = shared.commands.run(FORBIDDEN[what], timeout=30)
    assert result.exit_code != 0, f"{what}: {result.stdout[:300]}"
    assert shared.commands.run("echo alive").stdout == "alive\n"


def test_pid_1_cannot_be_killed(shared):
    shared.commands.run("kill -9 1; kill -TERM 1; kill -STOP 1")
    assert shared.commands.run("echo alive").stdout == "alive\n"


def test_loopback_is_the_only_network(shared):
    names = shared.commands.run("sed 1,2d /proc/net/dev | cut -d: -f1").stdout.split()
    assert names == ["lo"]
    server = shared.commands.run("echo hello | nc -l -p 7777", background=True)
    script = "for i in $(seq 100); do nc 127.0.0.1 7777 </dev/null && exit; usleep 20000; done"
    assert shared.commands.run(script, timeout=30).stdout == "hello\n"
    server.kill()
