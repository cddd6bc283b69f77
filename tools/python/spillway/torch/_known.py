# SPDX-License-Identifier: Apache-2.0
"""What an optimizer of spillway.torch records about each of its parameters."""

from __future__ import annotations

from typing import Any

import torch
from spillway.torch._tensor import Home


class Known:
    """The record of a parameter that an optimizer has taken up."""

    def __init__(self, name: str, param: torch.Tensor):
        self.number: int | None = None  # of the parameter in the library's optimizer; None: it has no state
        self.ids: list[int] = []  # of its state in the engine
        self.weight_id: int | None = None  # of the weight in the engine; None: it lies in memory
        self.tile_rows = 0  # rows of a tile of its state; 0: one tile holds all rows
        self.name = name
        self.first_name = name  # the gradient's: a load may change `name`
        self.dtype, self.shape = param.dtype, param.shape
        self.version = 0  # autograd version of the weight after the optimizer last read or wrote it
        self.gradient: Home | None = None  # where the gradient lives in the engine; None: in memory
        self.hook: Any = None  # what runs when its gradient is there
        self.updated_in: int | None = None  # id of the last backward that updated it
        self.step = 0  # without state it is 0

    @property
    def has_state(self) -> bool:
        return self.number is not None
