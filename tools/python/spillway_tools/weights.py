# SPDX-License-Identifier: Apache-2.0
"""Writes safetensors files as a stream: first all descriptions, then the bytes in pieces.

The `safetensors` package writes from memory only. This module writes models larger than memory.
"""

import json
from dataclasses import dataclass
from typing import Callable, Iterable

import numpy

from spillway_tools.command import InputError
from spillway_tools.memory import require_address_space

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors package and the C++ side


@dataclass(frozen=True)
class TensorSource:
    """A tensor to be written. `pieces()` yields its bytes, row-major and little endian.

    `origin` names the tensor in messages as the user's file has it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[bytes]]
    origin: str

    @property
    def num_elements(self):
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count

    @property
    def size_bytes(self):
        return self.num_elements * ELEMENT_BYTES[self.dtype]


class WeightsPlan:
    """Plans one file, or shards with an index if the data is larger than `max_shard_bytes`.

    `origin` names the user's file in messages. InputError if a header or the index would be larger
    than readers accept.
    """

    def __init__(self, tensors, max_shard_bytes, origin):
        self._shards = [_aligned(shard) for shard in _plan_shards(tensors, max_shard_bytes)]
        self._headers = [_header(shard) for shard in self._shards]
        self.tensor_bytes = sum(tensor.size_bytes for tensor in tensors)
        self._index = self._make_index() if len(self._shards) > 1 else b""
        largest = max(sum(tensor.size_bytes for tensor in shard) for shard in self._shards)
        require_address_space(largest, origin)
        for what, text in [("header", header) for header in self._headers] + [
            (INDEX_FILE, self._index)
        ]:
            if len(text) > MAX_HEADER_BYTES:
                raise InputError(
                    f"{origin}: its {what} would be written with {len(text)} bytes; at most"
                    f" {MAX_HEADER_BYTES} are read: try another --max-shard-bytes"
                )

    @property
    def file_bytes(self):
        """The size of all files together."""
        headers_bytes = sum(8 + len(header) for header in self._headers)
        return self.tensor_bytes + headers_bytes + len(self._index)

    def write(self, folder, progress):
        for number, shard in enumerate(self._shards):
            _write_file(folder / self._name(number), self._headers[number], shard, progress)
        if self._index:
            (folder / INDEX_FILE).write_bytes(self._index)

    def _name(self, number):
        if len(self._shards) == 1:
            return WEIGHTS_FILE
        return f"model-{number + 1:05d}-of-{len(self._shards):05d}.safetensors"

    def _make_index(self):
        weight_map = {
            tensor.name: self._name(number)
            for number, shard in enumerate(self._shards)
            for tensor in shard
        }
        index = {
            "metadata": {"total_size": self.tensor_bytes},
            "weight_map": dict(sorted(weight_map.items())),
        }
        return (json.dumps(index, indent=2) + "\n").encode()


def _plan_shards(tensors, max_shard_bytes):
    shards = [[]]
    size_bytes = 0
    for tensor in tensors:
        if shards[-1] and size_bytes + tensor.size_bytes > max_shard_bytes:
            shards.append([])
            size_bytes = 0
        shards[-1].append(tensor)
        size_bytes += tensor.size_bytes
    return shards


def _aligned(shard):
    """Returns the tensors in an order in which each begins at a multiple of its element's size.

    Wider types come first. Tensors of the same size keep their order.
    """
    return sorted(shard, key=lambda tensor: -ELEMENT_BYTES[tensor.dtype])


def _header(tensors):
    # "format" says that the tensors are PyTorch's. Older transformers refuse a file without it.
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.size_bytes],
        }
        offset += tensor.size_bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)  # aligns the data to 8 bytes


def _write_file(path, header, tensors, progress):
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for tensor in tensors:
            _write_tensor(file, tensor, progress)


def _write_tensor(file, tensor, progress):
    written = 0
    for piece in tensor.pieces():
        piece = memoryview(piece).cast("B")
        _check_finite(tensor, piece, written)
        file.write(piece)
        written += len(piece)
        progress.add(len(piece))
    if written != tensor.size_bytes:
        raise InputError(
            f"{tensor.origin}: {written} bytes of data where its shape {list(tensor.shape)} and type "
            f"{tensor.dtype} need {tensor.size_bytes}"
        )


def _check_finite(tensor, piece, offset_bytes):
    """InputError if a weight is not finite. `spillway eval` would refuse it, but only later."""
    if tensor.dtype == "BF16":  # the upper half of an fp32
        bits = numpy.frombuffer(piece, "<u2")
        finite = (bits & 0x7F80) != 0x7F80
    else:
        finite = numpy.isfinite(numpy.frombuffer(piece, {"F32": "<f4", "F16": "<f2"}[tensor.dtype]))
    if finite.all():
        return
    element = offset_bytes // ELEMENT_BYTES[tensor.dtype] + int(numpy.argmin(finite))
    raise InputError(
        f"{tensor.origin}: element {element} is infinite or NaN as {tensor.dtype}; every weight must"
        " be a finite number"
    )
