# SPDX-License-Identifier: Apache-2.0
"""What a parameter's .grad is once an update in backward has used the gradient, and the norm that is still known of it."""

from __future__ import annotations

import math
from typing import Any

import spillway
import torch
from spillway.torch._tensor import is_one
from torch.utils._pytree import tree_flatten


class UsedGradient(torch.Tensor):
    """The placeholder in a parameter's .grad. It can be dropped, zeroed, detached and multiplied by 1, and tells the 2-norm of
    the gradient; every other operation on it raises FailedPrecondition. So clip_grad_norm_(..., inf), with which training
    loops ask for the norm alone, returns it."""

    _name: str
    _norm: torch.Tensor

    @staticmethod
    def of(gradient: torch.Tensor, name: str) -> UsedGradient:
        made = torch.Tensor._make_wrapper_subclass(UsedGradient, gradient.size(), dtype=gradient.dtype, device=gradient.device)
        made._name, made._norm = name, torch.linalg.vector_norm(gradient)
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"UsedGradient({self._name!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func in (aten.zero_.default, aten.detach.default, aten._foreach_zero_.default):
            return args[0]
        found = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, UsedGradient)]
        if func == aten.linalg_vector_norm.default:
            return found[0]._norm_of_order(*args[1:], **kwargs or {})
        if func == aten._foreach_norm.Scalar:
            return [torch.linalg.vector_norm(each, *args[1:], **kwargs or {}) for each in args[0]]
        if func in (aten.mul_.Tensor, aten.mul_.Scalar, aten._foreach_mul_.Tensor, aten._foreach_mul_.Scalar):
            found[0]._check_unchanged_by(args[1])
            if func in (aten.mul_.Tensor, aten.mul_.Scalar):
                return args[0]
            for each in args[0]:
                if not isinstance(each, UsedGradient):
                    each.mul_(args[1])
            return None
        found[0]._refuse()

    def _norm_of_order(self, ord: float = 2, dim: Any = None, keepdim: bool = False, *,
                       dtype: torch.dtype | None = None) -> Any:
        if ord != 2 or dim:
            raise spillway.FailedPrecondition(
                f"the gradient of parameter {self._name} was used by its update in backward, which keeps its 2-norm alone: the "
                f"norm of order {ord}{f' along {dim}' if dim else ''} needs update='step'")
        return NormOfUsed.of(self._norm if dtype is None else self._norm.to(dtype))

    def _check_unchanged_by(self, factor: Any) -> None:
        """Raises FailedPrecondition if a gradient times the factor is another one, or the factor is of a clip with a limit."""
        if is_one(factor) and getattr(factor, "limit", math.inf) == math.inf:
            return
        if isinstance(factor, torch.Tensor) and factor.dim() == 0 and factor.isnan():
            self._refuse(". The norm of the gradients is not finite, so that clipping would make all of them nan: go back to "
                         "the last checkpoint")
        self._refuse()

    def _refuse(self, why: str = "") -> Any:
        raise spillway.FailedPrecondition(
            f"the gradient of parameter {self._name} was used by its update in backward: clipping, GradScaler, "
            "DistributedDataParallel and accumulation over several backwards need update='step', and "
            f"clip_grad_norm_(..., inf) gives the norm{why}")


class NormOfUsed(torch.Tensor):
    """The norm of gradients that were used, and a scalar that is computed from it. It knows the limit that a clip has divided
    by it: a clip that has one must fail at the first step, not when a norm exceeds the limit."""

    limit: float = math.inf

    @staticmethod
    def of(norm: torch.Tensor, limit: float = math.inf) -> NormOfUsed:
        made = norm.as_subclass(NormOfUsed)
        made.limit = limit
        return made

    def _plain(self) -> torch.Tensor:
        return self.detach().as_subclass(torch.Tensor)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return repr(self._plain())

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self._plain().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        if type(made) is not torch.Tensor or any(made is each for each in given):
            return made
        if not all(isinstance(each, NormOfUsed) or each.dim() == 0 for each in given):
            return made
        limits = [each.limit for each in given if isinstance(each, NormOfUsed)]
        if func is torch.Tensor.__rtruediv__:  # limit / norm
            limits.append(float(args[1]))
        return NormOfUsed.of(made, min(limits))
