# SPDX-License-Identifier: Apache-2.0
"""Makes a disk slower for one process: a cgroup (version 1, blkio; needs root), which counts what O_DIRECT moves exactly."""

import contextlib
import os
import pathlib
import sys

BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")


def check(rates, parser):
    """Ends the program unless these rates ("none" or MB/s) can be had."""
    if any(rate != "none" for rate in rates) and not os.access(BLKIO, os.W_OK):
        sys.exit(f"{parser.prog}: {BLKIO} cannot be written, so nothing can be throttled (cgroup v1 and root are needed); use "
                 "--throttle none")


def disk_of(folder):
    """The whole disk below the folder's file system as "major:minor": partitions cannot be throttled."""
    device = os.stat(folder).st_dev
    path = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if (path / "partition").exists():
        path = path.parent
    return (path / "dev").read_text(encoding="ascii").strip()


@contextlib.contextmanager
def throttled(folder, megabytes_per_second):
    """A function that puts the calling process behind the throttle."""
    if megabytes_per_second == "none":
        yield lambda: None
        return
    group = BLKIO / f"spillway-bench-{os.getpid()}"
    group.mkdir()
    try:
        rule = f"{disk_of(folder)} {int(float(megabytes_per_second) * 1e6)}"
        for direction in ("read", "write"):
            (group / f"blkio.throttle.{direction}_bps_device").write_text(rule, encoding="ascii")
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    finally:
        group.rmdir()
