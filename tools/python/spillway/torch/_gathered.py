# SPDX-License-Identifier: Apache-2.0
"""Gathers the updates in backward of weights on a GPU into pieces, because for each piece the host waits for the GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from spillway.torch import _staging

# A parameter group, a parameter of it and its gradient.
Update = tuple[dict[str, Any], torch.Tensor, torch.Tensor]


class Gathered:
    """The waiting updates of one optimizer. `update` is called when a whole piece waits, and with the rest when their
    backward ends."""

    def __init__(self, update: Callable[[Sequence[Update]], None]):
        self._update = update
        self._lock = threading.Lock()
        self._waiting: list[Update] = []
        self._ready: list[tuple[torch.device, Any]] = []  # events on the streams that made the gradients
        self._backward: int | None = None  # id of the backward whose end calls finish()

    def add(self, group: dict[str, Any], param: torch.Tensor, gradient: torch.Tensor) -> None:
        """Adds an update. REQUIRES: a backward is running."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self.finish()  # of a backward that failed: its end did not call finish()
            self._backward = backward
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        with self._lock:
            self._waiting.append((group, param, gradient))
            if gradient.is_cuda:
                self._ready.append((gradient.device, torch.cuda.current_stream(gradient.device).record_event()))
            size = sum(2 * each.numel() * each.element_size() for _, _, each in self._waiting)
        if size >= _staging.PIECE_BYTES:
            self.finish()

    def finish(self) -> None:
        """Does the waiting updates."""
        waiting, ready = self._take()
        for device, event in ready:
            torch.cuda.current_stream(device).wait_event(event)
        if waiting:
            self._update(waiting)

    def drop(self) -> None:
        """Drops the waiting updates, because the state that they belong to is gone."""
        self._take()

    def _take(self) -> tuple[list[Update], list[tuple[torch.device, Any]]]:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            ready, self._ready = self._ready, []
        return waiting, ready
