# SPDX-License-Identifier: Apache-2.0
"""Updates in backward of weights on a GPU: they come together in pieces, since each piece has the host wait for the GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from spillway.torch import _staging

# A group, its parameter and the gradient.
Update = tuple[dict[str, Any], torch.Tensor, torch.Tensor]


class Gathered:
    """Of one optimizer. `update` gets them when a piece is there, and what is left when their backward ends."""

    def __init__(self, update: Callable[[Sequence[Update]], None]):
        self._update = update
        self._lock = threading.Lock()
        self._waiting: list[Update] = []
        self._ready: list[tuple[torch.device, Any]] = []  # events of the streams on which the gradients were made
        self._backward: int | None = None  # whose end will be told

    def add(self, group: dict[str, Any], param: torch.Tensor, gradient: torch.Tensor) -> None:
        """To be called within a backward."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self.finish()  # of one that failed: its end was never told
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
        """Updates what waits."""
        waiting, ready = self._take()
        for device, event in ready:
            torch.cuda.current_stream(device).wait_event(event)
        if waiting:
            self._update(waiting)

    def drop(self) -> None:
        """What waits is of a state that there is no longer."""
        self._take()

    def _take(self) -> tuple[list[Update], list[tuple[torch.device, Any]]]:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            ready, self._ready = self._ready, []
        return waiting, ready
