# SPDX-License-Identifier: Apache-2.0
"""The shared library, with its structs and functions declared for ctypes (include/spillway/spillway.h)."""

from __future__ import annotations

import atexit
import ctypes
import os
import pathlib
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from spillway import _errors

u8, i32, i64, u32, u64, size_t = (ctypes.c_uint8, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64,
                                  ctypes.c_size_t)
pointer, text, double = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_double

READER = ctypes.CFUNCTYPE(ctypes.c_int, pointer, u64, pointer, size_t)
INTERRUPT = ctypes.CFUNCTYPE(i32, pointer)
NUM_ROLES = 5
NOWHERE = -1


class EngineOptions(ctypes.Structure):
    _fields_ = [("size", size_t), ("store", ctypes.POINTER(text)), ("num_store", size_t), ("mode", i32), ("io", i32),
                ("device_kind", i32), ("device_index", i32), ("store_bytes", u64), ("device_bytes", u64),
                ("pinned_bytes", u64), ("page_bytes", u64), ("calibration", i32), ("plan_steps", i32),
                ("queue_depth", i32), ("timeline_events", u64), ("announce", pointer), ("announce_user", pointer),
                ("placement", i32 * NUM_ROLES)]


class TensorSpec(ctypes.Structure):
    _fields_ = [("size", size_t), ("name", text), ("dtype", i32), ("role", i32), ("shape", ctypes.POINTER(i64)),
                ("rank", size_t), ("tile_rows", i64), ("transient", i32)]


class ConfirmedReader(ctypes.Structure):
    _fields_ = [("read", READER), ("user", pointer), ("is_done", i32)]


class Use(ctypes.Structure):
    _fields_ = [("id", u32), ("tier", i32), ("access", i32), ("tile", u32)]


class Rule(ctypes.Structure):
    _fields_ = [("size", size_t), ("kind", i32)] + [(name, double) for name in (
        "beta1", "beta2", "epsilon", "alpha", "momentum", "trust_coefficient", "beta2_decay", "epsilon2",
        "clipping_threshold", "dampening")] + [(name, i32) for name in ("nesterov", "centered", "amsgrad", "maximize")]


class Values(ctypes.Structure):
    _fields_ = [("memory", pointer), ("dtype", i32), ("id", u32)]


class Parameter(ctypes.Structure):
    _fields_ = [("size", size_t), ("name", text), ("weight", Values), ("has_gradient", i32), ("gradient", Values),
                ("shape", ctypes.POINTER(i64)), ("rank", size_t), ("tile_rows", i64), ("state", ctypes.POINTER(u32)),
                ("num_state", size_t), ("is_fresh", i32), ("rule", ctypes.POINTER(Rule))]


class Update(ctypes.Structure):
    _fields_ = [("size", size_t), ("parameter", size_t), ("step", i64), ("learning_rate", double),
                ("weight_decay", double), ("gradient_scale", double), ("rule", ctypes.POINTER(Rule)),
                ("weight_memory", pointer), ("gradient_memory", pointer), ("take_changed_weight", i32)]


class StateValues(ctypes.Structure):
    _fields_ = [("size", size_t), ("parameter", size_t), ("weight_memory", pointer), ("masters", pointer),
                ("moments", ctypes.POINTER(pointer)), ("num_moments", size_t), ("num_elements", u64)]


_OUT = ctypes.POINTER
_HANDLE = _OUT(pointer)
_TEXT_OUT = _OUT(pointer)  # char*, which the caller must free

