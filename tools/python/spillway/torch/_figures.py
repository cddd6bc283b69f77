# SPDX-License-Identifier: Apache-2.0
"""Figures that the ranks of a job give the first one for its report."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import torch
from spillway.torch import _ranks

_numbers = itertools.count()  # of the runs of this process that report: ranks make them in the same order


class Figures:
    """What each rank's run of one number gave last. It passes through the key-value store by which torch.distributed has joined
    the ranks, so no rank waits for another, and a group that was destroyed since does not matter."""

    def __init__(self) -> None:
        self._store: Any = None
        self._name = f"spillway/report/{next(_numbers)}"
        if _ranks.is_joined():
            with contextlib.suppress(Exception):  # it is no public function
                self._store = torch.distributed.distributed_c10d._get_default_store()

    def give(self, figures: dict[str, Any]) -> None:
        if self._store is not None:
            with contextlib.suppress(Exception):  # the report is worth no error: the rank that keeps the store may be gone
                self._store.set(f"{self._name}/{_ranks.rank()}", json.dumps(figures))

    def of_others(self) -> dict[int, dict[str, Any]]:
        """Returns what the other ranks gave, by rank. Those that gave nothing yet are left out."""
        found: dict[int, dict[str, Any]] = {}
        for rank in range(_ranks.count()) if self._store is not None else ():
            key = f"{self._name}/{rank}"
            with contextlib.suppress(Exception):
                if rank != _ranks.rank() and self._store.check([key]):
                    found[rank] = json.loads(self._store.get(key))
        return found
