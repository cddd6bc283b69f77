# SPDX-License-Identifier: Apache-2.0
"""Snapshots that live as long as the checkpoints that name them."""

from __future__ import annotations

import os
import pathlib
import pickle
import sys
from typing import Any

import torch
from spillway.torch._run import LABEL, Run

# A state dict of ours is some KiB; what is larger is something else.
_MOST_BYTES = 1 << 20


class Checkpoints:
    """Drops the snapshot of each checkpoint under `folder` that was seen there and is gone.

    Without one, a run keeps the newest two snapshots, whatever checkpoints there are. With one, every checkpoint under the
    folder (files *.pt or *.bin that hold a state dict of ours, in it or in folders in it) keeps its own, and so do the
    newest `keep` that no checkpoint was seen with: one that is just being saved, or was saved elsewhere.
    """

    def __init__(self, run: Run, folder: str | os.PathLike[str], keep: int = 2):
        self._run, self._folder, self._keep = run, pathlib.Path(folder), keep
        self._seen: dict[str, pathlib.Path] = {}
        self._read: dict[pathlib.Path, tuple[int, int]] = {}  # files that were read: size and time
        run.checkpoints = self
        self._look()

    def labels(self) -> list[str]:
        """Of the snapshots that there are, the oldest commit first."""
        return [each["label"] for each in self._run.engine.snapshots() if each["label"].startswith(LABEL)]

    def drop_gone(self) -> None:
        """Called with each state_dict(), too."""
        self._look()
        labels = self.labels()
        unseen = [label for label in labels if label not in self._seen]
        for label in labels:
            path = self._seen.get(label)
            if path is None:
                why = "no checkpoint was seen with it, and newer ones are there" if label in unseen[:-self._keep] else None
            else:
                why = None if path.exists() else f"its checkpoint {path} is gone"
            if why is None:
                continue
            self._run.engine.drop(label)
            print(f"spillway: dropped snapshot {label}: {why}", file=sys.stderr)

    def _look(self) -> None:
        for pattern in ("*.pt", "*.bin", "*/*.pt", "*/*.bin"):
            for path in self._folder.glob(pattern):
                stat = path.stat()
                key = (stat.st_size, stat.st_mtime_ns)
                if stat.st_size > _MOST_BYTES or self._read.get(path) == key:
                    continue
                self._read[path] = key
                label = self._label_in(path)
                if label is not None:
                    self._seen[label] = path

    def _label_in(self, path: pathlib.Path) -> str | None:
        try:
            loaded = torch.load(path, weights_only=True, map_location="cpu")
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
            return None  # half written, or something else
        for of in [loaded, *(loaded.values() if isinstance(loaded, dict) else loaded if isinstance(loaded, (list, tuple)) else [])]:
            mine: Any = of.get("spillway") if isinstance(of, dict) else None
            if isinstance(mine, dict) and mine.get("store_id") == self._run.engine.store_id:
                return mine["label"]
        return None
