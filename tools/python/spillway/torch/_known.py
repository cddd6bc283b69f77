# SPDX-License-Identifier: Apache-2.0
"""What an optimizer of spillway.torch records about each of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from spillway.torch._shards import local_of
from spillway.torch._tensor import Home


class Layout(NamedTuple):
    """How the state of a parameter is laid out."""

    tile_rows: int | None  # rows of a tile; 0: one tile holds all rows; None: those that fit the run's budget
    moments: tuple[str, ...]  # the library's names, in its order; of Adafactor none


class Place(NamedTuple):
    """A parameter's place in a group."""

    name: str
    known: Known | None  # None: the parameter was not taken up yet, or has no elements on any rank


class Known:
    """The record of a parameter that an optimizer has taken up."""

    def __init__(self, name: str, param: torch.Tensor):
        local = local_of(param)
        self.number: int | None = None  # of the parameter in the library's optimizer; None: it has no state
        self.ids: list[int] = []  # of its state in the engine
        self.weight_id: int | None = None  # of the weight in the engine; None: it lies in memory
        self.layout = Layout(0, ())  # of its state
        self.name = name
        self.first_name = name  # the gradient's: a load may change `name`
        self.dtype, self.shape = local.dtype, local.shape
        self.version = 0  # autograd version of the weight after the optimizer last read or wrote it
        self.gradient: Home | None = None  # where the gradient lives in the engine; None: in memory
        self.hook: Any = None  # what runs when its gradient is there
        self.updated_in: int | None = None  # id of the last backward that updated it
        self.step = 0  # without state it is 0
        self.loaded: dict[str, Any] = {}  # a LoadedEntry for each entry that a load has written, if the format rounds
        # Whether an update had momentum. torch.optim.SGD makes its buffer in the first one, from the gradient without
        # dampening.
        self.has_momentum = False

    @property
    def has_state(self) -> bool:
        return self.number is not None

    @property
    def has_elements(self) -> bool:
        """Whether this rank has elements of the parameter. Without, it never has state."""
        return self.shape.numel() > 0

    @property
    def has_masters(self) -> bool:
        """Whether the master weights are apart from the weight."""
        return self.dtype != torch.float32

    def count_step(self, values: Mapping[str, float]) -> None:
        """Records an update with these values of the parameter's group."""
        self.step += 1
        self.has_momentum |= bool(values.get("momentum"))

    def has(self, moments: tuple[str, ...]) -> bool:
        """Whether the state has these moments."""
        return set(moments) <= set(self.layout.moments)
