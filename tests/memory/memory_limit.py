# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup of either version around one child process."""

import contextlib
import os
import pathlib
import subprocess
import time

_ROOT = pathlib.Path("/sys/fs/cgroup")


class Unavailable(Exception):
    """Why this machine lets us make no memory cgroup."""


def _parent():
    """(folder to make a group in, name of its limit file, name of its peak file)."""
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
    """Yields a group's folder; raises Unavailable where the machine or our rights allow none."""
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
    """The most that the group was charged, page cache included; None where the kernel does not say."""
    path = group / _parent()[2]
    return int(path.read_text()) if path.exists() else None


def run_in(group, command):
    """subprocess.run of `command` inside the group."""
    def join():
        (group / "cgroup.procs").write_text(str(os.getpid()))

    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          preexec_fn=join)


def _remove(group):
    """A group stays busy for a moment after its last process has gone."""
    for _ in range(100):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)
