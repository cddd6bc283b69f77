# SPDX-License-Identifier: Apache-2.0
"""What data_ptr() of a tensor in the engine returns: an address that is compared and whose alignment is known, and that
nothing can read from."""

from __future__ import annotations

from typing import Any

import spillway

ALIGNMENT_BYTES = 4096  # of every lease: a tile has frames of its own


class NoAddress(spillway.FailedPrecondition, NotImplementedError):
    """The number of an address in the engine was asked for. PyTorch raises NotImplementedError for tensors without memory,
    which other libraries expect."""


class Address:
    """The address of a byte of a tensor in the engine. It has a number only while an operation leases the tensor, and another
    one in each lease. Code that asks for an address often needs only what is the same in all of them: whether two tensors begin
    at the same byte (tied weights), and whether one is aligned. This answers that, and any use of the number raises
    NoAddress."""

    def __init__(self, home: Any, offset_bytes: int):
        self._home = home
        self._offset_bytes = offset_bytes

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, Address) and self._home is other._home
                and self._offset_bytes == other._offset_bytes)

    def __hash__(self) -> int:
        return hash((id(self._home), self._offset_bytes))

    def __mod__(self, divisor: int) -> int:
        if divisor <= 0 or ALIGNMENT_BYTES % divisor != 0:
            self._has_none()
        return self._offset_bytes % divisor

    def __and__(self, mask: int) -> int:
        return self % (mask + 1)

    def __repr__(self) -> str:
        return f"<address of {self._home.name}, whose bytes are in the engine>"

    def _has_none(self, *_: Any) -> Any:
        raise NoAddress(f"{self._home.name} has no address: its bytes are in the engine, and have one only while an operation "
                        "runs. tensor.clone() gives a tensor in memory")

    __int__ = __index__ = __float__ = __format__ = _has_none
    __add__ = __radd__ = __sub__ = __rsub__ = __floordiv__ = __rshift__ = _has_none
    __lt__ = __le__ = __gt__ = __ge__ = _has_none
    _as_parameter_ = property(_has_none)  # ctypes reads this
