# SPDX-License-Identifier: Apache-2.0
"""Keeps snapshots as long as the checkpoints that name them."""

from __future__ import annotations

import errno
import mmap
import os
import pathlib
import re
import stat
import sys
import zipfile
from typing import Any

import spillway
from spillway.torch import _dcp_folder
from spillway.torch._run import LABEL, Run

_ZIP_END_BYTES = 66 << 10  # that hold the end of a zip file's directory
_LABELS = re.compile(re.escape(LABEL.encode()) + rb"[0-9]+(?:-[0-9a-f]{8})?")  # older versions had only the number
_PICKLES = {bytes([0x80, protocol]) for protocol in range(2, 6)}  # the first bytes of a pickle
# Files that are never opened: to close one would release SQLite's locks on it, or its bytes may look like a pickle's. The data
# files of torch.distributed.checkpoint are read where its metadata says.
_NOT_OPENED = re.compile(r".*\.(sqlite3?|db)(-wal|-shm|-journal)?$|spillway-segment-|.*\.distcp$")


class Checkpoints:
    """Drops the snapshot of a checkpoint that was seen under `folder` and was deleted.

    Without a Checkpoints, a run keeps its two newest snapshots and the one that was loaded, whatever checkpoints there are.
    With one, a snapshot is kept as long as a checkpoint under the folder names it. A checkpoint is a file of any name that
    torch.save or another pickler wrote and that has a state dict of spillway.torch, or a folder that
    torch.distributed.checkpoint wrote, which is one once it has its metadata. Of the snapshots that this run made and
    that no checkpoint was seen to name, the newest `keep` are kept as well, and the one that was loaded: their checkpoint is
    just being saved, or was saved elsewhere. A snapshot of an earlier run that no checkpoint was seen to name stays.
    """

    def __init__(self, run: Run, folder: str | os.PathLike[str], keep: int = 2):
        if keep < 1:
            raise spillway.InvalidArgument(f"keep is {keep}: a checkpoint that is just being saved needs its snapshot, so 1 at "
                                           "least")
        self._run, self._folder, self._keep = run, pathlib.Path(folder).absolute(), keep
        self._labels: dict[pathlib.Path, set[str]] = {}  # that each existing file names
        self._read: dict[pathlib.Path, tuple[int, int, int]] = {}  # its folder's device, its size and time as it was read
        self._last: dict[str, pathlib.Path] = {}  # the file in which each label was seen last
        run.checkpoints = self
        self._look()

    def labels(self) -> list[str]:
        """Returns the labels of the snapshots that state_dict() has made, the oldest commit first."""
        return [each["label"] for each in self._run.engine.snapshots() if each["label"].startswith(LABEL)]

    def drop_gone(self) -> None:
        """Drops the snapshots that are no longer kept. state_dict() calls it after each commit. While a checkpoint cannot be
        read, or the folder is not there or is on another device than before, as when its disk is not mounted, none is
        dropped, which a line on stderr says."""
        unreadable = self._look()
        labels = self.labels()
        living = set().union(*self._labels.values())
        unseen = [label for label in labels if label in self._run.made and label not in self._last]
        gone = [label for label in labels if label not in living and (
            label in self._last or label in unseen[:-self._keep] and not self._run.is_loaded(label))]
        if gone and unreadable:
            print(f"spillway: dropped none of the snapshots {', '.join(gone)}: {unreadable[0]} may name them, and could not "
                  "be read", file=sys.stderr)
            return
        for label in gone:
            self._run.drop(label)
            why = (f"its checkpoint {self._last[label]} is gone" if label in self._last
                   else "no checkpoint was seen with it, and newer ones are there")
            print(f"spillway: dropped snapshot {label}: {why}", file=sys.stderr)

    def _look(self) -> list[str]:
        """Reads the checkpoints that are new or have changed. Returns the paths that could not be read, with the reasons."""
        there, unreadable = set(), []

        def failed(error: OSError, path: pathlib.Path | None = None) -> None:
            unreadable.append(f"{path or error.filename or self._folder} ({error.strerror or error})")

        for folder, folders, names in os.walk(self._folder, onerror=failed):
            if "lost+found" in folders:
                folders.remove("lost+found")  # only root can read it
            for path in (pathlib.Path(folder, name) for name in names if not _NOT_OPENED.match(name)):
                try:
                    now = os.stat(path)
                    if not stat.S_ISREG(now.st_mode):
                        continue
                    there.add(path)
                    key = (os.stat(folder).st_dev, now.st_size, now.st_mtime_ns)
                    if self._read.get(path) != key:
                        self._labels[path] = self._labels_in(path)
                        self._read[path] = key
                        self._last.update(dict.fromkeys(self._labels[path], path))
                except FileNotFoundError:
                    continue  # it was deleted meanwhile
                except OSError as error:  # what it named before stays until it can be read, or is seen to be gone
                    if isinstance(error, PermissionError) and not self._may_be_ours(path):
                        continue
                    failed(error, path)
        for path in set(self._read) - there:
            try:
                if self._is_deleted(path):
                    del self._labels[path], self._read[path]
            except OSError as error:
                failed(error, path)
        return unreadable

    def _may_be_ours(self, path: pathlib.Path) -> bool:
        """Whether a file that this user may not read can be a checkpoint: it was one, or has the name of one."""
        return (path in self._read or _dcp_folder.is_metadata(path)
                or path.suffix in (".pt", ".pth", ".ckpt", ".bin", ".tar", ".pkl"))

    def _is_deleted(self, path: pathlib.Path) -> bool:
        """Whether a file that was read is not there any more. Raises OSError if that cannot be known: `folder` is missing, or
        what is left of the file's folders is on another device, as when its disk is not mounted."""
        for place in (path, *path.parents):
            try:
                now = os.stat(place, follow_symlinks=place != path)
            except (FileNotFoundError, NotADirectoryError):
                if place == self._folder:
                    raise
                continue
            if place != path and now.st_dev != self._read[path][0]:
                raise OSError(errno.ENODEV, f"{place} is on another device than before")
            return place != path
        return False

    def _labels_in(self, path: pathlib.Path) -> set[str]:
        """Returns the labels of the run's snapshots that the file names. Raises OSError if the file cannot be read."""
        store_id = self._run.engine.store_id.encode()
        try:
            found = _strings_in_folder(path, store_id) if _dcp_folder.is_metadata(path) else _strings_in(path, store_id)
        except OSError:
            raise
        except Exception:  # half written, or a zip of another kind
            return set()
        return found & set(self.labels())  # other strings may look like a label


