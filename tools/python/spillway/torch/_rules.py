# SPDX-License-Identifier: Apache-2.0
"""The optimizers, one for each update rule. include/spillway/optimizer.h defines the rules and their constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    first (spillway.torch.open). Of several ranks each needs a folder of its own, such as "nvme{local_rank}/run". `pinned`:
    bytes of memory that state may take while it streams through, as a number or a text such as "2GiB"; None: 1 GiB with a
    store, no limit without. `state_format`: "fp32", "bf16", "8bit" or "compact" (for 16-bit parameters). `threads`: how many
    threads update; 0: torch.get_num_threads(). `checkpoint`: what state_dict() returns, "tensors" or "commit"; None: "tensors"
    if a parameter is sharded over ranks, else "commit".

    Parameters may be DTensors: each rank updates its shards. Gradients are of the dtype that `param.grad_dtype` sets: with
    torch.float32, 16-bit shards train as fp32 shards of FSDP2 do.

    `gradients="engine"`: each gradient moves to the engine as soon as backward has made it, and is gone after step().
    Accumulation, clipping and GradScaler work as usual. `update="backward"`: each parameter is updated as soon as its
    gradient is made, so that no two gradients are in memory; step() only ends the step. On a GPU such updates gather until
    their weights and gradients take 64 MiB. With `update="backward"` clipping, GradScaler, DistributedDataParallel and
    accumulation raise; clip_grad_norm_(..., inf) returns the norm, for which Trainer asks if max_grad_norm=0. Between backward
    and step() a script must not drop a gradient, set `lr` or another value of a group, call a scheduler or write a weight:
    step() raises then. A write through `.data` is not detected. After a backward that failed, the updates that it made stay.
    """

    _kind = "adamw"

    def __init__(self, params: Iterable[Any], lr: float | torch.Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None, store: Run | Store = None, pinned: int | str | None = None,
                 state_format: str = "fp32", gradients: str = "torch", update: str = "step", threads: int = 0,
                 checkpoint: str | None = None):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
                    "maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable,
                    "fused": fused}
        super().__init__(params, defaults, store=store, pinned=pinned, state_format=state_format, gradients=gradients,
                         update=update, threads=threads, checkpoint=checkpoint)

    def _constants(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"beta1": group["betas"][0], "beta2": group["betas"][1], "epsilon": group["eps"],
                "amsgrad": group["amsgrad"], "maximize": group["maximize"]}

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))


class Adam(AdamW):
    """torch.optim.Adam: the weight decay is added to the gradient."""

    _kind = "adam"

    def __init__(self, params: Iterable[Any], lr: float | torch.Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, decoupled_weight_decay: bool = False,
                 **more: Any):
        self._check_group({"decoupled_weight_decay": decoupled_weight_decay})
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **more)


class Lion(OffloadedOptimizer):
    """Lion (arXiv:2302.06675)."""

    _kind = "lion"

    def __init__(self, params: Iterable[Any], lr: float | torch.Tensor = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
                 weight_decay: float = 0, *, maximize: bool = False, store: Run | Store = None, pinned: int | str | None = None,
                 state_format: str = "fp32", threads: int = 0, checkpoint: str | None = None):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}, store=store,
                         pinned=pinned, state_format=state_format, threads=threads, checkpoint=checkpoint)

    def _constants(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"beta1": group["betas"][0], "beta2": group["betas"][1], "maximize": group["maximize"]}

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg",)


class LAMB(OffloadedOptimizer):
    """LAMB (arXiv:1904.00962). Parameters of fewer than two dimensions are not scaled by the ratio of the norms."""

    _kind = "lamb"
    _is_elementwise = False

    def __init__(self, params: Iterable[Any], lr: float | torch.Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 0.01, *, maximize: bool = False, store: Run | Store = None,
                 pinned: int | str | None = None, state_format: str = "fp32", threads: int = 0,
                 checkpoint: str | None = None):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, store=store, pinned=pinned, state_format=state_format, threads=threads,
                         checkpoint=checkpoint)

    def _constants(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"beta1": group["betas"][0], "beta2": group["betas"][1], "epsilon": group["eps"], "maximize": group["maximize"]}

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")


class LARS(OffloadedOptimizer):
    """LARS (arXiv:1708.03888). Parameters of fewer than two dimensions are not scaled by the ratio of the norms."""

    _kind = "lars"
    _is_elementwise = False

    def __init__(self, params: Iterable[Any], lr: float | torch.Tensor = 1e-3, momentum: float = 0.9, weight_decay: float = 0,
                 trust_coefficient: float = 1e-3, *, maximize: bool = False, store: Run | Store = None,
                 pinned: int | str | None = None, state_format: str = "fp32", threads: int = 0,
                 checkpoint: str | None = None):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient,
                    "maximize": maximize}
        super().__init__(params, defaults, store=store, pinned=pinned, state_format=state_format, threads=threads,
                         checkpoint=checkpoint)

    def _constants(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"momentum": group["momentum"], "trust_coefficient": group["trust_coefficient"], "maximize": group["maximize"]}

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()


