# SPDX-License-Identifier: Apache-2.0
"""The engine, its leases and its streams. include/spillway/engine.h describes each call in full."""

from __future__ import annotations

import ctypes
import json
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spillway import _dlpack
from spillway._errors import FailedPrecondition, InvalidArgument, OutOfRange
from spillway._folders import Store, folders_of
from spillway._library import (
    NOWHERE,
    Address,
    EngineOptions,
    Handle,
    TensorSpec,
    Use,
    call,
    check,
    hear_ctrl_c,
    i64,
    library,
    new,
    pointer,
    size_t,
    taken_bytes,
    taken_text,
    u8,
    u32,
    u64,
)
from spillway._reader import call_with_reader
from spillway._sizes import parse_size

DTYPES = ("f32", "f16", "bf16", "u8")
ROLES = ("parameter", "gradient", "master_weight", "moment", "activation")
ACCESSES = ("read", "write", "read-write", "discard")
TIERS = ("device", "pinned", "nvme")
_MODES = ("create", "open_or_create", "scratch")
_IO = ("auto", "uring", "posix")
_CALIBRATIONS = ("keep", "if_none", "now")


def number_of(value: str, names: Sequence[str], what: str) -> int:
    """Returns the position of `value` in `names`. Raises InvalidArgument, which lists the names, if it is not there."""
    if value in names:
        return names.index(value)
    raise InvalidArgument(f"{what} is {value!r}: it must be one of {', '.join(names)}")


def whole_number(value: int, what: str, most: int = 2**64 - 1, least: int = 0) -> int:
    """Returns an int that a call of the library can take: ctypes would cut off its high bits. Raises InvalidArgument, whose
    message names `what`, if it is out of range, and TypeError if it is no int."""
    number = operator.index(value)
    if not least <= number <= most:
        raise InvalidArgument(f"{what} is {number}: it must be from {least} to {most}")
    return number


def _id(value: int) -> int:
    return whole_number(value, "the id of a tensor", 2**32 - 1)


def text_of(value: str, what: str) -> bytes:
    """Returns text that a call of the library can take. Raises InvalidArgument, whose message names `what`, if it has a NUL,
    where the library's text would end."""
    if "\0" in value:
        raise InvalidArgument(f"{what} is {value!r}: it must not have the character NUL")
    return value.encode()


def _device_of(text: str) -> tuple[int, int]:
    kind, _, index = text.partition(":")
    if kind == "host" and not index:
        return 0, 0
    if kind == "cuda" and (not index or index.isdecimal()):
        return 1, whole_number(int(index or 0), "the number of a GPU", 2**31 - 1)
    raise InvalidArgument(f"device is {text!r}: it must be 'host', 'cuda' or 'cuda:N'")


class Stream:
    """A queue of work on the device, which runs in the order of its launch. Engine.stream and Engine.wrap_stream make one."""

    def __init__(self, address: Address):
        self._handle = Handle(address, "the stream was closed: its engine was closed, or the process exits")

    def synchronize(self) -> None:
        """Waits until all work launched so far has run."""
        check(library.spw_stream_synchronize(self._handle.get()))

    @property
    def native(self) -> int | None:
        """The cudaStream_t as an int; None on the host device."""
        return library.spw_stream_native(self._handle.get())


