# SPDX-License-Identifier: Apache-2.0
"""A parameter that an optimizer of spillway.torch has taken up."""

from __future__ import annotations

import torch
from spillway.torch._tensor import Home


class Known:
    """What is known of a parameter once its state is registered."""

    def __init__(self, name: str, param: torch.Tensor, gradient: Home | None):
        self.number = 0  # of the library's
        self.name = name
        self.dtype, self.shape = param.dtype, param.shape
        self.version = 0  # of the weight, after what was written here
        self.gradient = gradient  # where it lives in the engine; None: in memory
        self.step = 0
