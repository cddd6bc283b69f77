# SPDX-License-Identifier: Apache-2.0
"""Keeps snapshots as long as the checkpoints that name them."""

from __future__ import annotations

import mmap
import os
import pathlib
import re
import sys
import zipfile
from typing import Any

import spillway
from spillway.torch._run import LABEL, Run

_ZIP_END_BYTES = 66 << 10  # that hold the end of a zip file's directory
_LABELS = re.compile(re.escape(LABEL.encode()) + rb"[0-9]+(?:-[0-9a-f]{8})?")  # older versions had only the number
_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt"}


class Checkpoints:
    """Drops the snapshot of a checkpoint that was seen under `folder` and is gone.

    Without a Checkpoints, a run keeps its two newest snapshots and the one that was loaded, whatever checkpoints there are.
    With one, a snapshot is kept as long as a checkpoint under the folder names it. A checkpoint is a file *.pt, *.pth, *.bin
    or *.ckpt that torch.save or another pickler wrote and that has a state dict of spillway.torch. Of the snapshots that no
    checkpoint was seen to name, the newest `keep` are kept as well, and the one that was loaded: their checkpoint is just
    being saved, or was saved elsewhere.
    """

    def __init__(self, run: Run, folder: str | os.PathLike[str], keep: int = 2):
        if keep < 1:
            raise spillway.InvalidArgument(f"keep is {keep}: a checkpoint that is just being saved needs its snapshot, so 1 at "
                                           "least")
        self._run, self._folder, self._keep = run, pathlib.Path(folder), keep
        self._labels: dict[pathlib.Path, set[str]] = {}  # that each existing file names
        self._read: dict[pathlib.Path, tuple[int, int]] = {}  # size and time of each file as it was read
        self._last: dict[str, pathlib.Path] = {}  # the file in which each label was seen last
        run.checkpoints = self
        self._look()

    def labels(self) -> list[str]:
        """Returns the labels of the snapshots that state_dict() has made, the oldest commit first."""
        return [each["label"] for each in self._run.engine.snapshots() if each["label"].startswith(LABEL)]

    def drop_gone(self) -> None:
        """Drops the snapshots that are no longer kept. state_dict() calls it after each commit. While a checkpoint cannot be
        read, which a line on stderr says, none is dropped."""
        unreadable = self._look()
        labels = self.labels()
        living = set().union(*self._labels.values())
        unseen = [label for label in labels if label not in self._last]
        gone = [label for label in labels if label not in living and label not in unseen[-self._keep:]
                and not (label in unseen and self._run.is_loaded(label))]
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
        paths = self._folder.rglob("*")
        while True:
            try:
                path = next(paths, None)
            except OSError as error:  # of a folder, perhaps one that was deleted meanwhile: the rest was not seen
                unreadable.append(f"{error.filename or self._folder} ({error.strerror or error})")
                continue  # ends the loop, since the iterator has ended
            if path is None:
                break
            try:
                if path.suffix not in _SUFFIXES or not path.is_file():
                    continue
                stat = path.stat()
                there.add(path)
                key = (stat.st_size, stat.st_mtime_ns)
                if self._read.get(path) != key:
                    self._labels[path] = self._labels_in(path)
                    self._read[path] = key
                    self._last.update(dict.fromkeys(self._labels[path], path))
            except FileNotFoundError:
                continue  # it was deleted meanwhile
            except OSError as error:  # what it named before stays until it can be read, or is seen to be gone
                unreadable.append(f"{path} ({error.strerror or error})")
        for path in set(self._labels) - there:
            try:
                path.stat()
            except (FileNotFoundError, NotADirectoryError):
                del self._labels[path], self._read[path]
            except OSError as error:
                unreadable.append(f"{path} ({error.strerror or error})")
        return unreadable

    def _labels_in(self, path: pathlib.Path) -> set[str]:
        """Returns the labels of the run's snapshots that the file names. Raises OSError if the file cannot be read."""
        try:
            found = _strings_in(path, self._run.engine.store_id.encode())
        except OSError:
            raise
        except Exception:  # half written, or a zip of another kind
            return set()
        return found & set(self.labels())  # other strings may look like a label


def _strings_in(path: pathlib.Path, store_id: bytes) -> set[str]:
    """Returns the strings that look like our labels in the pickles of a torch.save file that also hold this store's id. A
    pickle holds strings verbatim, so nothing is unpickled or run. In torch.save's newer format, a zip file, no tensor data
    is read."""

    def search(pickled: Any) -> set[str]:
        if pickled.find(store_id) < 0:
            return set()
        return {label.decode() for label in _LABELS.findall(pickled)}

    with open(path, "rb") as file:
        first = file.read(1)
        if first == b"P":
            file.seek(max(0, os.fstat(file.fileno()).st_size - _ZIP_END_BYTES))
            file.read()  # raises OSError if it cannot be read, for which zipfile says that the file is no zip
            with zipfile.ZipFile(file) as zipped:
                return set().union(*(search(zipped.read(name)) for name in zipped.namelist() if name.endswith(".pkl")))
        if first != b"\x80":  # not a pickle
            return set()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pickled:
            return search(pickled)
