# SPDX-License-Identifier: Apache-2.0
"""Tensors of an optimizer's state that are read from the engine when they are used, and written there when they are changed.

A state dict of the kind "tensors" has them in place of torch.optim's. torch.distributed.checkpoint writes and loads one after
another, so that only one is in memory at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import spillway
import torch
from spillway.torch._grad_mode import without_gradients
from spillway.torch._known import Known
from spillway.torch._shards import like, local_of
from spillway.torch._state import State, tile_rows_of
from spillway.torch._tensor import EngineTensor, _forget

MASTER = "master_weight"
_numbers = itertools.count(1)


class StateHome:
    """A moment, or the master weights, of a rank's part of a parameter, in fp32. It takes the place of a Home: a lease is a
    copy in memory, which is written back if the operation may have changed it. A step changes the values."""

    transient = True
    generation = 0
    dtype = torch.float32

    def __init__(self, optimizer: Any, param: torch.Tensor, known: Known, name: str, shape: torch.Size, state_dict: object):
        """`state_dict`: stands for the state dict that the tensor is made for."""
        self.optimizer, self.param, self.known, self.name, self.state_dict = optimizer, param, known, name, state_dict
        self.run, self.engine = optimizer.run, optimizer.run.engine
        self.device = self.run.leases_on(torch.device("cpu"), name)
        self.shape, self.numel = shape, shape.numel()
        self.step: int | None = known.step  # that the dict says; None: a load has written the values
        self.id = -next(_numbers)  # tensors of the engine have others

    def tensor(self) -> StateTensor:
        return StateTensor.of(self, self.shape)

    @contextlib.contextmanager
    def leased(self, access: str) -> Iterator[torch.Tensor]:
        """Yields all elements as a flat tensor."""
        values = self._values() if access != "read" else self.read()
        yield values.view(-1)
        if access != "read":
            self.write(values)

    def read(self) -> torch.Tensor:
        """Returns all elements, in memory. Raises FailedPrecondition if a load of another state dict was broken off."""
        if self.optimizer.loading is not self.state_dict:
            self.optimizer.check_whole()
        self.check_step()
        return self._values()

    def check_step(self) -> None:
        """Raises FailedPrecondition if the values are of another step than the dict says."""
        if self.step is not None and self.step != self.known.step:
            raise spillway.FailedPrecondition(
                f"{self.name} of parameter {self.known.name} is of step {self.known.step}, and the state dict of step "
                f"{self.step}: its tensors are read when they are written, so save it before the next step(), or call "
                "state_dict() again")

    @without_gradients
    def _values(self) -> torch.Tensor:
        return self.optimizer.read_entry(self.param, self.known, self.name) if self.numel else torch.empty(self.shape)

    @without_gradients
    def write(self, values: torch.Tensor) -> None:
        """Writes all elements, which are in memory, contiguous and in fp32."""
        if self.numel > 0:
            self.optimizer.loading, self.step = self.state_dict, None
            self.optimizer.write_entry(self.param, self.known, self.name, values.view(self.shape))


class LoadedEntry:
    """What a load has written of an entry, in fp32 in the engine. A format that rounds would round the parts that are there
    already again with each part that arrives, so load_state_dict() writes all of them together."""

    def __init__(self, state: State, name: str, shape: torch.Size, pinned_bytes: int):
        self._state, self._shape = state, shape
        self._id = state.engine.register(name, "f32", list(shape), tile_rows=tile_rows_of(shape, pinned_bytes), transient=True)
        weakref.finalize(self, _forget, state.engine, self._id).atexit = False

    def read(self) -> torch.Tensor:
        return self._state.read(self._id, self._shape)

    def write(self, values: torch.Tensor) -> None:
        self._state.write(self._id, values)


class StateTensor(EngineTensor):
    """An entry of a state dict. Unlike an EngineTensor it can be pickled, which reads it."""

    def untyped_storage(self) -> Any:
        """Returns the size alone. torch.distributed.checkpoint's writer would copy a tensor that is a part of its storage, and
        keep the copy until its file is complete."""
        return _Size(self.nbytes)

    storage = untyped_storage

    def numpy(self, **_: Any) -> Any:
        return self.clone().numpy()

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a tensor in memory: code that sends tensors to other ranks calls this before."""
        return self.clone().to(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.clone().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        raise _no_copy()

    @classmethod
    @torch.compiler.disable
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.clone.default and args[0]._is_whole():
            return args[0]._home.read()  # not a copy of a copy
        if func is torch.ops.aten.copy_.default and isinstance(args[0], StateTensor) and args[0]._is_whole():
            value = args[1].clone() if isinstance(args[1], EngineTensor) else args[1]  # nothing of it is read
            args[0]._home.write(value.detach().to("cpu", torch.float32).expand(args[0].shape).contiguous())
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _is_whole(self) -> bool:
        return self.numel() == self._home.numel and self.storage_offset() == 0 and self.is_contiguous()


class _Size:
    """What code may ask of the storage of a StateTensor."""

    def __init__(self, size_bytes: int, device: Any = None):
        if device is not None:  # torch.distributed.checkpoint's async_save makes a storage of the same class for a copy
            raise _no_copy()
        self._size_bytes = size_bytes

    def size(self) -> int:
        return self._size_bytes

    nbytes = size

    @classmethod
    def _new_shared(cls, *_: Any, **__: Any) -> Any:
        raise _no_copy()


def _no_copy() -> spillway.Unimplemented:
    return spillway.Unimplemented("a copy of this state dict, as async_save of torch.distributed.checkpoint makes first, would "
                                  "have all of the optimizer's state in memory: use save(), which writes one tensor after "
                                  "another, or checkpoint='commit', whose state dict has no tensors")


def entry(optimizer: Any, param: torch.Tensor, known: Known, name: str, shape: torch.Size, state_dict: object) -> torch.Tensor:
    """Returns a moment, or the master weights, of a parameter for a state dict: sharded as the parameter is."""
    return like(param, StateHome(optimizer, param, known, name, shape, state_dict).tensor())


def is_entry(value: Any) -> bool:
    return isinstance(local_of(value), StateTensor)


def is_own(value: Any, known: Known, name: str) -> bool:
    """Whether a value for a parameter's state is that state itself."""
    local = local_of(value)
    return isinstance(local, StateTensor) and local._home.known is known and local._home.name == name and local._is_whole()
