# SPDX-License-Identifier: Apache-2.0
"""Keeps activations that backward needs in the engine between forward and backward."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import spillway
import torch
from spillway.torch._devices import Cpu, Gpu
from spillway.torch._run import Run
from spillway.torch._tensor import EngineTensor, extent_of

# Smaller activations stay in memory: moving them would cost more than it saves.
_LEAST_BYTES = 64 << 10


class _Room:
    """Transient tensors of the engine. Each is reused for activations of the same size class, so that steps repeat, and
    memory does not grow although shapes change."""

    def __init__(self, run: Any):
        self.engine = run.engine
        self.leasing = run.leasing
        self.lock = threading.RLock()  # reentrant: a finalizer may run on the thread that holds it
        self.free: dict[int, list[int]] = defaultdict(list)
        self.made = 0
        # The saved tensor that a transient tensor was last taken for. Counting them instead would go wrong where a signal's
        # handler breaks off the taking, or the finalizer, whose errors are dropped.
        self.taken: dict[int, weakref.ref[Any]] = {}

    @property
    def used(self) -> int:
        """The number of saved tensors that there are."""
        return sum(each() is not None for each in list(self.taken.values()))

    @staticmethod
    def class_of(size: int) -> int:
        """Returns the size rounded up to a multiple of a quarter of its power of two: at most a quarter is unused."""
        step = max(4096, 1 << (size.bit_length() - 3))
        return (size + step - 1) // step * step

    def take(self, size: int) -> int:
        with self.lock:
            if self.free[size]:
                return self.free[size].pop()
            self.made += 1
            number = self.made
        return self.engine.register(f"saved/{number}", "u8", (size,), role="activation", transient=True)

    def give_back(self, size: int, id: int) -> None:
        # The engine may be closed, and this may run on any thread, at any garbage collection.
        with contextlib.suppress(spillway.Error):
            self.engine.discard(id)
        with self.lock:
            self.free[size].append(id)


class _Saved:
    """A saved tensor. The engine has its elements in the order in which they lay in memory."""

    def __init__(self, room: _Room, device: Cpu | Gpu, tensor: torch.Tensor):
        flat = _flat(tensor)
        self.size = flat.numel() * flat.element_size()
        self.room = room
        self.device = device
        self.class_bytes = room.class_of(self.size)
        self.id = room.take(self.class_bytes)
        room.taken[self.id] = weakref.ref(self)
        self.end = weakref.finalize(self, room.give_back, self.class_bytes, self.id)
        self.of: Any = None  # weak reference to the storage that it was saved from
        self.dtype, self.shape, self.stride, self.numel = tensor.dtype, tensor.shape, tensor.stride(), flat.numel()
        with self._leased("discard") as memory:
            memory.copy_(flat.detach().view(torch.uint8))

    def tensor(self) -> torch.Tensor:
        flat = torch.empty(self.numel, dtype=self.dtype, device=self.device.torch)
        with self._leased("read") as memory:
            flat.view(torch.uint8).copy_(memory)
        return flat.as_strided(self.shape, self.stride)

    def _leased(self, access: str) -> contextlib.AbstractContextManager[torch.Tensor]:
        return self.room.leasing.operation(
            lambda stack: stack.enter_context(self.device.leased(self.id, access, self.size)))


class _Kept:
    """A tensor that stays where it is. tensor() raises RuntimeError if it was written after it was saved."""

    def __init__(self, tensor: torch.Tensor, version: int):
        self.kept, self.version = tensor, version

    def tensor(self) -> torch.Tensor:
        if self.kept._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tuple(self.kept.shape)}] is at version {self.kept._version}; expected version {self.version} instead")
        return self.kept


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((extent_of(tensor),), (1,))


def _is_worth(tensor: torch.Tensor, run: Run) -> bool:
    is_weight = isinstance(tensor, (EngineTensor, torch.nn.Parameter)) or isinstance(tensor._base, torch.nn.Parameter)
    return (not is_weight and not tensor.is_nested and run.has_device(tensor.device) and not tensor.is_conj()
            and not tensor.is_neg() and tensor.layout == torch.strided and not tensor.is_quantized and tensor.numel() > 0
            and extent_of(tensor) <= 2 * tensor.numel() and extent_of(tensor) * tensor.element_size() >= _LEAST_BYTES)


@contextlib.contextmanager
def saved_tensors(run: Run) -> Iterator[None]:
    """Within the block, tensors that autograd saves for backward move to the engine. They come back in backward.

    A tensor that several operations save, unchanged, is in the engine once. Weights, small tensors (below 64 KiB), nested
    tensors and those on another GPU than the run's stay where they are. A write through .data after a tensor was saved is not
    detected. Works with torch.utils.checkpoint, and with several backwards.
    """
    if run.room is None:
        run.room = _Room(run)
    room = run.room
    known: weakref.WeakValueDictionary[Any, _Saved] = weakref.WeakValueDictionary()

    @torch.compiler.disable
    def pack(tensor: torch.Tensor) -> Any:
        if not _is_worth(tensor, run):
            # Detached, so that an output does not keep its own graph alive.
            return _Kept(tensor.detach(), tensor._version)
        shares = tensor.grad_fn is not None
        storage = tensor.untyped_storage()
        key = (storage._cdata, storage.data_ptr(), tensor._version, tensor.storage_offset(), tensor.dtype, tensor.shape,
               tensor.stride())
        saved = known.get(key)
        # The storage may be gone, with another one at the same address. Only results of operations are shared: other
        # memory may be rewritten without a new version.
        if saved is None or saved.of() is None or not shares:
            saved = _Saved(room, run.leases_on(tensor.device, "to save"), tensor)
            saved.of = weakref.ref(storage)
            known[key] = saved
        return saved

    @torch.compiler.disable
    def unpack(packed: Any) -> torch.Tensor:
        return packed.tensor()

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
