# SPDX-License-Identifier: Apache-2.0
"""Reads the header of a GGUF file: the values of the requested keys, and where the tensors are.

The gguf package's reader trusts every length and count. It loops 2^40 times over an array that
claims 2^40 entries, and makes Python objects of some hundred bytes for each entry. It also maps the
file, so that a file that shrinks ends the process. This reader checks each length against the file
and against limits that no model comes near, and skips values that were not requested. The format is
that of ggml's docs/gguf.md, versions 2 and 3, little endian.
"""

import os
import struct
from dataclasses import dataclass, replace

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from spillway_tools.command import EXCERPT_CHARACTERS, InputError, format_bytes, os_errors, shorten

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_METADATA_BYTES = 256 << 20
_MAX_KEYS = 1 << 16
# A vocabulary of 256,000 tokens also has 256,000 types and some 500,000 merges.
_MAX_ENTRIES = 1 << 21
_MAX_TENSORS = 1 << 20
_MAX_KEY_BYTES = (1 << 16) - 1
_MAX_NAME_BYTES = 1 << 10
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4
_SCALAR_FORMS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor's description. `shape` is row-major; `offset` is in bytes from the file's start."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """`fields` has the values of the requested keys that the file has."""

    fields: dict
    tensors: list[GgufTensor]


class _Fault(Exception):
    """What is wrong. Its text follows the file's name in the message."""


def read_header(file, origin, keys):
    """Returns the GgufHeader of `file`, which is open for reading. InputError if it is invalid."""
    try:
        with os_errors(f"{origin}: cannot be read"):
            return _Reader(file, keys).read()
    except _Fault as fault:
        raise InputError(f"{origin}: not a valid GGUF file: {fault}") from None


