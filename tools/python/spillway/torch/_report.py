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

_MIB = 1 << 20


def say(text: str) -> None:
    """Prints a line on stderr."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed: training goes on
            print(f"spillway.torch: {text}", file=sys.stderr, flush=True)


class Report:
    """The report of one run. If the run has several optimizers, one of them counts the steps: the first that steps and,
    when that one is gone, the next that steps."""

    def __init__(self, engine: spillway.Engine, place: str, pinned_bytes: int, is_wanted: bool):
        """`place`: the folders of the store, as one text; "" if there is no store."""
        self._engine, self._place, self._pinned_bytes, self._is_wanted = engine, place, pinned_bytes, is_wanted
        self._process = os.getpid()
        self._sizes: dict[int, int] = {}  # by tensor: bytes in the engine instead of in PyTorch's memory
        self._stepper: weakref.ref[Any] | None = None
        self.steps = 0
        self._first: tuple[float, int, int] = (0.0, 0, 0)  # end of the first step; bytes read and written by then
        self._last = self._first  # the same for the last step: what follows it belongs to no step
        self._has_reordered = False  # whether reorders() was called
        self._held = 0  # bytes in the engine at the first step: an optimizer may be gone before the run ends

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
        self._last = (time.monotonic(), nvme["read_bytes"], nvme["written_bytes"])
        if self.steps == 1:
            self._first, self._held = self._last, self._held_bytes()
            say(self._start())

    def end(self) -> None:
        """Prints the summary, once. REQUIRES: the engine is open."""
        if self.steps > 0 and os.getpid() == self._process:
            with contextlib.suppress(spillway.Error):
                say(self._summary())
        self.steps = 0

    def _held_bytes(self) -> int:
        held = 0
        for id, size_bytes in self._sizes.items():
            with contextlib.suppress(spillway.NotFound):
                self._engine.spec(id)  # raises if the tensor is gone
                held += size_bytes
        return held

    def _start(self) -> str:
        held = self._held
        if not self._place:
            return f"{_mib(held)} rest in memory, and none is saved: store='FOLDER' puts them on NVMe"
        return (f"{_mib(held)} rest in {self._place}, at most {_mib(min(held, self._pinned_bytes))} of them in memory: at least "
                f"{_mib(max(held - self._pinned_bytes, 0))} saved")

    def _summary(self) -> str:
        parts = [f"{self.steps} step{'s' if self.steps > 1 else ''}"]
        timed = self.steps - 1  # when the first step began is not recorded
        if timed > 0:
            seconds, read, written = ((last - first) / timed for first, last in zip(self._first, self._last))
            moved = f", {decimal_bytes(read)} read and {decimal_bytes(written)} written" if self._place else ""
            parts.append(f"{seconds:.3g} s{moved} a step")
        if self._place:
            held, in_memory = self._held, self._engine.stats()["tiers"]["pinned"]["peak_bytes"]
            parts.append(f"{_mib(held)} rested in the store and {_mib(in_memory)} of memory: {_mib(max(held - in_memory, 0))} saved")
        return "; ".join(parts)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.1f} MiB" if size_bytes < 100 * _MIB else f"{size_bytes / _MIB:,.0f} MiB"


def decimal_bytes(count: float) -> str:
    """Formats bytes in decimal units, as drives are sold."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
