# SPDX-License-Identifier: Apache-2.0
"""The optimizers, one for each update rule. include/spillway/optimizer.h defines the rules and their constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import spillway
import torch
from spillway._folders import Store
from spillway.torch._optimizer import OffloadedOptimizer
from spillway.torch._run import Run


class AdamW(OffloadedOptimizer):
    """torch.optim.AdamW with its state in the engine.

    `store`: a folder, where a store is made or continued; a list of folders, one on each drive, in the same order each time; a
    Run of spillway.torch.open; None: state rests in memory only. The drives of a new store of several folders are measured
    first (spillway.torch.open). `pinned`: bytes of memory that state may take while it streams through, as a number or a text
    such as "2GiB"; None: 1 GiB with a store, no limit without. `state_format`: "fp32", "bf16", "8bit" or "compact" (for 16-bit
    parameters). `threads`: how many threads update; 0: torch.get_num_threads().

    `gradients="engine"`: each gradient moves to the engine as soon as backward has made it, and is gone after step().
    Accumulation, clipping and GradScaler work as usual. `update="backward"`: each parameter is updated as soon as its
    gradient is made, so that no two gradients are in memory; step() only ends the step. On a GPU such updates gather until
    their weights and gradients take 64 MiB. With `update="backward"` clipping, GradScaler, DistributedDataParallel and
    accumulation raise. Between backward and step() a script must not drop a gradient, set `lr` or another value of a group,
    call a scheduler or write a weight: step() raises then. A write through `.data` is not detected. After a backward that
    failed, the updates that it made stay.
    """

    _kind = "adamw"
    _moment_names = ("exp_avg", "exp_avg_sq")

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, *, store: Run | Store = None,
                 pinned: int | str | None = None, state_format: str = "fp32", gradients: str = "torch",
                 update: str = "step", threads: int = 0):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, store=store, pinned=pinned, state_format=state_format, gradients=gradients,
                         update=update, threads=threads)

    def _constants(self, group: dict[str, Any]) -> dict[str, float]:
        return {"beta1": group["betas"][0], "beta2": group["betas"][1], "epsilon": group["eps"]}


class Adam(AdamW):
    """torch.optim.Adam: the weight decay is added to the gradient."""

    _kind = "adam"

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, **more: Any):
        super().__init__(params, lr, betas, eps, weight_decay, **more)


class Lion(OffloadedOptimizer):
    """Lion (arXiv:2302.06675)."""

    _kind = "lion"
    _moment_names = ("exp_avg",)

    def __init__(self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
                 weight_decay: float = 0, *, store: Run | Store = None,
                 pinned: int | str | None = None, state_format: str = "fp32", threads: int = 0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, store=store, pinned=pinned,
                         state_format=state_format, threads=threads)

    def _constants(self, group: dict[str, Any]) -> dict[str, float]:
        return {"beta1": group["betas"][0], "beta2": group["betas"][1]}


class LAMB(OffloadedOptimizer):
    """LAMB (arXiv:1904.00962). Parameters of fewer than two dimensions are not scaled by the ratio of the norms."""

    _kind = "lamb"
    _moment_names = ("exp_avg", "exp_avg_sq")

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 0.01, *, store: Run | Store = None,
                 pinned: int | str | None = None, state_format: str = "fp32", threads: int = 0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, store=store,
                         pinned=pinned, state_format=state_format, threads=threads)

    def _constants(self, group: dict[str, Any]) -> dict[str, float]:
        return {"beta1": group["betas"][0], "beta2": group["betas"][1], "epsilon": group["eps"]}


class LARS(OffloadedOptimizer):
    """LARS (arXiv:1708.03888). Parameters of fewer than two dimensions are not scaled by the ratio of the norms."""

    _kind = "lars"
    _moment_names = ("momentum_buffer",)

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.9, weight_decay: float = 0,
                 trust_coefficient: float = 1e-3, *, store: Run | Store = None,
                 pinned: int | str | None = None, state_format: str = "fp32", threads: int = 0):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient}
        super().__init__(params, defaults, store=store, pinned=pinned, state_format=state_format, threads=threads)

    def _constants(self, group: dict[str, Any]) -> dict[str, float]:
        return {"momentum": group["momentum"], "trust_coefficient": group["trust_coefficient"]}


class SGD(OffloadedOptimizer):
    """torch.optim.SGD with momentum, but without dampening and without Nesterov momentum."""

    _kind = "sgd"
    _without = {"dampening": 0, "nesterov": False, "maximize": False}
    _moment_names = ("momentum_buffer",)

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0, weight_decay: float = 0, *,
                 store: Run | Store = None, pinned: int | str | None = None,
                 state_format: str = "fp32", threads: int = 0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}, store=store,
                         pinned=pinned, state_format=state_format, threads=threads)

    def _constants(self, group: dict[str, Any]) -> dict[str, float]:
        return {"momentum": group["momentum"]}


class RMSprop(OffloadedOptimizer):
    """torch.optim.RMSprop, not centered."""

    _kind = "rmsprop"
    _moment_names = ("square_avg", "momentum_buffer")

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0, momentum: float = 0, *, store: Run | Store = None,
                 pinned: int | str | None = None, state_format: str = "fp32", threads: int = 0):
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum},
                         store=store, pinned=pinned, state_format=state_format, threads=threads)

    def _constants(self, group: dict[str, Any]) -> dict[str, float]:
        return {"alpha": group["alpha"], "epsilon": group["eps"], "momentum": group["momentum"]}


class Adafactor(OffloadedOptimizer):
    """torch.optim.Adafactor. Its state is always in fp32."""

    _kind = "adafactor"
    _without = {"maximize": False}

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, beta2_decay: float = -0.8,
                 eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
                 store: Run | Store = None, pinned: int | str | None = None, threads: int = 0):
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, defaults, store=store, pinned=pinned, state_format="fp32", threads=threads)

    def _constants(self, group: dict[str, Any]) -> dict[str, float]:
        first = group["eps"][0] if group["eps"][0] is not None else torch.finfo(torch.float32).eps
        return {"beta2_decay": -group["beta2_decay"], "epsilon": first, "epsilon2": group["eps"][1],
                "clipping_threshold": group["d"]}

    # State tensors have the form that torch.optim gives them: means over rows and columns, or `variance` if the parameter is
    # not a matrix.

    def _tensors(self, param: torch.Tensor, known: Any) -> dict[str, dict[str, Any]]:
        specs = [self.run.engine.spec(each["id"]) | each for each in self._engine_state.tensors(known.number)]
        return {spec["name"].rsplit("/", 1)[1]: spec for spec in specs[0 if param.dtype == torch.float32 else 1:]}

    def _moment_shapes(self, param: torch.Tensor, known: Any) -> dict[str, torch.Size]:
        return {name: torch.Size(spec["shape"]) for name, spec in self._tensors(param, known).items()}

    def _read_moments(self, param: torch.Tensor, known: Any) -> dict[str, torch.Tensor]:
        return {name: self._engine_state.read(spec["id"], torch.float32, spec["shape"])
                for name, spec in self._tensors(param, known).items()}

    def _write_moments(self, param: torch.Tensor, known: Any, moments: dict[str, torch.Tensor]) -> None:
        for name, spec in self._tensors(param, known).items():
            self._engine_state.write(spec["id"], moments[name])

    def _read_masters(self, param: torch.Tensor, known: Any) -> torch.Tensor:
        return self._engine_state.masters(known.number)

    def _write_masters(self, param: torch.Tensor, known: Any, masters: torch.Tensor) -> None:
        self._engine_state.write(self._engine_state.tensors(known.number)[0]["id"], masters)
