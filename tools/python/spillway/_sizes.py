# SPDX-License-Identifier: Apache-2.0
"""Parses sizes in bytes from numbers and text."""

from __future__ import annotations

import re

from spillway._errors import InvalidArgument

UNLIMITED = 2**64 - 1
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", re.IGNORECASE)


def parse_size(size: int | str | None, what: str = "size") -> int:
    """Returns the bytes of an int, or of text such as "512MiB", "1.5 GB" or "4096"; None: no limit, which is 2^64 - 1.

    Raises InvalidArgument, whose message names `what`, if the size is malformed or out of range.
    """
    if size is None:
        return UNLIMITED
    if isinstance(size, str):
        match = _TEXT.fullmatch(size)
        unit = match[2].upper() if match else None
        if unit not in _UNITS:
            raise InvalidArgument(f"{what} is {size!r}: write a number of bytes, or one with a unit, as '512MiB' or '2GB'")
        size = int(float(match[1]) * _UNITS[unit]) if "." in match[1] else int(match[1]) * _UNITS[unit]
    if not 0 <= size <= UNLIMITED:
        raise InvalidArgument(f"{what} is {size}: it must be from 0 to 2^64 - 1 bytes")
    return int(size)
