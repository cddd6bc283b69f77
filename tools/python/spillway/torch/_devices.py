# SPDX-License-Identifier: Apache-2.0
"""Leases tensors of the engine for operations: in pinned memory for the CPU, in a GPU's memory for that GPU."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

import spillway
import torch


class Cpu:
    """Leases tensors in pinned memory."""

    def __init__(self, engine: spillway.Engine):
        self._engine = engine
        self.torch = torch.device("cpu")

    def close(self) -> None:
        pass

    @contextlib.contextmanager
    def leased(self, id: int, access: str, size_bytes: int) -> Iterator[torch.Tensor]:
        """Yields the first `size_bytes` bytes of the tensor's only tile. They are void after the block."""
        with self._engine.acquire_host(id, 0, access) as lease:
            memory = (ctypes.c_uint8 * size_bytes).from_address(lease.address)
            yield torch.frombuffer(memory, dtype=torch.uint8, count=size_bytes)


class Gpu:
    """Leases tensors in the GPU's memory, on PyTorch's current stream. Work that is launched on that stream waits for the
    bytes, and the bytes stay until it has run. The caller waits only for room."""

    def __init__(self, engine: spillway.Engine, index: int):
        self._engine = engine
        self.torch = torch.device("cuda", index)
        self._lock = threading.Lock()
        self._streams: dict[int, spillway.Stream] = {}  # by cudaStream_t; PyTorch takes them from a pool

    def close(self) -> None:
        """Releases the streams, because they keep the engine alive. Waits for the leases that end on them, which needs nothing
        of a cudaStream_t: its owner may have destroyed it."""
        with self._lock:
            streams, self._streams = self._streams, {}
        streams.clear()

    @contextlib.contextmanager
    def leased(self, id: int, access: str, size_bytes: int) -> Iterator[torch.Tensor]:
        """Like Cpu.leased. The lease does not wait for work on streams other than the current one."""
        stream = self._stream()
        lease = self._engine.acquire(id, 0, access, stream)
        try:
            yield torch.as_tensor(lease, device=self.torch)[:size_bytes]
        finally:
            lease.release(stream)

    def _stream(self) -> spillway.Stream:
        with torch.cuda.device(self.torch):
            is_capturing = torch.cuda.is_current_stream_capturing()
        if is_capturing:
            raise spillway.FailedPrecondition("a CUDA graph cannot capture operations on tensors in the engine: their addresses "
                                              "change from one run to the next")
        native = torch.cuda.current_stream(self.torch).cuda_stream
        with self._lock:
            if native not in self._streams:
                self._streams[native] = self._engine.wrap_stream(native)
            return self._streams[native]


def device_of(wanted: str | torch.device | None) -> torch.device:
    """Returns the device of a run that was requested as "cpu", "cuda" or "cuda:1". None: the device on which PyTorch makes
    tensors, if that is one of these, else the CPU. Raises InvalidArgument for another kind of device."""
    if wanted is None:
        default = torch.empty(0).device
        wanted = default if default.type == "cuda" else "cpu"
    try:
        device = torch.device("cpu" if wanted == "host" else wanted)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise spillway.InvalidArgument(f"device is {str(wanted)!r}: it must be 'cpu', 'cuda' or 'cuda:N'")
    if device.type == "cpu":
        return torch.device("cpu")
    if device.index is not None:
        return device
    # If there is no GPU, opening the engine fails and gives the reason.
    return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
