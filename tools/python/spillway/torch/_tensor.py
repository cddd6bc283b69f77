# SPDX-License-Identifier: Apache-2.0
"""A tensor whose bytes live in the engine.

The tensor has a shape, strides and a dtype. An operation leases its bytes, in pinned memory or in a GPU's memory, for as
long as it runs. Views are metadata: nothing is leased for them. So a module's forward needs no hooks, and between forward
and backward nothing is leased. The results of operations are PyTorch's own tensors.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import spillway
import torch
from spillway.torch._address import Address
from spillway.torch._grad_mode import without_gradients
from torch.utils._pytree import tree_flatten, tree_map_only

_INSTEAD = ("spillway.torch.save_pretrained(model, folder) writes a model's weights to a file, and clone() makes a tensor in "
            "memory")
_NO_POINTER = ("these are the bytes of a tensor in the engine: they have no address, and a tensor in memory cannot share them, as "
               "by `a.data = b.data`. Copy the values (`a.data.copy_(b)`). DistributedDataParallel, which sums gradients in memory, "
               "needs an optimizer with gradients='torch'")
DTYPE_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.uint8: "u8"}


class Home:
    """The tensor of the engine, of one tile, where a tensor's bytes live."""

    def __init__(self, run: Any, id: int, like: torch.Tensor, device: torch.device, name: str, transient: bool,
                 dtype: torch.dtype | None = None):
        self.run = run
        self.device = run.leases_on(device, name)
        self.engine = run.engine
        self.id = id
        self.dtype = dtype or like.dtype
        self.shape = like.shape
        self.numel = like.shape.numel()
        self.name = name
        self.transient = transient
        self.generation = 0  # of the values: a tensor of an older generation is void
        run.homes.add(self)
        # When nothing refers to the bytes any more, they are unregistered, so that the next commit does not have them.
        self.end = weakref.finalize(self, _forget, run.engine, id)
        self.end.atexit = False

    def tensor(self) -> EngineTensor:
        """Returns a row-major tensor of all elements."""
        return EngineTensor.of(self, self.shape)

    @contextlib.contextmanager
    def leased(self, access: str) -> Iterator[torch.Tensor]:
        """Yields all elements as a flat tensor, which is void after the block."""
        if access != "read" and not self.transient:
            self.run.has_changed()
        with self.device.leased(self.id, access, self.numel * self.dtype.itemsize) as memory:
            yield memory.view(self.dtype)


def _forget(engine: spillway.Engine, id: int) -> None:
    with contextlib.suppress(spillway.Error):
        engine.unregister(id)


def _is_registered(engine: spillway.Engine, name: str) -> bool:
    try:
        engine.find(name)
    except spillway.NotFound:
        return False
    return True


def _free_name(engine: spillway.Engine, name: str) -> str:
    """Returns the name, with a number if a registered tensor has it: a parameter may still have the gradient that it had from
    an optimizer that is gone."""
    number, free = 0, name
    while _is_registered(engine, free):
        number += 1
        free = f"{name}.{number}"
    return free


def make_home(run: Any, name: str, like: torch.Tensor, role: str, device: torch.device, transient: bool = False,
              data: torch.Tensor | None = None, dtype: torch.dtype | None = None) -> Home:
    """Registers a tensor of the shape of `like`, and of its dtype unless `dtype` is given, with the values of `data`, whatever
    the last commit has under its name; without `data` it is zeros. Operations find it on `device`. If a registered tensor has
    the name, a transient one gets a number after it. Raises InvalidArgument if it is not transient then, or if the engine does
    not hold its dtype or the run has no such device."""
    run.leases_on(device, name)
    engine = run.engine
    dtype = dtype or like.dtype
    if dtype not in DTYPE_NAMES:
        raise spillway.InvalidArgument(f"tensor {name} is {dtype}: the engine holds {', '.join(map(str, DTYPE_NAMES))}")

    def fill(_: int, out: memoryview) -> None:
        given = data.detach().cpu().contiguous().view(-1).view(torch.uint8)
        torch.frombuffer(out, dtype=torch.uint8).copy_(given)

    if transient:
        name = _free_name(engine, name)
    elif _is_registered(engine, name):
        raise spillway.InvalidArgument(f"{name} is in the engine already: a second model needs a name of its own "
                                       "(prefix=), or a run")
    if data is not None:
        with contextlib.suppress(spillway.NotFound):
            engine.forget(name)
    id = engine.register(name, DTYPE_NAMES[dtype], like.shape, role=role, transient=transient,
                         data=fill if data is not None else None)
    run.report.holds(id)
    return Home(run, id, like, device, name, transient, dtype)