class Lease:
    """A hold on one tile. The tile's bytes are contiguous and stay where they are until the lease ends.

    A lease is a context manager, a buffer (`memoryview(lease)`, of bytes) and a DLPack exporter. `torch.from_dlpack(lease)`
    takes the lease over: it ends with the tensor. A view of the buffer is void once the lease has ended. It is also void in
    a process that was forked from the engine's: an access there may end the process. A lease that nothing refers to any
    more ends as well. A lease that was acquired with a stream ends when the work launched there so far has run, unless
    release() or __dlpack__() is given another stream. A lease keeps its engine and its stream alive until it ends. `id`,
    `tile` and `size_bytes` say what it is a lease on.
    """

    # Each instance is of a subclass that is also a ctypes array over the lease's bytes: before Python 3.12 a class written
    # in Python cannot be a buffer.
    _address: Address  # empty once the lease has ended, or has been taken over

    @property
    def address(self) -> int:
        """The address of the first byte; for a lease on a GPU it is a device address."""
        if os.getpid() != self._engine._process:
            raise FailedPrecondition(f"the lease on tile {self.tile} of tensor {self.id} is of process {self._engine._process}, "
                                     f"from which process {os.getpid()} was forked: its bytes are only there")
        return library.spw_lease_data(self._live())

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes of a lease on a GPU, as torch.as_tensor, CuPy and Numba accept arrays. Work on the array must be
        launched on the lease's stream, and the caller must still end the lease. Raises AttributeError if the lease is not
        on a GPU."""
        if self._on_host or self._engine._device[0] == 0:
            raise AttributeError("the lease is not on a GPU: it is a buffer, memoryview(lease)")
        return {"version": 3, "shape": (self.size_bytes,), "typestr": "|u1", "data": (self.address, False), "strides": None}

    def _live(self) -> int:
        address = self._address.value
        if address is None:
            raise FailedPrecondition(f"the lease on tile {self.tile} of tensor {self.id} has ended")
        return address

    def release(self, stream: Stream | None = None) -> None:
        """Ends the lease when the work launched on `stream` so far has run. None: the stream that the lease was acquired with;
        if there was none, the lease ends at once. Does nothing if it has ended, or if a consumer of __dlpack__ has taken it
        over."""
        if self._address.value is None:
            self._end()  # a capsule that no consumer has taken
            return
        _release(self._address, stream._handle.get() if stream is not None else None)
        self._stream = None  # a lease that has ended keeps no engine open
        self._end.detach()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a lease cannot be copied or pickled: take another with Engine.acquire, or copy its bytes, as "
                        "bytes(lease)")

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        """Returns a capsule of the tile, shaped {rows of the tile, ...}. The consumer of the capsule takes the lease over. If
        none does, the lease ends with release(), or once neither the capsule nor this object is referred to.

        If the lease was acquired with a stream, this call waits until the work launched there has run, unless `stream` is
        that stream. `stream` is the consumer's, as DLPack defines it, and counts only for a lease on a GPU: None or 1 for
        the legacy default stream, or a cudaStream_t, which must live as long as the tensor. Once the consumer has deleted
        the tensor, the lease ends when the work launched on that stream so far has run. With -1 it ends as release() ends
        it. Raises BufferError for 0 and for 2, the default stream of each thread."""
        if copy:
            raise InvalidArgument("a lease is exported without a copy")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the lease is on the DLPack device {self.__dlpack_device__()}, and is exported to no other "
                              f"without a copy: {tuple(dl_device)} was asked for")
        consumer = self._stream_of(stream)
        on = consumer._handle.get() if consumer is not None else None
        tensor = Address(_dlpack.delete)
        out = ctypes.byref(tensor)
        lease = self._live()
        # Python runs a signal handler only after a call. So if one raises, either this object, `tensor` or the capsule owns
        # the lease.
        self._address.value = None
        try:
            try:
                check(library.spw_lease_dlpack_on(lease, on, out))
            finally:
                if tensor.value is None:  # the call failed, and gave the lease back
                    self._address.value = lease
            # A second reference, which release() and a finalizer drop: they run with no error set, and a consumer that refuses
            # the capsule, which may hold the only other reference, drops it with its error set.
            held = [_dlpack.capsule(tensor.value)]
            end = weakref.finalize(self, held.clear)
            end.atexit = False
            self._end.detach()
            self._end, self._stream = end, None
            tensor.value = None
            _dlpack.set_destructor(held[0], _dlpack.DESTRUCTOR)
            return held[0]
        finally:
            tensor = out = None  # the traceback of an error, which may be kept, must not refer to the tensor

    def _stream_of(self, consumer: int | None) -> Stream | None:
        """Returns the stream of a consumer of __dlpack__; None: the one that the lease was acquired with, if any."""
        if self.__dlpack_device__()[0] == 1 or consumer == -1:
            return None
        native = 1 if consumer is None else consumer
        if native < 1 or native == 2:
            raise BufferError(f"stream is {native}: it must be 1, the legacy default stream, or a cudaStream_t; a lease cannot "
                              "end on the default stream of each thread")
        if self._stream is not None and (self._stream.native or 1) == native:
            return self._stream
        return self._engine._stream_of(native)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = (0, 0) if self._on_host else self._engine._device
        return (2, index) if kind else (1, 0)


def _release(address: Address, stream: Address | None = None) -> None:
    """Ends the lease, if it has not ended. A signal handler cannot run between the two statements, because Python runs it
    only after a call. So no exception of a handler's leaves a lease that has no owner, or that is released twice."""
    held, address.value = address.value, None
    library.spw_lease_release(held, stream)


