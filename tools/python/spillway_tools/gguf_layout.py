# SPDX-License-Identifier: Apache-2.0
"""A look at the layout of a GGUF file before the gguf package reads it.

The package believes every length and count. It loops 2^40 times over an array of 2^40 entries that
are not there, and makes Python objects of some hundred bytes of each entry. Here each length is held
against the file and against limits that no model comes near; nothing is read but lengths and types.
The format is that of ggml's docs/gguf.md, versions 2 and 3, little endian.
"""

import mmap
import struct

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from spillway_tools.command import InputError, format_bytes, shorten

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_METADATA_BYTES = 256 << 20
_MAX_KEYS = 1 << 16
# A vocabulary of 256,000 tokens has 256,000 types and some 500,000 merges beside it.
_MAX_ENTRIES = 1 << 21
_MAX_TENSORS = 1 << 20
_MAX_KEY_BYTES = (1 << 16) - 1
_MAX_NAME_BYTES = 1 << 10
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4
_SCALAR_BYTES = {
    GGUFValueType.UINT8: 1,
    GGUFValueType.INT8: 1,
    GGUFValueType.BOOL: 1,
    GGUFValueType.UINT16: 2,
    GGUFValueType.INT16: 2,
    GGUFValueType.UINT32: 4,
    GGUFValueType.INT32: 4,
    GGUFValueType.FLOAT32: 4,
    GGUFValueType.UINT64: 8,
    GGUFValueType.INT64: 8,
    GGUFValueType.FLOAT64: 8,
}


class _Fault(Exception):
    """What is wrong, as the message goes on after the file's name."""


def check_layout(file, origin):
    """InputError unless every length in `file`, open for reading, is one that it can have."""
    if file.read(4) != b"GGUF":  # an empty file could not be mapped, either
        raise InputError(f"{origin}: not a valid GGUF file: it does not start with GGUF")
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Layout(data).check()
    except _Fault as fault:
        raise InputError(f"{origin}: not a valid GGUF file: {fault}") from None


class _Layout:
    def __init__(self, data):
        self._data = data
        self._at = 0
        self._end = min(len(data), _MAX_METADATA_BYTES)
        self._alignment = _DEFAULT_ALIGNMENT
        self._num_entries = 0

    def check(self):
        self._skip(4, "the magic")
        version = self._number("<I", "the version")
        if version & 0xFFFF == 0:
            raise _Fault("its byte order is big endian, which is not supported")
        if version not in _VERSIONS:
            raise _Fault(f"its version is {version}; 2 and 3 are supported")
        num_tensors = self._count(_MAX_TENSORS, "tensors")
        num_keys = self._count(_MAX_KEYS, "keys")
        for number in range(num_keys):
            self._check_key(f"key {number + 1} of {num_keys}")
        tensors = [
            self._tensor(f"tensor {number + 1} of {num_tensors}") for number in range(num_tensors)
        ]
        self._check_places(tensors)

    def _check_key(self, what):
        key = self._string(_MAX_KEY_BYTES, what)
        what = f"key {key}"
        kind = self._type(what)
        if key == "general.alignment":
            self._check_alignment(kind)
        self._skip_value(kind, what, depth=0)

    def _check_alignment(self, kind):
        if kind != GGUFValueType.UINT32:
            raise _Fault(f"general.alignment is of type {kind.name}; UINT32 is expected")
        value = self._number("<I", "general.alignment")
        self._at -= 4
        if value == 0 or value & (value - 1) != 0:
            raise _Fault(f"general.alignment is {value}; a power of two is expected")
        self._alignment = value

    def _skip_value(self, kind, what, depth):
        if kind in _SCALAR_BYTES:
            self._skip(_SCALAR_BYTES[kind], what)
        elif kind == GGUFValueType.STRING:
            self._skip(self._number("<Q", what), what)
        else:
            self._skip_array(what, depth)

    def _skip_array(self, what, depth):
        if depth == _MAX_ARRAY_DEPTH:
            raise _Fault(f"{what}: arrays are nested more than {_MAX_ARRAY_DEPTH} deep")
        kind = self._type(what)
        count = self._number("<Q", what)
        self._num_entries += count
        if self._num_entries > _MAX_ENTRIES:
            raise _Fault(
                f"{what}: with {count} entries its arrays have {self._num_entries}; at most"
                f" {_MAX_ENTRIES} are supported"
            )
        if kind in _SCALAR_BYTES:
            self._skip(count * _SCALAR_BYTES[kind], what)
            return
        for _ in range(count):
            self._skip_value(kind, what, depth + 1)

    def _tensor(self, what):
        """The name, first byte and number of bytes of a tensor."""
        name = self._string(_MAX_NAME_BYTES, what)
        what = f"tensor {name}"
        num_dimensions = self._number("<I", what)
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise _Fault(
                f"{what}: has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are supported"
            )
        shape = [self._number("<Q", what) for _ in range(num_dimensions)]
        number = self._number("<I", what)
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise _Fault(f"{what}: its type {number} is not known") from None
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[0] % block_elements != 0:
            raise _Fault(
                f"{what}: rows of {shape[0]} elements are no multiple of the {block_elements} in a"
                f" block of type {kind.name}"
            )
        size_bytes = block_bytes * (shape[0] // block_elements)
        for dimension in shape[1:]:
            size_bytes *= dimension
        return what, self._number("<Q", what), size_bytes

    def _check_places(self, tensors):
        """Each tensor's bytes are in the file and none of them is another's."""
        first = -(-self._at // self._alignment) * self._alignment
        num_bytes = max(0, len(self._data) - first)
        end = 0
        for what, offset, size_bytes in sorted(tensors, key=lambda tensor: tensor[1:]):
            if offset % self._alignment != 0:
                raise _Fault(
                    f"{what}: begins at data byte {offset}, no multiple of the alignment,"
                    f" {self._alignment}"
                )
            if offset < end:
                raise _Fault(
                    f"{what}: begins at data byte {offset}, inside the tensor before it, which"
                    f" ends at {end}"
                )
            end = offset + size_bytes
            if end > num_bytes:
                raise _Fault(f"{what}: ends at data byte {end}; the file has {num_bytes}")

    def _count(self, maximum, what):
        count = self._number("<Q", f"the number of {what}")
        if count > maximum:
            raise _Fault(f"it says that it has {count} {what}; at most {maximum} are supported")
        return count

    def _string(self, max_bytes, what):
        num_bytes = self._number("<Q", what)
        if num_bytes > max_bytes:
            raise _Fault(
                f"{what}: its name has {num_bytes} bytes; at most {max_bytes} are expected"
            )
        begin = self._at
        self._skip(num_bytes, what)
        return shorten(self._data[begin : self._at].decode("utf-8", "replace"))

    def _type(self, what):
        number = self._number("<I", what)
        try:
            return GGUFValueType(number)
        except ValueError:
            raise _Fault(f"{what}: its type {number} is not known") from None

    def _number(self, form, what):
        begin = self._at
        self._skip(struct.calcsize(form), what)
        return struct.unpack_from(form, self._data, begin)[0]

    def _skip(self, num_bytes, what):
        if num_bytes > self._end - self._at:
            if self._end < len(self._data):
                raise _Fault(f"{what}: the metadata has more than {format_bytes(self._end)}")
            raise _Fault(
                f"{what}: needs {num_bytes} bytes from byte {self._at} on; the file has {self._end}"
            )
        self._at += num_bytes
