# SPDX-License-Identifier: Apache-2.0
"""Safetensors written as a stream: tensors are described first, then their bytes come in pieces.

The `safetensors` package writes from memory only; a model larger than memory passes through here.
"""

import json
from dataclasses import dataclass
from typing import Callable, Iterable

import numpy

from spillway_tools.command import InputError

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
DEFAULT_MAX_SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True)
class TensorSource:
    """A tensor to be written: `pieces()` yields its bytes, row-major and little endian.

    `origin` says in messages what it was in the user's file.
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


def write_weights(folder, tensors, max_shard_bytes, progress):
    """Writes one file, or shards with an index when the data is larger than `max_shard_bytes`."""
    shards = _plan_shards(tensors, max_shard_bytes)
    if len(shards) == 1:
        _write_file(folder / WEIGHTS_FILE, shards[0], progress)
        return
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_file(folder / name, shard, progress)
        weight_map.update({tensor.name: name for tensor in shard})
    index = {
        "metadata": {"total_size": sum(tensor.size_bytes for tensor in tensors)},
        "weight_map": dict(sorted(weight_map.items())),
    }
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


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


def _write_file(path, tensors, progress):
    # "format" says that the tensors are PyTorch's; older transformers refuse a file without it.
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
    text += b" " * (-len(text) % 8)  # data aligned to 8 bytes
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
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
    """`spillway eval` would refuse a weight that is not finite, after all has been copied."""
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
