# SPDX-License-Identifier: Apache-2.0
"""Reads a snapshot of a store that this process has open, through a child process: StoreReader must not run in this one."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import spillway

_READ = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from spillway._store_reader import StoreReader
folders, label, specs = json.loads(sys.stdin.read())
with StoreReader(folders) as store, os.fdopen(os.dup(1), "wb") as out:
    for spec in specs:
        out.write(store.read(label, spec))
"""


class SnapshotPipe:
    """The bytes of tensors of a snapshot, one tensor after another. `specs`: what Engine.spec returned of them; without any, no
    process is started."""

    def __init__(self, folders: Sequence[str], label: str, specs: Sequence[dict[str, Any]]):
        self._child = None
        if specs:
            path = [str(pathlib.Path(spillway.__file__).parents[1]), *sys.path]
            self._child = subprocess.Popen([sys.executable, "-I", "-c", _READ, json.dumps(path)], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self._child.stdin.write(json.dumps([list(folders), label, list(specs)]).encode())
            self._child.stdin.close()

    def __enter__(self) -> SnapshotPipe:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.stdout.close()
            self._child.stderr.close()
            self._child.wait()

    def read(self, out: memoryview) -> None:
        """Fills `out` with the next bytes. Raises DataLoss with the child's error if there are none."""
        done = 0
        while done < len(out):
            got = self._child.stdout.readinto(out[done:])
            if not got:
                error = self._child.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise spillway.DataLoss(f"a snapshot could not be read by a process beside this one: {error or 'it ended'}")
            done += got