def _strings_in(path: pathlib.Path, store_id: bytes) -> set[str]:
    """Returns the strings that look like our labels in the pickles of a torch.save file that also hold this store's id. A
    pickle holds strings verbatim, so nothing is unpickled or run. In torch.save's newer format, a zip file, no tensor data
    is read."""

    with open(path, "rb") as file:
        first = file.read(2)
        if first == b"PK":
            file.seek(max(0, os.fstat(file.fileno()).st_size - _ZIP_END_BYTES))
            file.read()  # raises OSError if it cannot be read, for which zipfile says that the file is no zip
            with zipfile.ZipFile(file) as zipped:
                return set().union(*(_search(zipped.read(name), store_id) for name in zipped.namelist()
                                     if name.endswith(".pkl")))
        if first not in _PICKLES:
            return set()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pickled:
            return _search(pickled, store_id)


def _strings_in_folder(metadata: pathlib.Path, store_id: bytes) -> set[str]:
    """Returns the same of a checkpoint of torch.distributed.checkpoint, given its metadata. Of its data only the entries are
    read that name commits."""
    found: set[str] = set()
    for entry in _dcp_folder.entries(metadata):
        words = entry.name.split(".")
        if words[-1] == "spillway" and "param_groups" in words:
            with open(entry.path, "rb") as file:
                file.seek(entry.offset)
                found |= _search(file.read(entry.size), store_id)
    return found


def _search(pickled: Any, store_id: bytes) -> set[str]:
    if pickled.find(store_id) < 0:
        return set()
    return {label.decode() for label in _LABELS.findall(pickled)}
