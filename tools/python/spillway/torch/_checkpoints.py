# SPDX-License-Identifier: Apache-2.0
"""Snapshots that live as long as the checkpoints that name them."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import torch
from spillway.torch._run import LABEL, Run

_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt"}


class Checkpoints:
    """Drops the snapshot of each checkpoint under `folder` that was seen there and is gone.

    Without one, a run keeps the newest two snapshots, whatever checkpoints there are. With one, every checkpoint under the
    folder (a file *.pt, *.pth, *.bin or *.ckpt of torch.save's with a state dict of ours in it) keeps its own, and so do
    the newest `keep` that no checkpoint was seen with: one that is just being saved, or was saved elsewhere.
    """

    def __init__(self, run: Run, folder: str | os.PathLike[str], keep: int = 2):
        self._run, self._folder, self._keep = run, pathlib.Path(folder), keep
        self._labels: dict[pathlib.Path, set[str]] = {}  # in each file that is there
        self._read: dict[pathlib.Path, tuple[int, int]] = {}  # files that were read: size and time
        self._last: dict[str, pathlib.Path] = {}  # where each label was seen last
        run.checkpoints = self
        self._look()

    def labels(self) -> list[str]:
        """Of the snapshots that there are, the oldest commit first."""
        return [each["label"] for each in self._run.engine.snapshots() if each["label"].startswith(LABEL)]

    def drop_gone(self) -> None:
        """Called with each state_dict(), too."""
        self._look()
        labels = self.labels()
        living = set().union(*self._labels.values())
        unseen = [label for label in labels if label not in self._last]
        for label in labels:
            if label in living or label in unseen[-self._keep:]:
                continue
            self._run.engine.drop(label)
            why = (f"its checkpoint {self._last[label]} is gone" if label in self._last
                   else "no checkpoint was seen with it, and newer ones are there")
            print(f"spillway: dropped snapshot {label}: {why}", file=sys.stderr)

    def _look(self) -> None:
        there = set()
        for path in self._folder.rglob("*"):
            try:
                if path.suffix not in _SUFFIXES or not path.is_file():
                    continue
                stat = path.stat()
            except OSError:
                continue  # it went meanwhile
            there.add(path)
            key = (stat.st_size, stat.st_mtime_ns)
            if self._read.get(path) == key:
                continue
            self._read[path] = key
            self._labels[path] = self._labels_in(path)
            self._last.update(dict.fromkeys(self._labels[path], path))
        for path in set(self._labels) - there:
            del self._labels[path], self._read[path]

    def _labels_in(self, path: pathlib.Path) -> set[str]:
        try:
            # Of tensors nothing is read.
            loaded = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        except Exception:  # half written, or something else, of whatever kind
            return set()
        found: set[str] = set()

        def search(value: Any, depth: int) -> None:
            if isinstance(value, dict):
                mine = value.get("spillway")
                if isinstance(mine, dict) and mine.get("store_id") == self._run.engine.store_id and mine.get("label"):
                    found.add(mine["label"])
                value = list(value.values())
            if isinstance(value, (list, tuple)) and depth > 0:
                for each in value:
                    search(each, depth - 1)

        search(loaded, 4)
        return found
