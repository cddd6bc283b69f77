# SPDX-License-Identifier: Apache-2.0
"""Moves a model's weights into the engine, after the model was built or while it is built, and writes them to files."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pathlib
import struct
import weakref
from collections.abc import Container, Iterator, Mapping
from typing import Any

import spillway
import torch
from spillway.torch._run import Run
from spillway.torch._shards import is_sharded
from spillway.torch._tensor import EngineTensor, extent_of, make_home
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

_View = tuple[torch.dtype, torch.Size, tuple[int, ...], int]  # type, size, strides, offset
_NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"
_replaced = WeakIdKeyDictionary()  # parameters whose place in a model offload() has given to another object


class _Memory:
    """The memory of parameters that move into an engine. There each gets bytes of its own, so two that share elements in
    memory would be tied no longer."""

    def __init__(self) -> None:
        # By storage: name, first byte, byte after the last, and view of each parameter. The weak reference keeps the identity
        # of a storage that is gone from being another's.
        self._taken: dict[StorageWeakRef, list[tuple[str, int, int, _View]]] = {}

    def sharer_of(self, param: torch.Tensor) -> str | None:
        """Returns the name of a parameter that was taken with which the parameter shares elements; None: there is none."""
        begin, end, view = _place_of(param)
        for other, other_begin, other_end, other_view in self._taken.get(StorageWeakRef(param.untyped_storage()), ()):
            if begin < other_end and other_begin < end and _share(view, other_view):
                return other
        return None

    def check(self, name: str, param: torch.Tensor) -> None:
        """Raises InvalidArgument if the parameter shares elements with one that was taken."""
        if (other := self.sharer_of(param)) is not None:
            raise spillway.InvalidArgument(
                f"the memory of the parameters {other} and {name} overlaps, and they are two objects, which would be two "
                "tensors in the engine: to tie them, make them one object (`b.weight = a.weight`); otherwise give one a "
                "copy (`b.weight.data = b.weight.data.clone()`)")

    def take(self, name: str, param: torch.Tensor) -> None:
        self._taken.setdefault(StorageWeakRef(param.untyped_storage()), []).append((name, *_place_of(param)))

    def names(self) -> set[str]:
        """Returns the names of the parameters that were taken."""
        return {name for taken in self._taken.values() for name, *_ in taken}

    def add(self, other: _Memory) -> None:
        for storage, taken in other._taken.items():
            self._taken.setdefault(storage, []).extend(taken)


_memories: weakref.WeakKeyDictionary[Run, _Memory] = weakref.WeakKeyDictionary()  # of what moved into each run's engine


def _place_of(param: torch.Tensor) -> tuple[int, int, _View]:
    begin = param.storage_offset() * param.element_size()
    end = begin + extent_of(param) * param.element_size()
    return begin, end, (param.dtype, param.size(), param.stride(), param.storage_offset())


def _share(one: _View, other: _View) -> bool:
    """Whether two views of a storage, whose ranges overlap, have an element in common. Ranges of column slices interleave."""
    (dtype, size, stride, offset), (other_dtype, other_size, other_stride, other_offset) = one, other
    if dtype != other_dtype:
        return True
    extents = [at + sum((n - 1) * s for n, s in zip(sizes, strides)) + 1 for _, sizes, strides, at in (one, other)]
    begin = min(offset, other_offset)
    marks = torch.zeros(max(extents) - begin, dtype=torch.bool, device="cpu")
    marks.as_strided(size, stride, offset - begin).fill_(True)
    return bool(marks.as_strided(other_size, other_stride, other_offset - begin).any())


def _may_share(param: torch.Tensor | None) -> bool:
    return (param is not None and not isinstance(param, EngineTensor) and param.layout is torch.strided
            and param.numel() > 0)


def _check_not_replaced(param: torch.Tensor, name: str) -> None:
    if param in _replaced:
        raise spillway.FailedPrecondition(f"parameter {name} was replaced in its model by offload(), which could not keep the "
                                          "object because something else referred to it (as torch.nn.LSTM does): collect the "
                                          "parameters after offload()")


def _move(run: Run, name: str, param: torch.nn.Parameter) -> torch.nn.Parameter:
    _check_not_replaced(param, name)
    if param._backward_hooks or param._post_accumulate_grad_hooks or param.grad is not None:
        raise spillway.FailedPrecondition(f"parameter {name} has hooks, an optimizer with update='backward' or "
                                          "gradients='engine', or a gradient, which would be lost: offload the model first")
    if run.is_updated(param):
        raise spillway.FailedPrecondition(f"parameter {name} is an optimizer's of this run, which would go on updating the "
                                          "tensor in memory: make the optimizer after offload()")
    if param.is_meta:
        raise spillway.InvalidArgument(f"parameter {name} is on the meta device: give it values first")
    if param.device.type != "cpu" and param.device != run.device:
        raise spillway.InvalidArgument(f"parameter {name} is on {param.device}, and the run on {run.device}: open it with "
                                       f"spillway.torch.open(..., device='{param.device}')")
    if not param.is_contiguous():
        run.report.reorders(name)
    home = make_home(run, f"weights/{name}", param, "parameter", run.device, data=param)
    moved = torch.nn.Parameter(home.tensor(), requires_grad=param.requires_grad)
    moved.__dict__.update(param.__dict__)  # attributes that other code has set
    return moved


def _wrap_libraries() -> None:
    from spillway.torch._libraries import wrap  # which imports this module

    wrap()


def offload(model: torch.nn.Module, run: Run, prefix: str = "") -> torch.nn.Module:
    """Moves the model's parameters into the engine, with their current values, and returns the model. Make the optimizer
    afterwards: its load_state_dict also brings weights in the engine to the commit, if the commit has them. The parameters
    stay the same objects, so groups of them may have been made before. Only one that a weak reference (as in torch.nn.LSTM,
    GRU and RNN), or a graph, refers to is replaced by another object. An optimizer that is given the old one raises.

    Each parameter is one tile, so `pinned` must have room for the parameters that one operation uses together, and no more.
    If the run is on a GPU, so must `device_memory`. From now on the parameters are on the run's device, wherever they were
    before. Buffers stay where they are: `model.to(run.device)` moves them.
    In the engine parameters are row-major. If one was not, as after .to(memory_format=torch.channels_last), operations may
    round otherwise than on the one in memory: a line on stderr says so.
    Tied parameters stay tied if they are one object: two objects that share memory raise. A second model in a run needs a
    `prefix` for its parameters' names.
    A Hugging Face model's save_pretrained then writes what spillway.torch.save_pretrained writes, that of a PEFT model its
    adapters, and accelerate's save_state what names a commit. A deepcopy of the model, or of a part, is in the engine, too.
    Code that needs a weight's address (.data_ptr()) raises, unless it only compares addresses or asks for their alignment, and
    so does pickling. torch.compile leaves operations on weights in the engine uncompiled, and raises with fullgraph=True.
    """
    _wrap_libraries()
    for name, param in model.named_parameters():
        if is_sharded(param):
            raise spillway.Unimplemented(
                f"parameter {name} is sharded over ranks, and the engine holds whole weights: leave out offload() and give the "
                "shards to an optimizer of spillway.torch, which keeps their state in the store")
    earlier, memory = _memories.setdefault(run, _Memory()), _Memory()
    for name, param in model.named_parameters():
        if _may_share(param):
            _check_not_replaced(param, name)
            earlier.check(name, param)
            memory.check(name, param)
            memory.take(prefix + name, param)
    run.has_changed()
    replaced: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, param in list(module._parameters.items()):
            if param is None or isinstance(param, EngineTensor) or param.numel() == 0:
                continue
            if param not in replaced:
                moved = _move(run, prefix + (f"{path}.{name}" if path else name), param)
                try:
                    torch.utils.swap_tensors(param, moved)
                except RuntimeError:
                    replaced[param] = moved
                    _replaced[param] = True
                del moved  # after a swap this is the tensor in memory
            module._parameters[name] = replaced.get(param, param)
    earlier.add(memory)
    return model


@contextlib.contextmanager
def parameters(run: Run, prefix: str = "") -> Iterator[None]:
    """Within the block every parameter that a module registers moves into the engine at once, so that a model larger than
    memory can be built, or loaded (`Model.from_pretrained(folder)`). One on the meta device moves when it gets its values,
    which must be before the block ends. The parameters are numbered in the order in which they are made. That order must be
    the same when the store is continued.

    Within the block transformers reads one weight at a time: the environment has HF_DEACTIVATE_ASYNC_LOAD=1. Its threads would
    read weights faster than the engine takes them."""
    _wrap_libraries()
    run.has_changed()
    register = torch.nn.Module.register_parameter
    building = _Building(run, prefix)

    def move_and_register(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        building.move(module, name, param)
        register(module, name, param)

    torch.nn.Module.register_parameter = move_and_register
    before = os.environ.get(_NO_THREADS)
    os.environ[_NO_THREADS] = "1"
    try:
        yield
        building.end()
    finally:
        torch.nn.Module.register_parameter = register
        if before is None:
            del os.environ[_NO_THREADS]
        else:
            os.environ[_NO_THREADS] = before


class _Building:
    """The parameters that modules register within parameters()."""

    def __init__(self, run: Run, prefix: str):
        self._run, self._prefix = run, prefix
        self._memory = _memories.setdefault(run, _Memory())
        self._number = 0
        # The numbers of parameters, by module and name: one on the meta device that gets its values keeps its number.
        self._numbers: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, int]] = weakref.WeakKeyDictionary()
        # Those that got their values after they were made, by number and name, and pairs of them that share memory, as tied
        # weights in a file that torch.save wrote do. Code that loads them ties them only afterwards.
        self._came: dict[str, tuple[torch.nn.Module, str, torch.nn.Parameter]] = {}
        self._shared: list[tuple[str, str, spillway.InvalidArgument]] = []

    def move(self, module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        """Moves a parameter into the engine: its object becomes the one there, since the code that made it may go on using it,
        for example to initialise it. On the meta device it waits for its values."""
        if param is None or isinstance(param, EngineTensor) or param.numel() == 0:
            return
        before = module._parameters.get(name)
        is_awaited = before is not None and (before is param or before.is_meta) and name in self._numbers.get(module, {})
        if not is_awaited:
            self._numbers.setdefault(module, {})[name] = self._number
            self._number += 1
        if param.is_meta:
            return
        number = self._numbers[module][name]
        numbered = f"{self._prefix}{number}.{name}"
        if _may_share(param):
            self._check(numbered, param, is_awaited)
        moved = _move(self._run, numbered, param)
        try:
            torch.utils.swap_tensors(param, moved)
        except RuntimeError as error:
            raise spillway.FailedPrecondition(f"parameter {name} cannot go into the engine where it is made, since something "
                                              f"else refers to it ({error}): build the model, then offload() it") from error
        self._memory.take(numbered, moved)  # after the swap this is the tensor in memory
        if is_awaited:
            self._came[numbered] = (module, name, param)

    def _check(self, numbered: str, param: torch.nn.Parameter, is_awaited: bool) -> None:
        try:
            self._memory.check(numbered, param)
        except spillway.InvalidArgument as error:
            other = self._memory.sharer_of(param)
            if not is_awaited or other not in self._came:
                raise
            self._shared.append((numbered, other, error))

    def end(self) -> None:
        """Raises InvalidArgument for a parameter without values, and for two that share memory and are two objects still."""
        for module, names in list(self._numbers.items()):
            for name, number in names.items():
                param = module._parameters.get(name)
                self.move(module, name, param)  # one that was put there without being registered
                if param is not None and param.is_meta:
                    raise spillway.InvalidArgument(f"parameter {number}.{name} is on the meta device at the end of "
                                                   "parameters(): load its values within the block")
        for *pair, error in self._shared:
            if all(module._parameters.get(name) is param for module, name, param in map(self._came.__getitem__, pair)):
                raise error


# In the order in which safetensors' own writer has the types in a file. Wider ones are first, so each tensor is aligned.
_SAFETENSORS = {torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
                torch.float16: "F16", torch.int16: "I16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
                torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


def write_weights(folder: str | os.PathLike[str], state_dict: Mapping[str, torch.Tensor],
                  tied: Container[str] | None = None) -> None:
    """Writes `model.safetensors`, one weight at a time, as save_pretrained says. `tied`: the names under which a weight is not
    written if it was already; None: all."""
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    seen: set[Any] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in state_dict.items():
        if not isinstance(tensor, torch.Tensor):
            raise spillway.InvalidArgument(f"{name} is {type(tensor).__name__}: safetensors holds tensors alone")
        where = id(tensor._home) if isinstance(tensor, EngineTensor) else tensor.data_ptr()
        key = (where, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
        if key in seen and tensor.numel() > 0 and (tied is None or name in tied):
            continue
        if tensor.dtype not in _SAFETENSORS:
            raise spillway.InvalidArgument(f"{name} is {tensor.dtype}, which is not written: it must be "
                                           f"{', '.join(map(str, _SAFETENSORS))}")
        seen.add(key)
        tensors[name] = tensor
    order = list(_SAFETENSORS)
    tensors = dict(sorted(tensors.items(), key=lambda item: (order.index(item[1].dtype), item[0])))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _SAFETENSORS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    part = path / ".model.safetensors.part"
    try:
        with open(part, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                # For a tensor in the engine this makes the only copy in memory, which is freed before the next one is made.
                file.write(memoryview(tensor.detach().clone().cpu().contiguous().view(-1).view(torch.uint8).numpy()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path / "model.safetensors")
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def save_pretrained(model: torch.nn.Module, folder: str | os.PathLike[str],
                    state_dict: Mapping[str, torch.Tensor] | None = None) -> None:
    """Writes `model.safetensors`, one weight at a time, and the config and generation config of a Hugging Face model.
    `state_dict`: the weights to write; None: the model's.

    `model.safetensors` appears complete or not at all. A weight that several names share is written under the first name, and
    under those that a model of transformers 5 does not tie when it is loaded. The file is the one that safetensors' own writer
    makes: by type, wider ones first, then by name; each tensor is aligned.
    """
    tied = getattr(model, "all_tied_weights_keys", None)
    write_weights(folder, model.state_dict(keep_vars=True) if state_dict is None else state_dict, tied)
    for name in ("config", "generation_config"):
        config = copy.deepcopy(getattr(model, name, None))
        if not hasattr(config, "save_pretrained"):
            continue
        if name == "config":  # as transformers records them
            config.architectures = [type(model).__name__]
            config.dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        config.save_pretrained(folder)


def weights_that_left(run: Run) -> list[str]:
    """Returns the names of weights that offload() has moved into the run's engine, and that are no longer there, because other
    code has put others in their places."""
    there = {home.name.removeprefix("weights/") for home in list(run.homes)}
    return sorted(_memories[run].names() - there) if run in _memories else []


def weight_of(run: Run, param: torch.Tensor, name: str) -> int | None:
    """Returns the engine's id of a parameter that lives there; None: it lies in memory. Raises InvalidArgument if it lives
    in another run's engine, or is a view, and FailedPrecondition if offload() has replaced it."""
    if not isinstance(param, EngineTensor):
        _check_not_replaced(param, name)
        return None
    if param._home.engine is not run.engine:
        raise spillway.InvalidArgument(f"parameter {name} is {param!r} of another run: give the optimizer the run that its "
                                       "model was offloaded to (store=)")
    if param.numel() != param._home.numel or not param.is_contiguous():
        raise spillway.InvalidArgument(f"parameter {name} is a view of {param._home.name}: give the optimizer the whole")
    return param._home.id
