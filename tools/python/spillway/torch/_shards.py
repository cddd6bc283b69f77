# SPDX-License-Identifier: Apache-2.0
"""The part of a tensor that this rank has. Of a sharded tensor (DTensor) that is its shard, of any other the tensor itself."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import spillway
import torch


def is_sharded(tensor: Any) -> bool:
    """Whether the tensor is a DTensor, which may also be whole on each rank."""
    module = sys.modules.get("torch.distributed.tensor")  # importing it takes a while, and without it there is no DTensor
    return module is not None and isinstance(tensor, getattr(module, "DTensor", ()))


def local_of(tensor: Any) -> Any:
    """Returns the part of a tensor that this rank has, which shares its memory."""
    if not is_sharded(tensor):
        return tensor
    local = tensor._local_tensor  # to_local() would make a view, for autograd
    return local.wait() if hasattr(local, "wait") else local  # the result of a collective that is under way


def gradient_of(param: torch.Tensor, gradient: Any) -> Any:
    """Returns the part of a gradient that belongs to this rank's part of the parameter. Sums over ranks that are not made yet
    (Partial) are made: all ranks must call this then, in the same order of the parameters."""
    if is_sharded(gradient) and tuple(gradient.placements) != tuple(param.placements):
        gradient = gradient.redistribute(placements=param.placements)
    return local_of(gradient)


def like(param: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Returns `local` as this rank's part of a tensor that is sharded as the parameter is. Its dtype may be another."""
    if not is_sharded(param):
        return local
    spec = param._spec
    meta = spec.tensor_meta
    if meta.dtype != local.dtype:
        spec = dataclasses.replace(spec, tensor_meta=meta._replace(dtype=local.dtype))
    return sys.modules["torch.distributed.tensor"].DTensor(local, spec, requires_grad=False)


def part_of(param: torch.Tensor, value: Any) -> Any:
    """Returns this rank's part of a value that belongs to a parameter, and is sharded in any way or whole. A number stays."""
    if is_sharded(value):
        if is_sharded(param) and value.device_mesh == param.device_mesh:
            return gradient_of(param, value)
        value = value.full_tensor()
    if not is_sharded(param) or not isinstance(value, torch.Tensor) or value.dim() == 0 or value.shape != param.shape:
        return value
    return value[tuple(slice(begin, begin + length) for begin, length in zip(offset_of(param), local_of(param).shape))]


def offset_of(param: torch.Tensor) -> tuple[int, ...]:
    """Returns where this rank's part begins in the parameter, in each dimension."""
    if not is_sharded(param):
        return (0,) * param.dim()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(param.shape, param.device_mesh, param.placements)[1])


def is_whole(param: torch.Tensor) -> bool:
    """Whether every rank has all elements of the parameter."""
    return not is_sharded(param) or all(placement.is_replicate() or param.device_mesh.size(dimension) == 1
                                        for dimension, placement in enumerate(param.placements))


def check(param: torch.Tensor, name: str) -> None:
    """Raises InvalidArgument if the ranks' parts are yet to be summed."""
    if is_sharded(param) and any(placement.is_partial() for placement in param.placements):
        raise spillway.InvalidArgument(f"parameter {name} is {tuple(param.placements)}, so that each rank has a part of a sum: "
                                       "redistribute() it to Replicate() or Shard() first")
