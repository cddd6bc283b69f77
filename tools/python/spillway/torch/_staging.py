# SPDX-License-Identifier: Apache-2.0
"""Weights and gradients in PyTorch's memory, as an update finds them: a GPU's pass through page-locked memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

# Of the weights and gradients of a GPU that pass through page-locked memory together: a power of two, to which PyTorch
# rounds what it page-locks. Three pieces may be there: the one that is updated, the next, and the one that goes back.
PIECE_BYTES = 64 << 20
_ALIGNMENT = 64


def is_apart(tensor: torch.Tensor) -> bool:
    """Whether it lies where the library cannot use it: on a GPU."""
    return tensor.is_cuda


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's own memory where the library can use it, else a copy."""
    own = tensor.detach()
    if own.is_cpu and own.is_contiguous() and not own.is_neg():
        return own
    return own.cpu().resolve_neg().contiguous()


def staged(updates: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yields the updates in pieces, with `weight` and `gradient` where the library can use them: each has the tensors of
    PyTorch's own memory in `weight_in` and `gradient_in`, or None. When the caller comes back for the next piece, the
    weights of this one go to where they came from.

    Of a GPU, the next piece's copies run while this one is updated, on the GPU's current stream, and the caller waits once
    a piece.
    """
    pieces = _pieces(updates)
    coming = _Copies(*pieces[0]) if pieces else None
    for number, (piece, _) in enumerate(pieces):
        copies, coming = coming, _Copies(*pieces[number + 1]) if number + 1 < len(pieces) else None
        copies.wait()
        yield piece
        copies = None
        for update in piece:
            weight, to = update.pop("weight"), update["weight_in"]
            update.pop("gradient")  # memory is given back a piece at a time
            if weight is not None and (weight.device != to.device or weight.data_ptr() != to.data_ptr()):
                to.copy_(weight.view_as(to), non_blocking=True)
            weight = None


def _staged_bytes(update: dict[str, Any]) -> int:
    """What an update takes of page-locked memory."""
    size = 0
    for name in ("weight_in", "gradient_in"):
        tensor = update[name]
        if tensor is not None and is_apart(tensor):
            size += _aligned(tensor.numel() * tensor.element_size())
    return size


def _pieces(updates: Sequence[dict[str, Any]]) -> list[tuple[list[dict[str, Any]], int]]:
    """Each with the bytes of page-locked memory that it takes."""
    pieces: list[tuple[list[dict[str, Any]], int]] = []
    for update in updates:
        size = _staged_bytes(update)
        if pieces and pieces[-1][1] + size <= max(PIECE_BYTES, pieces[-1][1]):
            piece, taken = pieces[-1]
            piece.append(update)
            pieces[-1] = (piece, taken + size)
        else:
            pieces.append(([update], size))
    return pieces


def _aligned(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


class _Copies:
    """Of one piece, to the CPU."""

    def __init__(self, piece: list[dict[str, Any]], size: int):
        self._memory: torch.Tensor | None = None
        self._used = 0
        devices: set[torch.device] = set()
        for update in piece:
            for name in ("weight", "gradient"):
                tensor = update[f"{name}_in"]
                if tensor is None or not is_apart(tensor):
                    update[name] = None if tensor is None else on_cpu(tensor)
                    continue
                if self._memory is None:
                    self._memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=torch.cuda.is_available())
                update[name] = self._room(tensor).copy_(tensor.detach(), non_blocking=True)
                devices.add(tensor.device)
        self._ends = [_end_of(device) for device in devices if device.type == "cuda"]

    def _room(self, tensor: torch.Tensor) -> torch.Tensor:
        begin = self._used
        end = begin + tensor.numel() * tensor.element_size()
        self._used = _aligned(end)
        return self._memory[begin:end].view(tensor.dtype).view(tensor.shape)

    def wait(self) -> None:
        for end in self._ends:
            end.synchronize()


def _end_of(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # who waits sleeps: spinning takes a core from the updates
    event.record(torch.cuda.current_stream(device))
    return event