# Functions that can fail. They return a status; None means success.
_FALLIBLE = {
    "spw_engine_open": [_OUT(EngineOptions), _HANDLE],
    "spw_register": [pointer, _OUT(TensorSpec), pointer, pointer, _OUT(u32)],  # its reader: _reader.py
    "spw_unregister": [pointer, u32],
    "spw_forget": [pointer, text],
    "spw_find": [pointer, text, _OUT(u32)],
    "spw_tensor_json": [pointer, u32, _TEXT_OUT],
    "spw_tile_range": [pointer, u32, u64, _OUT(u64), _OUT(u64)],
    "spw_acquire": [pointer, u32, u64, i32, pointer, _HANDLE],
    "spw_acquire_host": [pointer, u32, u64, i32, pointer, _HANDLE],
    "spw_lease_dlpack_on": [pointer, pointer, _HANDLE],
    "spw_prefetch": [pointer, _OUT(Use), size_t],
    "spw_evict": [pointer, u32, u64],
    "spw_discard": [pointer, u32, u64],
    "spw_end_step": [pointer],
    "spw_wait_for_plan": [pointer],
    "spw_read": [pointer, u32, u64, pointer, u64],
    "spw_write": [pointer, u32, u64, pointer, u64],
    "spw_add": [pointer, u32, pointer, i32, double],
    "spw_scale": [pointer, u32, double],
    "spw_sum_of_squares": [pointer, u32, _OUT(double)],
    "spw_all_finite": [pointer, u32, _OUT(i32)],
    "spw_commit": [pointer, pointer, size_t],
    "spw_user_state": [pointer, _HANDLE, _OUT(size_t)],
    "spw_snapshot": [pointer, text],
    "spw_snapshots_json": [pointer, _TEXT_OUT],
    "spw_snapshot_user_state": [pointer, text, _HANDLE, _OUT(size_t)],
    "spw_restore": [pointer, text],
    "spw_drop": [pointer, text],
    "spw_store_id": [pointer, _TEXT_OUT],
    "spw_commit_number": [pointer, _OUT(u64)],
    "spw_store_reader_open": [_OUT(text), size_t, _HANDLE],
    "spw_store_reader_id": [pointer, _TEXT_OUT],
    "spw_store_reader_user_state": [pointer, text, _HANDLE, _OUT(size_t)],
    "spw_store_reader_read": [pointer, text, _OUT(TensorSpec), pointer, u64],
    "spw_stats_json": [pointer, _TEXT_OUT],
    "spw_take_timeline_json": [pointer, _TEXT_OUT],
    "spw_stream_create": [pointer, _HANDLE],
    "spw_stream_wrap": [pointer, pointer, _HANDLE],
    "spw_stream_synchronize": [pointer],
    "spw_optimizer_create": [pointer, _OUT(Rule), i32, i32, _HANDLE],
    "spw_optimizer_add": [pointer, _OUT(Parameter), _OUT(size_t)],
    "spw_optimizer_remove": [pointer, size_t],
    "spw_optimizer_state_json": [pointer, size_t, _TEXT_OUT],
    "spw_optimizer_step": [pointer, _OUT(Update), size_t],
    "spw_optimizer_masters": [pointer, size_t, pointer, u64],
    "spw_optimizer_read_state": [pointer, _OUT(StateValues)],
    "spw_optimizer_write_state": [pointer, _OUT(StateValues)],
}
_OTHERS = {
    "spw_status_code": (ctypes.c_int, [pointer]),
    "spw_status_message": (text, [pointer]),
    "spw_status_free": (None, [pointer]),
    "spw_free": (None, [pointer]),
    "spw_version": (text, []),
    "spw_engine_options_init": (None, [_OUT(EngineOptions), size_t]),
    "spw_engine_release": (None, [pointer]),
    "spw_tensor_spec_init": (None, [_OUT(TensorSpec), size_t]),
    "spw_store_reader_release": (None, [pointer]),
    "spw_lease_data": (pointer, [pointer]),
    "spw_lease_size_bytes": (u64, [pointer]),
    "spw_lease_release": (None, [pointer, pointer]),
    "spw_clear_prefetch": (None, [pointer]),
    "spw_set_interrupt": (None, [INTERRUPT, INTERRUPT, pointer]),
    "spw_page_bytes": (u64, [pointer]),
    "spw_stream_native": (pointer, [pointer]),
    "spw_stream_release": (None, [pointer]),
    "spw_rule_init": (None, [_OUT(Rule), size_t, i32]),
    "spw_rule_exists": (i32, [_OUT(Rule), i32]),
    "spw_parameter_init": (None, [_OUT(Parameter), size_t]),
    "spw_update_init": (None, [_OUT(Update), size_t]),
    "spw_state_init": (None, [_OUT(StateValues), size_t]),
    "spw_optimizer_release": (None, [pointer]),
    "spw_optimizer_min_pinned_bytes": (u64, [pointer]),
}


def _path() -> str:
    """Returns the path in SPILLWAY_LIBRARY, or else that of the library in the wheel."""
    given = os.environ.get("SPILLWAY_LIBRARY")
    bundled = pathlib.Path(__file__).with_name("lib") / "libspillway.so"
    if not given and not bundled.exists():
        raise ImportError(f"there is no {bundled}: install the wheel (pip install .), or name a build's libspillway.so in "
                          "SPILLWAY_LIBRARY")
    return given or str(bundled)


def _load() -> ctypes.CDLL:
    loaded = ctypes.CDLL(_path())
    for name, arguments in _FALLIBLE.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, pointer
    for name, (result, arguments) in _OTHERS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


library = _load()

# Returns whether Ctrl-C was pressed since the last call. It runs no Python code, because an exception that a signal
# handler raises within a callback would be lost.
_take_ctrl_c = INTERRUPT(ctypes.pythonapi.PyOS_InterruptOccurred)
# libc's raise(), whose argument is the signal's number.
_put_ctrl_c_back = INTERRUPT(ctypes.cast(getattr(ctypes.CDLL(None), "raise"), pointer).value)


