# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the values of an optimizer's state in the engine, as torch.optim has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from spillway.torch import _state
from spillway.torch._known import Known
from spillway.torch._shards import local_of
from spillway.torch._staging import on_cpu
from spillway.torch._tensor import EngineTensor


class Moments(torch.optim.Optimizer):
    """The part of an OffloadedOptimizer that reads and writes moments and master weights. The library has the variance of the
    gradient of a centered RMSprop (grad_var), and torch.optim has the mean of its square (square_avg), which is the variance
    plus the square of the mean. Others are the same."""

    _format: str
    _engine_state: _state.State

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Returns the library's names of the moments that the constants of a group need, in its order; of Adafactor none."""
        raise NotImplementedError

    def joined_moments(self, held: tuple[str, ...], needed: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the moments of a state that can take both, except that the variance of a centered rule and its square take
        the place of each other."""
        both = {*held, *needed}
        return self.moments_of({"momentum": "momentum_buffer" in both, "amsgrad": "max_exp_avg_sq" in both,
                                "centered": "grad_avg" in needed})

    def _read_moments(self, param: torch.Tensor, known: Known) -> dict[str, torch.Tensor]:
        """Returns the moments of a parameter in fp32, by torch.optim's names and by the library's, in torch.optim's order."""
        names = known.layout.moments
        moments = {name: _state.empty_fp32(known.shape) for name in names}
        self._engine_state.read_state(known.number, self._weight(param), None, list(moments.values()))
        if "grad_var" in moments:
            square = _square_of(moments["grad_var"], moments["grad_avg"])
            moments = {"square_avg": square, **{name: moments[name] for name in (*names[1:], "grad_var")}}
        return moments

    def _write_moments(self, param: torch.Tensor, known: Known, moments: Mapping[str, torch.Tensor | None]) -> None:
        """Writes the moments that the state has. Those that are not given become zeros."""
        def value(name: str) -> torch.Tensor:
            given = moments.get(name)
            if given is None:
                return torch.zeros(known.shape, dtype=torch.float32, device="cpu")
            return fp32(given)

        held = {name: value(name) for name in known.layout.moments}
        if "grad_var" in held:
            # The variance that is given, unless the square is of other values, as after steps of torch.optim.
            square, mean = value("square_avg"), held["grad_avg"]
            variance = (square.double() - mean.double().square()).clamp_(min=0).float()
            held["grad_var"] = torch.where(_square_of(held["grad_var"], mean) == square, held["grad_var"], variance)
        self._engine_state.write_state(known.number, self._weight(param), None, list(held.values()))

    def _moment_shapes(self, param: torch.Tensor, known: Known, moments: tuple[str, ...]) -> dict[str, torch.Size]:
        """Returns the shapes of this rank's parts of these moments by torch.optim's names."""
        return {"square_avg" if name == "grad_var" else name: known.shape for name in moments}

    def _weight(self, param: torch.Tensor) -> torch.Tensor | None:
        """Returns a weight in memory that the library can read; None: the weight is in the engine."""
        local = local_of(param)
        return None if isinstance(local, EngineTensor) else on_cpu(local)

    def _read_masters(self, param: torch.Tensor, known: Known) -> torch.Tensor:
        masters = _state.empty_fp32(known.shape)
        self._engine_state.read_state(known.number, self._weight(param), masters, [])
        return masters

    def _write_masters(self, param: torch.Tensor, known: Known, masters: torch.Tensor) -> None:
        """Writes the master weights. In the compact format this also writes the weight, which holds most of their bits."""
        weight = self._weight(param)
        self._engine_state.write_state(known.number, weight, masters, [])
        if self._format != "compact":
            return
        local = local_of(param)
        if weight is not None and weight.data_ptr() != local.data_ptr():
            local.copy_(weight.view_as(local))
        torch.autograd.graph.increment_version(param)


def _square_of(variance: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Returns the mean of the squares of values with this variance and mean."""
    return (variance.double() + mean.double().square()).float()


def fp32(values: torch.Tensor) -> torch.Tensor:
    """Returns the values in memory, contiguous and in fp32; the tensor itself, if it is so."""
    return values.detach().cpu().to(torch.float32).contiguous()
