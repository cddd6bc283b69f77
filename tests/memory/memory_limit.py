# SPDX-License-Identifier: Apache-2.0
"""Runs one child process in a memory cgroup of either version, and measures the huge pages that it maps."""

import contextlib
import os
import pathlib
import subprocess
import time

_ROOT = pathlib.Path("/sys/fs/cgroup")


class Unavailable(Exception):
    """No memory cgroup can be made on this machine; the message says why."""


def _parent():
    """Returns the folder to make a group in, the name of its limit file and the name of its peak file."""
    if (_ROOT / "memory" / "memory.limit_in_bytes").exists():
        return _ROOT / "memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"
    controllers = _ROOT / "cgroup.subtree_control"
    if not controllers.exists():
        raise Unavailable("no cgroup file system at /sys/fs/cgroup")
    if "memory" not in controllers.read_text().split():
        try:
            controllers.write_text("+memory")
        except OSError as error:
            raise Unavailable(f"the memory controller cannot be turned on: {error.strerror}") from error
    return _ROOT, "memory.max", "memory.peak"


@contextlib.contextmanager
def memory_group(limit_bytes):
    """Yields the folder of a new group. Raises Unavailable if the machine or the user's rights allow none."""
    parent, limit_file, _ = _parent()
    group = parent / f"spillway-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise Unavailable(f"{group} cannot be made: {error.strerror}") from error
    try:
        (group / limit_file).write_text(str(limit_bytes))
        swap = group / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        yield group
    finally:
        _remove(group)


def peak_bytes(group):
    """Returns the most bytes that the group was charged, including page cache. None if the kernel does not report it."""
    path = group / _parent()[2]
    return int(path.read_text()) if path.exists() else None


def run(command, group=None):
    """Runs `command` as subprocess.run does, in the group if one is given. Adds `hugetlb_bytes` to the result: the most bytes
    of hugetlbfs that were observed, about every 50 ms."""
    def join():
        (group / "cgroup.procs").write_text(str(os.getpid()))

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=join if group else None) as child:
        hugetlb_bytes = 0
        while True:
            try:
                out, err = child.communicate(timeout=0.05)
                break
            except subprocess.TimeoutExpired:
                hugetlb_bytes = max(hugetlb_bytes, _hugetlb_bytes(child.pid))
    done = subprocess.CompletedProcess(command, child.returncode, out, err)
    done.hugetlb_bytes = hugetlb_bytes
    return done


def _hugetlb_bytes(pid):
    """Returns the bytes of hugetlbfs that a process maps. Neither resident size nor the group's charge counts them."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("HugetlbPages:"))


def _remove(group):
    """Removes the group. Retries, because a group stays busy for a moment after its last process has ended."""
    for _ in range(100):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)
