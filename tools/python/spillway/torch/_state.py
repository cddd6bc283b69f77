# SPDX-License-Identifier: Apache-2.0
"""Calls the library's optimizer. Parameters lie in PyTorch's memory or in the engine, their state in the engine."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
from collections.abc import Sequence
from typing import Any

import spillway
import torch
from spillway._engine import number_of, text_of, whole_number
from spillway._library import (
    Address,
    Handle,
    Parameter,
    Rule,
    StateValues,
    Update,
    call,
    check,
    i64,
    library,
    new,
    pointer,
    size_t,
    taken_text,
)

RULES = ("adamw", "adam", "sgd", "rmsprop", "lion", "lamb", "lars", "adafactor")
FORMATS = ("fp32", "bf16", "8bit", "compact")
# What follows the parameter's name in the names of its state's tensors, in any format and rule.
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_var", "grad_avg")
SUFFIXES = ("master", "compact", "state8", "row_var", "col_var", "variance", *_MOMENTS, *(f"{name}_bf16" for name in _MOMENTS))
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# Largest size of a tile of state: several are in memory at once.
_MOST_TILE_BYTES = 4 << 20
# Tiles of 8-bit and compact state are cut between blocks of this many elements.
_BLOCK = 256
# Smallest size of memory that is mapped.
_MAPPED_BYTES = 1 << 20


_FLAGS = ("nesterov", "centered", "amsgrad", "maximize")


def make_rule(kind: str, constants: dict[str, Any]) -> Rule:
    rule = new(Rule, library.spw_rule_init, number_of(kind, RULES, "rule"))
    for name, value in constants.items():
        setattr(rule, name, int(bool(value)) if name in _FLAGS else float(value))
    return rule


def rule_of_state(kind: str, moments: Sequence[str]) -> Rule:
    """Returns a rule whose state has these moments."""
    return make_rule(kind, {"momentum": "momentum_buffer" in moments, "centered": "grad_avg" in moments,
                            "amsgrad": "max_exp_avg_sq" in moments})


def empty_fp32(shape: Sequence[int]) -> torch.Tensor:
    """Returns a tensor in fp32 on the CPU. The memory of a large one goes back to the operating system as soon as it is freed:
    that of malloc may stay with the process, so that many tensors, one after another, would take the memory of all of them."""
    size = 4 * math.prod(shape)
    if size < _MAPPED_BYTES:
        return torch.empty(tuple(shape), dtype=torch.float32, device="cpu")
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.float32).view(tuple(shape))


def address_of(tensor: torch.Tensor, what: str) -> int:
    """Returns the address of a tensor's first element; any number if it has no elements. Raises InvalidArgument, whose message
    begins with `what`, if the elements are not at an address, as those of a wrapper subclass or of a freed storage."""
    try:
        address = tensor.data_ptr()
        is_there = tensor.numel() == 0 or address != 0 and tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:  # PyTorch refuses the address of such a storage
        is_there = False
    if not is_there:
        raise spillway.InvalidArgument(f"{what} is a {type(tensor).__name__} on {tensor.device} whose elements have no "
                                       "address: give a plain tensor that has its values in memory, such as a DTensor's "
                                       "to_local()")
    return address


def tile_rows_of(shape: Sequence[int], pinned_bytes: int) -> int:
    """Returns the rows of a tile of fp32 state that fits in a sixteenth of the budget; 0: one tile holds all rows."""
    most = max(4096, min(_MOST_TILE_BYTES, pinned_bytes // 16))
    row_elements = 1
    for dimension in shape[1:]:
        row_elements *= dimension
    rows = max(1, most // (4 * row_elements))
    if len(shape) < 2:
        rows = max(_BLOCK, rows // _BLOCK * _BLOCK)
    return 0 if not shape or rows >= shape[0] else rows


class State:
    """The state, in one format, of parameters that one kind of rule updates. `constants` are checked; those of an update are
    its own."""

    def __init__(self, engine: spillway.Engine, kind: str, constants: dict[str, Any], state_format: str, threads: int):
        self._kind = kind
        rule = make_rule(kind, constants)
        if "momentum" in constants:
            rule.momentum = rule.momentum or 1.0  # so that parameters may have momentum in any format
        address = Address(library.spw_optimizer_release)
        check(library.spw_optimizer_create(engine._live(), ctypes.byref(rule), number_of(state_format, FORMATS, "state_format"),
                                           whole_number(threads, "threads", 2**31 - 1, -2**31), ctypes.byref(address)))
        self._handle = Handle(address, "the optimizer, or its run, was closed")
        self.engine = engine
        self.names: list[str] = []  # by the parameter's number
        self.shapes: list[tuple[int, ...]] = []

    def close(self) -> None:
        self._handle.close()

    def _live(self) -> ctypes.c_void_p:
        return self._handle.get()

    def add(self, name: str, weight: torch.Tensor, tile_rows: int, moments: Sequence[str], weight_id: int | None = None,
            gradient_id: int | None = None, gradient_dtype: torch.dtype | None = None) -> int:
        """Registers the state of a weight, with these moments, and returns the parameter's number. The weight is contiguous and
        on the CPU, or is the engine's tensor `weight_id`. The state is new, as before any step, whatever the store has under
        its names. Each update gives the gradient's address, unless the gradient is the engine's tensor `gradient_id`. Without
        a `gradient_dtype` the gradient is of the weight's dtype."""
        parameter = new(Parameter, library.spw_parameter_init)
        parameter.rule = ctypes.pointer(rule_of_state(self._kind, moments))
        parameter.is_fresh = 1
        parameter.name = text_of(name, "the name of a parameter")
        parameter.has_gradient = 1
        parameter.weight.dtype, parameter.gradient.dtype = DTYPES[weight.dtype], DTYPES[gradient_dtype or weight.dtype]
        # A placeholder address that no update uses: each update gives its own.
        parameter.weight.memory = parameter.gradient.memory = ctypes.addressof(parameter)
        if weight_id is None:
            parameter.weight.memory = address_of(weight, f"parameter {name}")  # its values are the first master weights
        else:
            parameter.weight.memory, parameter.weight.id = None, weight_id
        if gradient_id is not None:
            parameter.gradient.memory, parameter.gradient.id = None, gradient_id
        parameter.shape, parameter.rank = (i64 * max(1, weight.dim()))(*weight.shape), weight.dim()
        parameter.tile_rows = tile_rows
        number = size_t()
        check(library.spw_optimizer_add(self._live(), ctypes.byref(parameter), ctypes.byref(number)))
        self.names.append(name)
        self.shapes.append(tuple(weight.shape))
        return number.value

    def remove(self, parameter: int) -> None:
        """Removes a parameter. Its state's tensors stay registered."""
        check(library.spw_optimizer_remove(self._live(), parameter))

    def tensors(self, parameter: int) -> list[dict[str, Any]]:
        """Returns the name and id of each of the parameter's state tensors."""
        return json.loads(taken_text(library.spw_optimizer_state_json, self._live(), parameter))

    def step(self, updates: Sequence[dict[str, Any]]) -> None:
        """Updates parameters in one call. Each update has parameter, step, learning_rate, weight_decay, gradient_scale, rule,
        weight and gradient. The last two are contiguous tensors on the CPU, or None if they are in the engine."""
        if not updates:
            return
        array = (Update * len(updates))()
        for at, given in zip(array, updates):
            library.spw_update_init(ctypes.byref(at), ctypes.sizeof(Update))
            at.parameter, at.step = given["parameter"], given["step"]
            at.learning_rate, at.weight_decay = given["learning_rate"], given["weight_decay"]
            at.gradient_scale = given["gradient_scale"]
            at.rule = ctypes.pointer(given["rule"])
            name = self.names[given["parameter"]]
            at.weight_memory = None if given["weight"] is None else address_of(given["weight"], f"parameter {name}")
            at.gradient_memory = None if given["gradient"] is None else address_of(given["gradient"],
                                                                                   f"the gradient of parameter {name}")
            at.take_changed_weight = 1
        check(library.spw_optimizer_step(self._live(), array, len(updates)))

    def masters(self, parameter: int) -> torch.Tensor:
        """Returns the parameter's master weights in fp32."""
        out = empty_fp32(self.shapes[parameter])
        check(library.spw_optimizer_masters(self._live(), parameter, out.data_ptr(), out.numel()))
        return out

    def read_state(self, parameter: int, weight: torch.Tensor | None, masters: torch.Tensor | None,
                   moments: Sequence[torch.Tensor]) -> None:
        """Fills fp32 tensors with the master weights, unless `masters` is None, and with the moments. `moments` has a tensor
        for every moment, or is empty. `weight`: the weight, if it lies in memory."""
        self._move(library.spw_optimizer_read_state, parameter, weight, masters, moments)

    def write_state(self, parameter: int, weight: torch.Tensor | None, masters: torch.Tensor | None,
                    moments: Sequence[torch.Tensor]) -> None:
        """Writes master weights and moments, given as to read_state. If master weights are given, the weight changes,
        too, if it is fp32 or the format is compact."""
        self._move(library.spw_optimizer_write_state, parameter, weight, masters, moments)

    def _move(self, call: Any, parameter: int, weight: torch.Tensor | None, masters: torch.Tensor | None,
              moments: Sequence[torch.Tensor]) -> None:
        state = new(StateValues, library.spw_state_init)
        state.parameter, state.num_moments = parameter, len(moments)
        name = self.names[parameter]
        state.weight_memory = None if weight is None else address_of(weight, f"parameter {name}")
        state.masters = None if masters is None else address_of(masters, f"the master weight of parameter {name}")
        state.moments = (pointer * max(1, len(moments)))(
            *(address_of(moment, f"a moment of parameter {name}") for moment in moments))
        state.num_elements = math.prod(self.shapes[parameter])
        check(call(self._live(), ctypes.byref(state)))

    def read(self, id: int, shape: Sequence[int]) -> torch.Tensor:
        """Returns the values of a state tensor in fp32."""
        out = empty_fp32(shape)
        call(library.spw_read, self.engine._live(), id, 0, out.data_ptr(), out.numel() * out.element_size())
        return out

    def write(self, id: int, values: torch.Tensor) -> None:
        held = values.contiguous()
        address = address_of(held, f"the value of state tensor {id}")
        check(library.spw_write(self.engine._live(), id, 0, address, held.numel() * held.element_size()))