class EngineTensor(torch.Tensor):
    """A tensor whose bytes live in the engine, leased only while an operation runs. `of` and views make it."""

    _home: Home

    def __new__(cls, data: Any = None, requires_grad: bool = False, **_: Any) -> Any:
        """Returns a parameter on the meta device. The init_empty_weights() of accelerate and transformers 4 makes it by the class
        of the parameter that it replaces."""
        if not isinstance(data, torch.Tensor) or not data.is_meta:
            raise spillway.FailedPrecondition("a tensor in the engine is not made by its class: spillway.torch.offload(model, run) "
                                              "moves parameters there")
        return torch.nn.Parameter(data, requires_grad=requires_grad)

    @classmethod
    def of(cls, home: Any, size: Any, stride: Any = None, offset: int = 0) -> Any:
        size = torch.Size(size)
        if stride is None:
            stride = torch.empty(size, device="meta").stride()
        made = torch.Tensor._make_wrapper_subclass(cls, size, strides=stride, storage_offset=offset, dtype=home.dtype,
                                                   device=home.device.torch)
        # PyTorch's own code, as of dlpack, would take address 0, also in a tensor whose `.data` was set to this one: with this,
        # where PyTorch has it, it raises RuntimeError.
        if hasattr(torch._C, "_set_storage_data_ptr_access_error_msg"):
            torch._C._set_storage_data_ptr_access_error_msg(torch.Tensor.untyped_storage(made)._cdata, _NO_POINTER)
        made._home, made._generation = home, home.generation
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{type(self).__name__}({self._home.name!r}, size={tuple(self.shape)}, dtype={self.dtype})"

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if (isinstance(value, EngineTensor) and (value._home, value._generation) == (self._home, self._generation)
                and (value.shape, value.stride(), value.storage_offset()) == (self.shape, self.stride(), self.storage_offset())):
            return  # as when a module is moved to the device where it is
        if isinstance(value, EngineTensor) and value._home is not self._home:
            raise spillway.FailedPrecondition(f"{self!r} cannot share the bytes of {value!r}: tie the parameters themselves "
                                              "(`b.weight = a.weight`), or copy the values (`.data.copy_(...)`)")
        if value.device != self.device:
            raise spillway.FailedPrecondition(f"{self!r} cannot move to {value.device}: operations find it on {self.device}, the "
                                              "device of its run (spillway.torch.open(..., device=))")
        if value.shape != self.shape or value.dtype != self.dtype:
            raise spillway.FailedPrecondition(
                f"{self!r} cannot become a tensor of {tuple(value.shape)}, {value.dtype}: its bytes are in the engine. Change "
                "shapes and types (.to(), .half(), resize_token_embeddings) before spillway.torch.offload")
        without_gradients(self.copy_)(value)

    def data_ptr(self) -> Any:
        return Address(self._home, self.storage_offset() * self.dtype.itemsize)

    const_data_ptr = data_ptr

    # These raise, because their results would be wrong.

    def _no_loop(self, *_: Any) -> Any:
        raise spillway.FailedPrecondition(f"{self!r} has no address that a loop of Python's could read: its bytes are in the "
                                          "engine. tensor.clone() gives a tensor in memory")

    apply_ = map_ = map2_ = _no_loop

    # Not NoAddress: safetensors and accelerate would take the storages of all such tensors for address 0, and so those of equal
    # size for one.
    def _no_storage(self, *args: Any, **kwargs: Any) -> Any:
        raise spillway.FailedPrecondition(f"{self!r} has no storage of its own, since its bytes are in the engine: {_INSTEAD}")

    storage = untyped_storage = share_memory_ = __dlpack__ = numpy = _no_storage

    def __deepcopy__(self, memo: Any) -> torch.nn.Parameter:
        """Returns a parameter with bytes of its own in the engine."""
        if id(self) in memo:
            return memo[id(self)]
        home = self._home
        if not isinstance(self, torch.nn.Parameter) or home.transient:  # as in a state dict
            raise spillway.FailedPrecondition(f"{self!r} cannot be deep-copied, as it is no parameter: deepcopy of the module "
                                              f"makes a copy in the engine, {_INSTEAD}")
        name = _free_name(home.engine, f"{home.name}.copy")
        home.run.has_changed()
        copied = make_home(home.run, name, self, "parameter", self.device, data=self.detach().clone())
        memo[id(self)] = torch.nn.Parameter(copied.tensor(), requires_grad=self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise spillway.FailedPrecondition(f"{self!r} cannot be pickled: the state_dict() of an optimizer of spillway.torch "
                                          f"names a commit that has it, {_INSTEAD}")

    @classmethod
    @torch.compiler.disable  # Dynamo would compile what runs an operation, anew for each tensor
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = _SPECIAL.get(func)
        if special is not None:
            return special(func, args, kwargs)
        if _is_view(func):
            return _view(func, args, kwargs)
        if func.namespace == "_c10d_functional" and not _written(func, args, kwargs):  # such as full_tensor() of a DTensor
            return func(*tree_map_only(EngineTensor, torch.Tensor.clone, args),
                        **tree_map_only(EngineTensor, torch.Tensor.clone, kwargs))
        if "c10d" in func.namespace:  # torch.distributed's work goes on when the operation, and so the lease, has ended
            raise spillway.Unimplemented(f"{func} on tensors in the engine: give torch.distributed a clone(), and copy its "
                                         "result back with copy_(). DistributedDataParallel broadcasts the weights when it is "
                                         "made: give it init_sync=False, if all ranks have the same weights")
        return _run(func, args, kwargs)


def extent_of(tensor: torch.Tensor) -> int:
    """Returns the number of elements in memory from the tensor's first to its last. REQUIRES: it has elements."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))


def _check(tensor: EngineTensor) -> None:
    """Raises FailedPrecondition if the tensor's metadata does not match what the engine has."""
    home = tensor._home
    if tensor._generation != home.generation:
        raise spillway.FailedPrecondition(f"{tensor!r} is void: its values were used by an update, or replaced by others. "
                                          "Keep a clone() of a gradient that is needed later")
    if tensor.dtype != home.dtype or (tensor.numel() > 0 and tensor.storage_offset() + extent_of(tensor) > home.numel):
        raise spillway.FailedPrecondition(
            f"{home.name} is {tuple(home.shape)}, {home.dtype} in the engine, and was made {tuple(tensor.shape)}, {tensor.dtype} "
            "since: change shapes and types before spillway.torch.offload")


def _meta_of(tensor: EngineTensor) -> torch.Tensor:
    storage = torch.empty(tensor._home.numel, dtype=tensor.dtype, device="meta")
    return storage.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _is_view(func: Any) -> bool:
    """Whether the operation returns its first argument's memory without having written it."""
    schema = func._schema
    return any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)


