# SPDX-License-Identifier: Apache-2.0
"""Prints a line about a run on stderr at its first step, and one at its end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from typing import Any

import spillway
from spillway.torch import _ranks
from spillway.torch._figures import Figures

_MIB = 1 << 20


def say(text: str) -> None:
    """Prints a line on stderr."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed: training goes on
            print(f"spillway.torch: {text}", file=sys.stderr, flush=True)


class Report:
    """The report of one run. If the run has several optimizers, one of them counts the steps: the first that steps and,
    when that one is gone, the next that steps. Of several ranks the first prints the sums over all, from its second step on:
    by then the others have made their first."""

    def __init__(self, engine: spillway.Engine, place: str, pinned_bytes: int, is_wanted: bool):
        """`place`: the folders of the store, as one text; "" if there is no store."""
        self._engine, self._place, self._pinned_bytes, self._is_wanted = engine, place, pinned_bytes, is_wanted
        self._process = os.getpid()
        self._sizes: dict[int, int] = {}  # by tensor: bytes in the engine instead of in PyTorch's memory
        self._stepper: weakref.ref[Any] | None = None
        self.steps = 0
        self.update_seconds = 0.0  # of all updates, added by the optimizers
        # At the end of the first step: the time, bytes read and written by then, and the seconds of updates.
        self._first: tuple[float, ...] = (0.0, 0, 0, 0.0)
        self._last = self._first  # the same for the last step: what follows it belongs to no step
        self._has_reordered = False  # whether reorders() was called
        self._held = 0  # bytes in the engine at the first step: an optimizer may be gone before the run ends
        self._figures: Figures | None = None  # made at the first step
        self._has_begun = False  # whether the first line was printed

    def holds(self, id: int) -> None:
        self._sizes[id] = self._engine.spec(id)["size_bytes"]

    def reorders(self, name: str) -> None:
        """Prints, for the first parameter of the run, that its elements get another order in the engine."""
        if not self._has_reordered:
            say(f"parameter {name} is not row-major in memory (channels_last or transposed), and in the engine it is, as "
                "all parameters are: sums may be rounded otherwise than in training in memory. Training in memory gives the same "
                "bits after param.data = param.data.contiguous() for such parameters")
        self._has_reordered = True

    def count_step(self, optimizer: Any) -> None:
        if not self._is_wanted:
            return
        if self._stepper is None or self._stepper() is None:
            self._stepper = weakref.ref(optimizer)
        if self._stepper() is not optimizer:
            return
        self.steps += 1
        nvme = self._engine.stats()["nvme"]
        self._last = (time.monotonic(), nvme["read_bytes"], nvme["written_bytes"], self.update_seconds)
        if self.steps == 1:
            self._first, self._held = self._last, self._held_bytes()
            self._figures = Figures()
        if _ranks.rank() > 0:
            self._figures.give(self._own())
        elif self.steps >= min(2, _ranks.count()):
            self._begin()

    def _begin(self) -> None:
        if not self._has_begun:
            say(self._start(self._of_all()))
        self._has_begun = True

    def end(self) -> None:
        """Prints the summary, once. REQUIRES: the engine is open."""
        if self.steps > 0 and os.getpid() == self._process and _ranks.rank() == 0:
            with contextlib.suppress(spillway.Error):
                self._begin()
                say(self._summary(self._of_all()))
        self.steps, self._figures = 0, None  # which keeps the store of a group that may be destroyed by now

    def _held_bytes(self) -> int:
        held = 0
        for id, size_bytes in self._sizes.items():
            with contextlib.suppress(spillway.NotFound):
                self._engine.spec(id)  # raises if the tensor is gone
                held += size_bytes
        return held

    def _own(self) -> dict[str, Any]:
        """Returns the figures of this rank. `step`: seconds, bytes read and written, and seconds of updates, of each timed
        step."""
        timed = self.steps - 1  # when the first step began is not recorded
        return {"held": self._held, "most_in_memory": min(self._held, self._pinned_bytes),
                "peak": self._engine.stats()["tiers"]["pinned"]["peak_bytes"],
                "step": [(last - first) / timed for first, last in zip(self._first, self._last)] if timed > 0 else None}

    def _of_all(self) -> dict[int, dict[str, Any]]:
        return {0: self._own(), **self._figures.of_others()}

    def _start(self, of_all: dict[int, dict[str, Any]]) -> str:
        held, most = (sum(figures[name] for figures in of_all.values()) for name in ("held", "most_in_memory"))
        if not self._place:
            return f"{_mib(held)} rest in memory, and none is saved: store='FOLDER' puts them on NVMe"
        ranks = f"{_ranks_of(of_all)}: " if _ranks.count() > 1 else ""
        place = f"{self._place} and the stores of the others" if len(of_all) > 1 else self._place
        return (f"{ranks}{_mib(held)} rest in {place}, at most {_mib(most)} of them in memory: at least {_mib(held - most)} "
                "saved")

    def _summary(self, of_all: dict[int, dict[str, Any]]) -> str:
        parts = [_ranks_of(of_all)] if _ranks.count() > 1 else []
        parts.append(f"{self.steps} step{'s' if self.steps > 1 else ''}")
        timed = {rank: figures["step"] for rank, figures in of_all.items() if figures["step"] is not None}
        if 0 in timed:
            slowest = max(timed, key=lambda rank: timed[rank][3])
            updates = f", {timed[slowest][3]:.3g} s of them updates on rank {slowest}, the slowest" if len(timed) > 1 else ""
            read, written = (sum(each[position] for each in timed.values()) for position in (1, 2))
            moved = f", {decimal_bytes(read)} read and {decimal_bytes(written)} written" if self._place else ""
            parts.append(f"{max(each[0] for each in timed.values()):.3g} s{updates}{moved} a step")
        if self._place:
            held, peak = (sum(figures[name] for figures in of_all.values()) for name in ("held", "peak"))
            stores = "stores" if len(of_all) > 1 else "store"
            parts.append(f"{_mib(held)} rested in the {stores} and {_mib(peak)} of memory: {_mib(max(held - peak, 0))} saved")
        return "; ".join(parts)


def _ranks_of(of_all: dict[int, Any]) -> str:
    """Says which ranks figures are of."""
    return f"{_ranks.count()} ranks" if len(of_all) == _ranks.count() else f"{len(of_all)} of {_ranks.count()} ranks"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.1f} MiB" if size_bytes < 100 * _MIB else f"{size_bytes / _MIB:,.0f} MiB"


def decimal_bytes(count: float) -> str:
    """Formats bytes in decimal units, as drives are sold."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