class SGD(OffloadedOptimizer):
    """torch.optim.SGD. The momentum of a group may become 0 and be set again, as by a CyclicLR: its buffer stays meanwhile. A
    group whose momentum was 0 until then gets its buffer in the next step."""

    _kind = "sgd"

    def __init__(self, params: Iterable[Any], lr: float | torch.Tensor = 1e-3, momentum: float = 0, dampening: float = 0,
                 weight_decay: float = 0, nesterov: bool = False, *, maximize: bool = False, foreach: bool | None = None,
                 differentiable: bool = False, fused: bool | None = None, store: Run | Store = None,
                 pinned: int | str | None = None, state_format: str = "fp32", threads: int = 0,
                 checkpoint: str | None = None):
        if nesterov and (momentum <= 0 or dampening != 0):
            raise spillway.InvalidArgument(f"nesterov with momentum={momentum!r} and dampening={dampening!r}: Nesterov "
                                           "momentum requires a momentum and zero dampening")
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
                    "nesterov": nesterov, "maximize": maximize, "foreach": foreach, "differentiable": differentiable,
                    "fused": fused}
        super().__init__(params, defaults, store=store, pinned=pinned, state_format=state_format, threads=threads,
                         checkpoint=checkpoint)

    def _constants(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"momentum": group["momentum"], "dampening": group["dampening"], "nesterov": group["nesterov"],
                "maximize": group["maximize"]}

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()


class RMSprop(OffloadedOptimizer):
    """torch.optim.RMSprop. A centered one keeps the variance of the gradient, which cannot become negative by rounding as
    PyTorch's difference can. The momentum of a group may become 0 and be set again."""

    _kind = "rmsprop"

    def __init__(self, params: Iterable[Any], lr: float | torch.Tensor = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0, momentum: float = 0, centered: bool = False, capturable: bool = False,
                 foreach: bool | None = None, maximize: bool = False, differentiable: bool = False, *,
                 store: Run | Store = None, pinned: int | str | None = None, state_format: str = "fp32", threads: int = 0,
                 checkpoint: str | None = None):
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum,
                    "centered": centered, "capturable": capturable, "foreach": foreach, "maximize": maximize,
                    "differentiable": differentiable}
        super().__init__(params, defaults, store=store, pinned=pinned, state_format=state_format, threads=threads,
                         checkpoint=checkpoint)

    def _constants(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"alpha": group["alpha"], "epsilon": group["eps"], "momentum": group["momentum"],
                "centered": group["centered"], "maximize": group["maximize"]}

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("grad_var" if group["centered"] else "square_avg", *(["momentum_buffer"] if group["momentum"] else []),
                *(["grad_avg"] if group["centered"] else []))


class Adafactor(OffloadedOptimizer):
    """torch.optim.Adafactor. Its state is always in fp32."""

    _kind = "adafactor"
    _is_elementwise = False

    def __init__(self, params: Iterable[Any], lr: float | torch.Tensor = 1e-2, beta2_decay: float = -0.8,
                 eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
                 foreach: bool | None = None, maximize: bool = False, store: Run | Store = None,
                 pinned: int | str | None = None, threads: int = 0, checkpoint: str | None = None):
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay,
                    "foreach": foreach, "maximize": maximize}
        super().__init__(params, defaults, store=store, pinned=pinned, state_format="fp32", threads=threads,
                         checkpoint=checkpoint)

    def _constants(self, group: dict[str, Any]) -> dict[str, Any]:
        first = group["eps"][0] if group["eps"][0] is not None else torch.finfo(torch.float32).eps
        return {"beta2_decay": -group["beta2_decay"], "epsilon": first, "epsilon2": group["eps"][1],
                "clipping_threshold": group["d"], "maximize": group["maximize"]}

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ()  # they follow from the shape

    # State tensors have the form that torch.optim gives them: means over rows and columns, or `variance` if the parameter is
    # not a matrix.

    def _tensors(self, param: torch.Tensor, known: Any) -> dict[str, dict[str, Any]]:
        specs = [self.run.engine.spec(each["id"]) | each for each in self._engine_state.tensors(known.number)]
        return {spec["name"].rsplit("/", 1)[1]: spec for spec in specs[0 if param.dtype == torch.float32 else 1:]}

    def _moment_shapes(self, param: torch.Tensor, known: Any, moments: tuple[str, ...]) -> dict[str, torch.Size]:
        return {name: torch.Size(spec["shape"]) for name, spec in self._tensors(param, known).items()}

    def _read_moments(self, param: torch.Tensor, known: Any) -> dict[str, torch.Tensor]:
        return {name: self._engine_state.read(spec["id"], spec["shape"])
                for name, spec in self._tensors(param, known).items()}

    def _write_moments(self, param: torch.Tensor, known: Any, moments: Mapping[str, torch.Tensor | None]) -> None:
        for name, spec in self._tensors(param, known).items():
            given = moments.get(name)
            values = torch.zeros(spec["shape"], device="cpu") if given is None else given
            self._engine_state.write(spec["id"], values.detach().cpu().to(torch.float32))

    def _read_masters(self, param: torch.Tensor, known: Any) -> torch.Tensor:
        return self._engine_state.masters(known.number)

    def _write_masters(self, param: torch.Tensor, known: Any, masters: torch.Tensor) -> None:
        self._engine_state.write(self._engine_state.tensors(known.number)[0]["id"], masters)
