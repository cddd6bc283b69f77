# SPDX-License-Identifier: Apache-2.0
"""Stages weights and gradients in PyTorch's memory for an update. Those on a GPU pass through page-locked memory, and those
on the CPU that are not contiguous, as in channels_last, are copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

# Bytes of weights and gradients that are copied together: a power of two, because PyTorch rounds what it page-locks up to
# one. There may be three pieces: one that is updated, the next, and one that is copied back.
PIECE_BYTES = 64 << 20
_ALIGNMENT = 64


def is_apart(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies where the library cannot use it: on a GPU."""
    return tensor.is_cuda


def _is_usable(tensor: torch.Tensor) -> bool:
    """Whether the library can use the tensor's own memory."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg()


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor's own memory if the library can use it, else a copy."""
    own = tensor.detach()
    if _is_usable(own):
        return own
    return own.cpu().resolve_neg().contiguous()


def staged(updates: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yields the updates in pieces. Each update has tensors in PyTorch's own memory, or None, as `weight_in` and
    `gradient_in`. It is yielded with `weight` and `gradient` where the library can use them. When the caller requests the
    next piece, the weights of this one are copied back to where they came from.

    On a GPU, the copies of the next piece run on the GPU's current stream while this piece is updated, and the caller waits
    once per piece.
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
            update.pop("gradient")  # memory is freed one piece at a time
            if weight is not None and (weight.device != to.device or weight.data_ptr() != to.data_ptr()):
                to.copy_(weight.view_as(to), non_blocking=True)
            weight = None


def _copied_bytes(update: dict[str, Any]) -> tuple[int, int]:
    """Returns the bytes that an update's copies take, and how many of them are in page-locked memory."""
    copied = locked = 0
    for name in ("weight_in", "gradient_in"):
        tensor = update[name]
        if tensor is None or not is_apart(tensor) and _is_usable(tensor):
            continue
        size = _aligned(tensor.numel() * tensor.element_size())
        copied += size
        locked += size if is_apart(tensor) else 0
    return copied, locked


def _pieces(updates: Sequence[dict[str, Any]]) -> list[tuple[list[dict[str, Any]], int]]:
    """Divides the updates into pieces. Returns each with the bytes of page-locked memory that it takes."""
    pieces: list[tuple[list[dict[str, Any]], int]] = []
    taken = 0  # by the copies of the last piece
    for update in updates:
        copied, locked = _copied_bytes(update)
        if pieces and taken + copied <= max(PIECE_BYTES, taken):
            piece, size = pieces[-1]
            piece.append(update)
            pieces[-1] = (piece, size + locked)
            taken += copied
        else:
            pieces.append(([update], locked))
            taken = copied
    return pieces


def _aligned(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


class _Copies:
    """The copies of one piece to the CPU."""

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
    event = torch.cuda.Event(blocking=True)  # the waiting thread sleeps: spinning would take a core from the updates
    event.record(torch.cuda.current_stream(device))
    return event