def hear_ctrl_c() -> None:
    """Makes Ctrl-C end the calls that the main thread makes through `call`. In other threads, which never receive Ctrl-C, it
    does nothing."""
    if threading.current_thread() is threading.main_thread():
        library.spw_set_interrupt(_take_ctrl_c, _put_ctrl_c_back, signal.SIGINT)


hear_ctrl_c()
atexit.register(library.spw_set_interrupt, INTERRUPT(), INTERRUPT(), None)


class Address(pointer):
    """The address of one of the library's objects, which is released when nothing refers to the Address any more. ctypes
    refers to the arguments of a call until it returns, so the object outlives every call.

    An Address is made before the call that makes the object, and passed to it as its output. So the object has an owner at
    once, wherever the exception of a signal handler breaks the caller off. Python drops an exception that a handler raises
    while the object is released, unless the Address has a list for it (Handle.close).
    """

    _is_exiting = sys.is_finalizing  # at exit the names of this module may be gone before the last Address

    def __init__(self, release: Callable[..., None], *more: Any):
        super().__init__()
        self._release, self._more = release, more
        self.interrupts: list[BaseException] | None = None

    def __del__(self) -> None:
        held, self.value = self.value, None  # a handler runs only after a call, so this is released once
        try:
            if held is None or self._is_exiting():
                return
        except BaseException as interrupt:
            if self.interrupts is not None:
                self.interrupts.append(interrupt)
        try:
            self._release(held, *self._more)
        except BaseException as interrupt:
            if self.interrupts is None:
                raise
            self.interrupts.append(interrupt)


class Handle:
    """Owns one of the library's objects, which any thread may use and any thread may close. It is released once it is closed,
    or this Handle is gone, and no call uses it any more. When the interpreter exits, an object that the call of a daemon
    thread uses is not released at all."""

    def __init__(self, address: Address, closed: str):
        self._addresses = [address]  # empty when closed; list.clear and indexing are atomic
        self._closed = closed
        weakref.finalize(self, self._addresses.clear)

    def get(self) -> Address:
        """Returns the address, to be passed to one call and kept nowhere else. Raises FailedPrecondition if this was closed."""
        try:
            return self._addresses[0]
        except IndexError:
            raise _errors.FailedPrecondition(self._closed) from None

    def close(self) -> None:
        """Releases the object, at the latest when the calls under way have returned. Does nothing if this was closed. Raises
        what a signal handler raises meanwhile, such as KeyboardInterrupt; the object is released nevertheless."""
        interrupts: list[BaseException] = []
        try:
            self._addresses[0].interrupts = interrupts
        except IndexError:
            return
        self._addresses.clear()
        if interrupts:
            raise interrupts.pop()  # the traceback must not refer to a list that has the exception


def version() -> str:
    return library.spw_version().decode()


def check(status: int | None) -> None:
    """Raises the exception for a call's status, and frees the status. Does nothing if it is None."""
    if status is None:
        return
    code = library.spw_status_code(status)
    message = library.spw_status_message(status).decode(errors="replace")
    library.spw_status_free(status)
    raise _errors.BY_CODE.get(code, _errors.Error)(message)


def call(function, *arguments) -> None:
    """Makes a call that Ctrl-C may end. If Ctrl-C ends it, SIGINT's handler runs. If the handler does not raise, the call is
    made again, as in PEP 475."""
    try:
        while True:
            status = function(*arguments)
            if status is None or library.spw_status_code(status) != _errors.Cancelled.code:
                return check(status)
            library.spw_status_free(status)
            signal.raise_signal(signal.SIGINT)
    finally:
        del arguments  # the traceback of an error must not refer to a handle: its owner may be closed before it is dropped


def taken_text(call, *arguments) -> str:
    """Returns the text that `call` outputs through its last argument, and frees the output."""
    out = pointer()
    try:
        check(call(*arguments, ctypes.byref(out)))
    finally:
        del arguments  # as in call()
    try:
        return ctypes.string_at(out.value).decode(errors="replace")
    finally:
        library.spw_free(out)


def taken_bytes(call, *arguments) -> bytes | None:
    """Returns the bytes that `call` outputs through its last two arguments, and frees the output. None: there are none."""
    out, size = pointer(), size_t()
    try:
        check(call(*arguments, ctypes.byref(out), ctypes.byref(size)))
    finally:
        del arguments  # as in call()
    if out.value is None:
        return None
    try:
        return ctypes.string_at(out.value, size.value)
    finally:
        library.spw_free(out)


def new(struct, init, *more):
    """Returns a struct with its default values."""
    made = struct()
    init(ctypes.byref(made), ctypes.sizeof(made), *more)
    return made
