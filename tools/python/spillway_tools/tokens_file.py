# SPDX-License-Identifier: Apache-2.0
"""Writes a one-dimensional NPY file as a stream; the length is filled in at the end."""

import io

import numpy

_HEADER_BYTES = 128
_COPY_TOKENS = 1 << 20


class TokensFile:
    """Writes token ids to `path` as uint16 or uint32. Context manager."""

    def __init__(self, path, dtype):
        self._file = open(path, "w+b")
        self._dtype = numpy.dtype(dtype).newbyteorder("<")
        self.num_tokens = 0
        self._file.write(bytes(_HEADER_BYTES))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def append(self, ids):
        self._file.write(numpy.asarray(ids, self._dtype).tobytes())
        self.num_tokens += len(ids)

    def move_tail(self, other, count):
        """Moves the last `count` tokens to the end of `other`."""
        keep = self.num_tokens - count
        self._file.seek(_HEADER_BYTES + keep * self._dtype.itemsize)
        while count > 0:
            block = self._file.read(min(count, _COPY_TOKENS) * self._dtype.itemsize)
            other.append(numpy.frombuffer(block, self._dtype))
            count -= len(block) // self._dtype.itemsize
        self.num_tokens = keep
        self._file.truncate(_HEADER_BYTES + keep * self._dtype.itemsize)

    def finish(self):
        """Writes the header. REQUIRES: nothing is appended afterwards."""
        header = io.BytesIO()
        numpy.lib.format.write_array_header_1_0(
            header, {"descr": self._dtype.str, "fortran_order": False, "shape": (self.num_tokens,)}
        )
        text = header.getvalue()
        assert len(text) == _HEADER_BYTES, len(text)
        self._file.seek(0)
        self._file.write(text)
        self._file.flush()