class _Reader:
    def __init__(self, file, keys):
        self._file = file
        self._keys = keys
        self._at = 0
        self._file_bytes = os.fstat(file.fileno()).st_size
        self._end = min(self._file_bytes, _MAX_METADATA_BYTES)
        self._alignment = _DEFAULT_ALIGNMENT
        self._num_entries = 0
        self._fields = {}

    def read(self):
        if self._file.read(4) != b"GGUF":
            raise _Fault("it does not start with GGUF")
        self._at = 4
        version = self._number("I", "the version")
        if version & 0xFFFF == 0:
            raise _Fault("its byte order is big endian, which is not supported")
        if version not in _VERSIONS:
            raise _Fault(f"its version is {version}; 2 and 3 are supported")
        num_tensors = self._count(_MAX_TENSORS, "tensors")
        num_keys = self._count(_MAX_KEYS, "keys")
        seen = set()
        for number in range(num_keys):
            self._read_key(f"key {number + 1} of {num_keys}", seen)
        tensors = [
            self._tensor(f"tensor {number + 1} of {num_tensors}") for number in range(num_tensors)
        ]
        return GgufHeader(self._fields, self._place(tensors))

    def _read_key(self, what, seen):
        key = self._string(_MAX_KEY_BYTES, what)
        what = f"key {shorten(key)}"
        if key in seen:
            raise _Fault(f"{what} is there twice")
        seen.add(key)
        kind = self._type(what)
        if key == "general.alignment":
            self._read_alignment(kind)
        elif key in self._keys:
            self._fields[key] = self._value(kind, what, depth=0)
        else:
            self._skip_value(kind, what, depth=0)

    def _read_alignment(self, kind):
        if kind != GGUFValueType.UINT32:
            raise _Fault(f"general.alignment is of type {kind.name}; UINT32 is expected")
        value = self._number("I", "general.alignment")
        if value == 0 or value & (value - 1) != 0:
            raise _Fault(f"general.alignment is {value}; a power of two is expected")
        self._alignment = value

    def _value(self, kind, what, depth):
        if kind in _SCALAR_FORMS:
            return self._number(_SCALAR_FORMS[kind], what)
        if kind == GGUFValueType.STRING:
            return self._text(self._number("Q", what), what)
        kind, count = self._array(what, depth)
        if kind in _SCALAR_FORMS:
            form = f"<{count}{_SCALAR_FORMS[kind]}"
            return list(struct.unpack(form, self._bytes(struct.calcsize(form), what)))
        return [self._value(kind, what, depth + 1) for _ in range(count)]

    def _skip_value(self, kind, what, depth):
        if kind in _SCALAR_FORMS:
            self._skip(struct.calcsize(_SCALAR_FORMS[kind]), what)
        elif kind == GGUFValueType.STRING:
            self._skip(self._number("Q", what), what)
        else:
            kind, count = self._array(what, depth)
            if kind in _SCALAR_FORMS:
                self._skip(count * struct.calcsize(_SCALAR_FORMS[kind]), what)
                return
            for _ in range(count):
                self._skip_value(kind, what, depth + 1)

    def _array(self, what, depth):
        """Reads the type and the number of an array's entries."""
        if depth == _MAX_ARRAY_DEPTH:
            raise _Fault(f"{what}: arrays are nested more than {_MAX_ARRAY_DEPTH} deep")
        kind = self._type(what)
        count = self._number("Q", what)
        self._num_entries += count
        if self._num_entries > _MAX_ENTRIES:
            raise _Fault(
                f"{what}: with {count} entries its arrays have {self._num_entries}; at most"
                f" {_MAX_ENTRIES} are supported"
            )
        return kind, count

    def _tensor(self, what):
        """Reads a tensor's description. Its offset is still relative to the data section."""
        name = self._string(_MAX_NAME_BYTES, what)
        what = f"tensor {shorten(name)}"
        num_dimensions = self._number("I", what)
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise _Fault(
                f"{what}: has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are supported"
            )
        shape = [self._number("Q", what) for _ in range(num_dimensions)]
        number = self._number("I", what)
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
        return GgufTensor(
            name, kind, tuple(reversed(shape)), self._number("Q", what), size_bytes
        )

    def _place(self, tensors):
        """Returns `tensors` with offsets in the file. Checks that they fit and do not overlap."""
        first = -(-self._at // self._alignment) * self._alignment
        num_bytes = max(0, self._file_bytes - first)
        end = 0
        for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size_bytes)):
            what = f"tensor {shorten(tensor.name)}"
            if tensor.offset % self._alignment != 0:
                raise _Fault(
                    f"{what}: begins at data byte {tensor.offset}, no multiple of the alignment,"
                    f" {self._alignment}"
                )
            if tensor.offset < end:
                raise _Fault(
                    f"{what}: begins at data byte {tensor.offset}, inside the tensor before it,"
                    f" which ends at {end}"
                )
            end = tensor.offset + tensor.size_bytes
            if end > num_bytes:
                raise _Fault(f"{what}: ends at data byte {end}; the file has {num_bytes}")
        return [replace(tensor, offset=first + tensor.offset) for tensor in tensors]

    def _count(self, maximum, what):
        count = self._number("Q", f"the number of {what}")
        if count > maximum:
            raise _Fault(f"it says that it has {count} {what}; at most {maximum} are supported")
        return count

    def _string(self, max_bytes, what):
        num_bytes = self._number("Q", what)
        if num_bytes > max_bytes:
            raise _Fault(
                f"{what}: its name has {num_bytes} bytes; at most {max_bytes} are expected"
            )
        return self._bytes(num_bytes, what).decode("utf-8", "replace")  # matches no key

    def _text(self, num_bytes, what):
        data = self._bytes(num_bytes, what)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            shown = shorten(data[: error.start + EXCERPT_CHARACTERS].decode("utf-8", "replace"))
            raise _Fault(
                f"{what}: is not UTF-8: byte 0x{data[error.start]:02x} at byte {error.start} of"
                f" {shown}"
            ) from None

    def _type(self, what):
        number = self._number("I", what)
        try:
            return GGUFValueType(number)
        except ValueError:
            raise _Fault(f"{what}: its type {number} is not known") from None

    def _number(self, form, what):
        form = "<" + form
        return struct.unpack(form, self._bytes(struct.calcsize(form), what))[0]

    def _bytes(self, num_bytes, what):
        self._check(num_bytes, what)
        data = self._file.read(num_bytes)
        if len(data) != num_bytes:
            raise _Fault(f"{what}: the file has become shorter while it was read")
        return data

    def _skip(self, num_bytes, what):
        self._check(num_bytes, what)
        self._file.seek(num_bytes, os.SEEK_CUR)

    def _check(self, num_bytes, what):
        if num_bytes > self._end - self._at:
            if self._end < self._file_bytes:
                raise _Fault(f"{what}: the metadata has more than {format_bytes(self._end)}")
            raise _Fault(
                f"{what}: needs {num_bytes} bytes from byte {self._at} on; the file has {self._end}"
            )
        self._at += num_bytes