_CLASSES: dict[int, type] = {}


def _class_of(size: int) -> type:
    if size not in _CLASSES:
        array = u8 * size
        _CLASSES[size] = type(array)("Lease", (Lease, array), {"__module__": "spillway", "__doc__": Lease.__doc__})
    return _CLASSES[size]


class Engine:
    """A store in folders (or no store), pinned memory and a device, and the tensors in them.

    `store`: a folder, or a list of folders, one on each drive, in the same order each time; None: all tensors rest in pinned
    memory. `mode`: "create" (an existing store is an error), "open_or_create" or "scratch" (the store is removed when the
    engine ends). `device`: "host", "cuda" or "cuda:N". Budgets (`store_bytes` over all folders) are hard limits; None: no
    limit. Sizes are bytes, as a number or as a text such as "2GiB". `page_bytes`: the largest transfer, a multiple of 4 KiB;
    None: 1 MiB, or what the store has. `io`: "auto", "uring" or "posix". `calibration`: whether the drives are measured, some
    6 s each: "keep" (no), "if_none" (those that never were) or "now" (all). Each drive gets bytes in proportion to its rates,
    or an equal share if one was never measured. `queue_depth`: the most reads in flight, and the most writes, on a drive that
    was not measured. `plan_steps`: whether steps that repeat are
    planned. `placement`: the tier ("device", "pinned", "nvme") in which tensors of a role ("parameter", "gradient",
    "master_weight", "moment", "activation") rest. `timeline_events`: how many of the newest events are recorded.
    Calls may be made from any thread. In a process that was forked from this one every call raises FailedPrecondition.
    """

    def __init__(self, store: Store = None, *, mode: str = "create", device: str = "host",
                 device_bytes: int | str | None = None, pinned_bytes: int | str | None = None,
                 store_bytes: int | str | None = None, page_bytes: int | str | None = None, io: str = "auto",
                 calibration: str = "keep", queue_depth: int = 32, plan_steps: bool = True,
                 placement: dict[str, str] | None = None, timeline_events: int = 0):
        hear_ctrl_c()
        folders = folders_of(store)
        options = new(EngineOptions, library.spw_engine_options_init)
        paths = (ctypes.c_char_p * max(1, len(folders)))(*[os.fsencode(folder) for folder in folders])
        options.store, options.num_store = paths, len(folders)
        options.mode = number_of(mode, _MODES, "mode")
        options.io = number_of(io, _IO, "io")
        options.calibration = number_of(calibration, _CALIBRATIONS, "calibration")
        self._process = os.getpid()
        self._device = _device_of(device)
        options.device_kind, options.device_index = self._device
        options.device_bytes = parse_size(device_bytes, "device_bytes")
        options.pinned_bytes = parse_size(pinned_bytes, "pinned_bytes")
        options.store_bytes = parse_size(store_bytes, "store_bytes")
        options.page_bytes = 0 if page_bytes is None else parse_size(page_bytes, "page_bytes")
        options.plan_steps = int(plan_steps)
        options.queue_depth = whole_number(queue_depth, "queue_depth", 2**31 - 1, -2**31)
        for role in range(len(ROLES)):
            options.placement[role] = NOWHERE
        for role, tier in (placement or {}).items():
            options.placement[number_of(role, ROLES, "a role of placement")] = number_of(tier, TIERS, "a tier of placement")
        options.timeline_events = whole_number(timeline_events, "timeline_events")
        address = Address(library.spw_engine_release)
        call(library.spw_engine_open, ctypes.byref(options), ctypes.byref(address))
        self._handle = Handle(address, "the engine was closed")
        # Streams of consumers of leases, by cudaStream_t. They are kept because each has a thread, and because the end of a
        # stream waits for the leases that end on it.
        self._consumers: dict[int, Stream] = {}

    def _live(self) -> ctypes.c_void_p:
        return self._handle.get()

    def _check_process(self) -> None:
        """Raises FailedPrecondition in a forked process, for the calls of the library that return no status."""
        check(library.spw_prefetch(self._live(), None, 0))

    def close(self) -> None:
        """Releases the engine. The engine ends, and its store can be opened again, once its leases and streams have ended and
        the calls of other threads have returned. What was not committed is lost. If a signal handler raises meanwhile, as
        for Ctrl-C, the engine is released and this raises what the handler raised."""
        try:
            while self._consumers:
                self._consumers.popitem()[1]._handle.close()
        finally:
            self._consumers.clear()
            self._handle.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Tensors ---

    def register(self, name: str, dtype: str, shape: Iterable[int], *, role: str = "parameter", tile_rows: int = 0,
                 transient: bool = False, data: Any = None) -> int:
        """Registers a tensor and returns its id. A tensor that the last commit holds has the bytes of that commit. A new
        tensor is zeros, or is filled from `data`: a buffer of its bytes, or a function data(offset, out) that fills the
        memoryview `out` with the tensor's bytes from `offset` on. If the function raises, or if a signal handler raises
        before the tensor is filled, this raises that exception and the tensor is not registered. If a signal handler raises
        after that, this raises its exception, but the tensor is registered. In the main thread, other exceptions that Python
        ignores during the call reach sys.unraisablehook when it returns."""
        dimensions = [whole_number(dimension, f"a dimension of {name!r}", 2**63 - 1, -2**63) for dimension in shape]
        spec = spec_of(name, dtype, dimensions, role, tile_rows, transient)
        fill = data if data is None or callable(data) else _filler(name, dtype, dimensions, data)
        id = u32()

        def make(reader: Any = None, user: Any = None) -> int | None:
            return library.spw_register(self._live(), ctypes.byref(spec), reader, user, ctypes.byref(id))

        call(make if fill is None else lambda: call_with_reader(make, fill))
        return id.value

    def unregister(self, id: int) -> None:
        """Removes a tensor: the next commit does not hold it."""
        check(library.spw_unregister(self._live(), _id(id)))

    def forget(self, name: str) -> None:
        """Removes a tensor by name. The tensor may be registered or only in the last commit; NotFound: it is in neither."""
        check(library.spw_forget(self._live(), text_of(name, "the name of a tensor")))

    def find(self, name: str) -> int:
        """Returns the id of a registered tensor. Raises NotFound if there is none of this name."""
        id = u32()
        check(library.spw_find(self._live(), text_of(name, "the name of a tensor"), ctypes.byref(id)))
        return id.value

    def spec(self, id: int) -> dict[str, Any]:
        """Returns the name, dtype, shape, role, tile_rows, transient, num_tiles and size_bytes of a tensor."""
        return json.loads(taken_text(library.spw_tensor_json, self._live(), _id(id)))

    # --- Leases ---

    def acquire(self, id: int, tile: int = 0, access: str = "read", stream: Stream | None = None) -> Lease:
        """Leases a tile on the device. Waits for its bytes and for room. If a stream is given, the stream waits for the
        bytes instead of the caller, and the lease ends on it (Lease.release)."""
        return self._take(library.spw_acquire, id, tile, access, stream, on_host=False)

    def acquire_host(self, id: int, tile: int = 0, access: str = "read", stream: Stream | None = None) -> Lease:
        """Leases a tile in pinned memory. The caller waits for the bytes and for room, even if a stream is given, on which
        the lease ends (Lease.release)."""
        return self._take(library.spw_acquire_host, id, tile, access, stream, on_host=True)

    def _take(self, acquire: Any, id: int, tile: int, access: str, stream: Stream | None, on_host: bool) -> Lease:
        address = Address(library.spw_lease_release, None)
        try:
            call(acquire, self._live(), _id(id), whole_number(tile, "tile"), number_of(access, ACCESSES, "access"),
                 stream._handle.get() if stream is not None else None, ctypes.byref(address))
            size = library.spw_lease_size_bytes(address)
            # The CPU cannot read GPU memory, so the buffer of such a lease is empty.
            is_visible = on_host or self._device[0] == 0
            lease = _class_of(size if is_visible else 0).from_address(library.spw_lease_data(address))
            lease._address, lease._engine, lease._stream, lease._on_host = address, self, stream, on_host
            lease.id, lease.tile, lease.size_bytes = id, tile, size
            lease._end = weakref.finalize(lease, _release, address)
            # A daemon thread may be using the bytes when the process exits.
            lease._end.atexit = not threading.current_thread().daemon
            return lease
        finally:
            address = lease = None  # the traceback of an error, which may be kept, must not refer to the lease

    def prefetch(self, uses: Iterable[tuple[int, int, str, str]]) -> None:
        """Declares future uses, in order. Each is (id, tile, tier, access)."""
        given = [Use(_id(id), number_of(tier, TIERS, "tier"), number_of(access, ACCESSES, "access"),
                     whole_number(tile, "tile", 2**32 - 1))
                 for id, tile, tier, access in uses]
        call(library.spw_prefetch, self._live(), (Use * max(1, len(given)))(*given), len(given))

    def clear_prefetch(self) -> None:
        self._check_process()
        library.spw_clear_prefetch(self._live())

    def evict(self, id: int, tile: int = 0) -> None:
        """Starts to move a tile to the lowest tier, or to the tier where its role rests, so that room is made now."""
        call(library.spw_evict, self._live(), _id(id), whole_number(tile, "tile"))

    def discard(self, id: int, tile: int = 0) -> None:
        """Discards the bytes of a transient tensor's tile: it reads as zeros afterwards."""
        check(library.spw_discard(self._live(), _id(id), whole_number(tile, "tile")))

    def end_step(self) -> None:
        """Ends a step. Steps that repeat are planned. Raises the failure of a transfer that no caller has waited for."""
        call(library.spw_end_step, self._live())

    def wait_for_plan(self) -> None:
        """Waits until no plan is being made. Right after end_step it also starts to follow the plan of the next step."""
        call(library.spw_wait_for_plan, self._live())

    def stream(self) -> Stream:
        """Makes a new stream on the device."""
        address = Address(library.spw_stream_release)
        check(library.spw_stream_create(self._live(), ctypes.byref(address)))
        return Stream(address)

    def wrap_stream(self, native: int) -> Stream:
        """Wraps a cudaStream_t that the caller made on the engine's device. It must outlive the returned Stream and
        the leases acquired with it. Raises InvalidArgument for cudaStreamPerThread (2), which differs from thread to
        thread. No lease may be acquired or end on it while it is captured into a CUDA graph."""
        address = Address(library.spw_stream_release)
        check(library.spw_stream_wrap(self._live(), native, ctypes.byref(address)))
        return Stream(address)

    def _stream_of(self, native: int) -> Stream:
        """Returns the stream of a consumer of a lease."""
        stream = self._consumers.get(native)
        return stream if stream is not None else self._consumers.setdefault(native, self.wrap_stream(native))

    # --- Whole tensors, a tile at a time in pinned memory ---

    def read(self, id: int, offset: int = 0, out: Any = None) -> Any:
        """Fills the writable buffer `out` with the tensor's bytes from `offset` on, and returns it. Without `out` it
        returns all bytes from `offset` on in a new bytearray."""
        if out is None:
            spec = self.spec(id)
            if not 0 <= offset <= spec["size_bytes"]:
                raise OutOfRange(f"read: offset {offset} is not within tensor {spec['name']!r}, which has "
                                 f"{spec['size_bytes']} bytes")
            out = bytearray(spec["size_bytes"] - offset)
        view = memoryview(out).cast("B")
        bytes_out = (u8 * view.nbytes).from_buffer(view) if view.nbytes else None
        call(library.spw_read, self._live(), _id(id), whole_number(offset, "offset"), bytes_out, view.nbytes)
        return out

    def write(self, id: int, data: Any, offset: int = 0) -> None:
        """Replaces the tensor's bytes from `offset` on with the bytes of the buffer `data`."""
        address, size, keep = _bytes_of(data)
        check(library.spw_write(self._live(), _id(id), whole_number(offset, "offset"), address, size))
        del keep

    # --- Durability ---

    def commit(self, user_state: bytes = b"") -> None:
        """Makes every tensor that is not transient durable, with `user_state`, atomically."""
        call(library.spw_commit, self._live(), ctypes.c_char_p(user_state), len(user_state))

    def user_state(self) -> bytes | None:
        """Returns the user state of the last commit; None: never committed."""
        return taken_bytes(library.spw_user_state, self._live())

    def snapshot(self, label: str) -> None:
        """Keeps the last commit under a label. Copies nothing."""
        call(library.spw_snapshot, self._live(), text_of(label, "label"))

    def snapshots(self) -> list[dict[str, Any]]:
        """Returns the label, number and time of each snapshot, the oldest commit first."""
        return json.loads(taken_text(library.spw_snapshots_json, self._live()))

    def snapshot_user_state(self, label: str) -> bytes:
        """Returns the user state of a snapshot's commit. Raises NotFound if there is no such snapshot."""
        return taken_bytes(library.spw_snapshot_user_state, self._live(), text_of(label, "label")) or b""

    def restore(self, label: str) -> None:
        """Goes back to a snapshot: its state becomes a new commit."""
        call(library.spw_restore, self._live(), text_of(label, "label"))

    def drop(self, label: str) -> None:
        """Removes a snapshot."""
        check(library.spw_drop(self._live(), text_of(label, "label")))

    @property
    def store_id(self) -> str:
        """The store's id: 32 hexadecimal digits, drawn at random when the store was made; "" if there is no store."""
        return taken_text(library.spw_store_id, self._live())

    @property
    def commit_number(self) -> int:
        """The number of the last commit, counted from 1; 0: never committed."""
        number = u64()
        check(library.spw_commit_number(self._live(), ctypes.byref(number)))
        return number.value

    # --- What happened ---

    def stats(self) -> dict[str, Any]:
        """Returns the counters of the engine since it was opened. include/spillway/stats.h describes them."""
        return json.loads(taken_text(library.spw_stats_json, self._live()))

    def take_timeline(self) -> dict[str, Any]:
        """Returns the events recorded since the last call; empty if `timeline_events` is 0."""
        return json.loads(taken_text(library.spw_take_timeline_json, self._live()))

    @property
    def page_bytes(self) -> int:
        self._check_process()
        return library.spw_page_bytes(self._live())