def _view(func: Any, args: Any, kwargs: Any) -> Any:
    of = args[0]
    if not isinstance(of, EngineTensor):
        return _run(func, args, kwargs)
    _check(of)
    home = of._home
    made = func(_meta_of(of), *args[1:], **kwargs)
    if isinstance(made, torch.Tensor) and made.dtype != home.dtype:
        raise spillway.Unimplemented(f"{of!r} cannot be viewed as {made.dtype}")

    def wrap(meta: torch.Tensor) -> Any:
        if not torch.is_inference_mode_enabled():
            return type(of).of(home, meta.size(), meta.stride(), meta.storage_offset())
        # In inference mode tensors have no versions. torch.inference_mode(False) enters this context in Python code, where
        # Ctrl-C would leave autograd off until the traceback is gone.
        with torch._C._InferenceMode(False):
            return type(of).of(home, meta.size(), meta.stride(), meta.storage_offset())

    return tree_map_only(torch.Tensor, wrap, made)


def _written(func: Any, args: Any, kwargs: Any) -> set[int]:
    """Returns the id() of each tensor of the engine that the operation writes."""
    written = set()
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = kwargs.get(argument.name, args[index] if index < len(args) else None)
        written.update(id(each) for each in tree_flatten(value)[0] if isinstance(each, EngineTensor))
    return written


def _written_lists(func: Any, args: Any, kwargs: Any) -> list[EngineTensor]:
    """Returns the tensors of the engine that the operation was given in lists and writes."""
    written = []
    for index, argument in enumerate(func._schema.arguments):
        value = kwargs.get(argument.name, args[index] if index < len(args) else None)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, (list, tuple)):
            written += [each for each in value if isinstance(each, EngineTensor)]
    return written


