# SPDX-License-Identifier: Apache-2.0
"""What an optimizer of spillway.torch records about each of its parameters."""

from __future__ import annotations

import torch
from spillway.torch._tensor import Home


class Known:
    """The record of a parameter whose state is registered."""

    def __init__(self, name: str, param: torch.Tensor, gradient: Home | None):
        self.number = 0  # of the parameter in the library's optimizer
        self.ids: list[int] = []  # of its state in the engine
        self.tile_rows = 0  # rows of a tile of its state; 0: one tile holds all rows
        self.name = name
        self.dtype, self.shape = param.dtype, param.shape
        self.version = 0  # autograd version of the weight after the optimizer last read or wrote it
        self.gradient = gradient  # where the gradient lives in the engine; None: in memory
        self.step = 0