def spec_of(name: str, dtype: str, shape: Sequence[int], role: str, tile_rows: int, transient: bool = False) -> TensorSpec:
    """Returns the library's description of a tensor."""
    spec = new(TensorSpec, library.spw_tensor_spec_init)
    spec.name = text_of(name, "the name of a tensor")
    spec.dtype = number_of(dtype, DTYPES, "dtype")
    spec.role = number_of(role, ROLES, "role")
    spec.shape, spec.rank = (i64 * max(1, len(shape)))(*shape), len(shape)
    spec.tile_rows = whole_number(tile_rows, f"tile_rows of {name!r}", 2**63 - 1, -2**63)
    spec.transient = int(transient)
    return spec


def _bytes_of(data: Any) -> tuple[int | None, int, Any]:
    """Returns the address and size of a buffer's bytes, and an object that must stay alive while they are used."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise InvalidArgument("data is not contiguous: its bytes would have to be copied")
    view = view.cast("B") if view.nbytes else view
    if view.nbytes == 0:
        return None, 0, view
    if view.readonly:
        held = bytes(view) if not isinstance(data, bytes) else data
        return ctypes.cast(ctypes.c_char_p(held), pointer).value, view.nbytes, held
    array = (u8 * view.nbytes).from_buffer(view)
    return ctypes.addressof(array), view.nbytes, array


def _filler(name: str, dtype: str, shape: Sequence[int], data: Any) -> Callable[[int, memoryview], None]:
    view = memoryview(data)
    size = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1}[dtype]
    for dimension in shape:
        size *= dimension
    if view.nbytes != size:
        raise InvalidArgument(f"tensor {name!r} has {size} bytes, and data has {view.nbytes}")
    if not view.c_contiguous:
        raise InvalidArgument(f"data for tensor {name!r} is not contiguous")
    content = view.cast("B") if view.nbytes else view

    def fill(offset: int, out: memoryview) -> None:
        out[:] = content[offset:offset + out.nbytes]

    return fill