def _key(home: Home) -> tuple[int, int]:
    """Returns a key of a home that is unique across engines: ids count from 0 in every engine."""
    return id(home.engine), home.id


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Leases what the operation uses, each home once, and runs it."""
    flat = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, EngineTensor)]
    for each in flat:
        _check(each)
    written = _written(func, args, kwargs)
    homes: dict[Any, tuple[Home, bool]] = {}
    for each in flat:
        _, writes = homes.get(_key(each._home), (each._home, False))
        homes[_key(each._home)] = (each._home, writes or id(each) in written)

    def lease_all(stack: contextlib.ExitStack) -> dict[Any, torch.Tensor]:
        # All threads lease in the same order, so that two never wait for each other.
        return {key: stack.enter_context(home.leased("read-write" if writes else "read"))
                for key, (home, writes) in sorted(homes.items())}

    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(flat[0]._home.run.leasing.operation(lease_all)) if flat else {}
        given: list[tuple[EngineTensor, torch.Tensor, int]] = []  # with the address

        def real(tensor: EngineTensor) -> torch.Tensor:
            flat = memory[_key(tensor._home)]
            real = flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
            given.append((tensor, real, real.data_ptr()))
            return real

        out = func(*tree_map_only(EngineTensor, real, args), **tree_map_only(EngineTensor, real, kwargs))
        for tensor, now, address in given:
            was = (tensor.size(), tensor.stride(), tensor.storage_offset(), address)
            if (now.size(), now.stride(), now.storage_offset(), now.data_ptr()) != was:
                raise spillway.FailedPrecondition(f"{func} would give {tensor!r} another shape or other memory: use the "
                                                  "operation that returns a new tensor")
        for value in _written_lists(func, args, kwargs):  # autograd does not count their versions
            torch.autograd.graph.increment_version(value)
        # A written argument is returned as the tensor that it is. A result that aliases leased memory must not outlive the
        # lease, so it is copied.
        first = args[0] if args and isinstance(args[0], EngineTensor) and id(args[0]) in written else None
        if first is not None and func._schema.returns and func._schema.returns[0].alias_info is not None:
            return first
        ranges = [(each.data_ptr(), each.data_ptr() + each.numel() * each.element_size()) for each in memory.values()]

        def apart(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, EngineTensor):
                return tensor
            if tensor.layout != torch.strided:
                return tensor.clone()  # its values may lie in leased memory
            at = tensor.data_ptr() if tensor.numel() > 0 else 0
            return tensor.clone() if any(begin <= at < end for begin, end in ranges) else tensor

        return tree_map_only(torch.Tensor, apart, out)


def is_one(factor: Any) -> bool:
    """Whether a floating-point tensor times this factor is itself."""
    if isinstance(factor, torch.Tensor):
        return factor.dim() == 0 and not factor.is_complex() and not factor.is_meta and bool(factor == 1)
    return isinstance(factor, (bool, int, float)) and factor == 1


def _set(func: Any, args: Any, kwargs: Any) -> Any:
    tensor, source = args[:2]
    if not isinstance(tensor, EngineTensor) and isinstance(source, EngineTensor):
        raise spillway.FailedPrecondition(f"{func}: a tensor in memory would share the bytes of {source!r}, which are there "
                                          "only while an operation runs. Copy the values (copy_)")
    return _run(func, args, kwargs)


# --- Multiplications by 1, as of a clip that changes no gradient: nothing is leased or written ---


def _multiply(func: Any, args: Any, kwargs: Any) -> Any:
    tensor, factor = args
    if not (isinstance(tensor, EngineTensor) and tensor.is_floating_point() and is_one(factor)):
        return _run(func, args, kwargs)
    _check(tensor)
    return tensor


# --- Operations on lists: one tensor at a time, so that one is leased at a time ---


def _each(single: Any) -> Any:
    """Returns a function that runs `single` on each tensor of the first argument, with the matching elements of the other
    lists."""

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        results = []
        for index, tensor in enumerate(args[0]):
            rest = [each[index] if isinstance(each, (list, tuple)) else each for each in args[1:]]
            results.append(single(tensor, *rest, **kwargs))
            if func._schema.name.endswith("_") and isinstance(tensor, EngineTensor):
                torch.autograd.graph.increment_version(tensor)
        return None if func._schema.name.endswith("_") else results

    return run


def _norm(tensor: torch.Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.linalg.vector_norm(tensor, ord, dtype=dtype)


def _unscale(func: Any, args: Any, kwargs: Any) -> None:
    for tensor in args[0]:
        _run(func, ([tensor], *args[1:]), kwargs)


def _specials() -> dict[Any, Any]:
    aten = torch.ops.aten
    return {
        aten.set_.source_Tensor: _set,
        aten.mul_.Tensor: _multiply,
        aten.mul_.Scalar: _multiply,
        aten._foreach_norm.Scalar: _each(_norm),
        aten._foreach_mul_.Scalar: _each(torch.Tensor.mul_),
        aten._foreach_mul_.Tensor: _each(torch.Tensor.mul_),
        aten._foreach_mul_.ScalarList: _each(torch.Tensor.mul_),
        aten._foreach_add_.List: _each(torch.Tensor.add_),
        aten._foreach_zero_.default: _each(torch.Tensor.zero_),
        aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
        aten.is_pinned.default: lambda func, args, kwargs: False,
    }


_SPECIAL = _specials()
