# SPDX-License-Identifier: Apache-2.0
"""Reads JSON as strictly as the C++ side does (tools/hf/strict_json.cc).

Python's reader accepts NaN, repeated names and integers of any length, and would write them again.
Here NaN, a repeated name and a number too large for a 64-bit float are errors. An integer that does
not fit in 64 bits becomes a float.
"""

import json
import math
from json.decoder import scanstring

from spillway_tools.command import EXCERPT_CHARACTERS, InputError, shorten

_MAX_DEPTH = 64
# Half a million tensors have about four million values; each takes some 100 bytes in memory.
_MAX_VALUES = 4_000_000
# 2^64 has 20 digits. The C++ side, too, reads larger numbers as floating point.
_MAX_INTEGER_DIGITS = 20


class _Fault(Exception):
    """What is wrong. Its text follows the file's name in the message."""


def parse_json(text, origin):
    """Returns the value of `text`. If it is malformed: InputError, which begins with `origin`."""
    text = text.removeprefix("\ufeff")  # a byte order mark
    try:
        _check_num_values(text)
        value = json.loads(
            text,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
        _check_tree(value)
    except RecursionError:
        raise InputError(f"{origin}: is nested more than {_MAX_DEPTH} deep") from None
    except MemoryError:
        raise InputError(f"{origin}: takes more memory than there is") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{origin}: is not valid JSON: {error}") from error
    except _Fault as fault:
        raise InputError(f"{origin}: {fault}") from None
    return value


def excerpt(value):
    """Returns `value` as JSON on one line, cut off past 80 bytes, as Excerpt of tools/hf/strict_json.cc does."""
    if isinstance(value, (dict, list)) and len(value) > EXCERPT_CHARACTERS:
        if isinstance(value, dict):
            value = dict(sorted(value.items())[:EXCERPT_CHARACTERS])
        else:
            value = value[:EXCERPT_CHARACTERS]  # more would be cut off below
    text = json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    data = text.encode()
    return text if len(data) <= EXCERPT_CHARACTERS else data[:EXCERPT_CHARACTERS].decode(errors="ignore") + "…"


def _check_num_values(text):
    """Limits the number of values before they take memory. Each but the first follows [, { or ,."""
    if _num_marks(text, 0, len(text)) < _MAX_VALUES:
        return
    num_values = num_strings = at = 0
    while at < len(text):
        quote = text.find('"', at)
        num_values += _num_marks(text, at, quote if quote >= 0 else len(text))
        num_strings += 1
        # A value has at most one name, so valid JSON has at most two strings per value.
        if num_values >= _MAX_VALUES or num_strings > 2 * _MAX_VALUES:
            raise _Fault(f"holds more than {_MAX_VALUES} JSON values")
        if quote < 0:
            return
        try:
            _, at = scanstring(text, quote + 1, True)  # skips the string
        except json.JSONDecodeError:
            return  # json.loads will report the error


def _num_marks(text, begin, end):
    return sum(text.count(mark, begin, end) for mark in "[{,")


def _integer(text):
    digits = text.removeprefix("-")
    # "-0" becomes a float, so that it is not accepted as a whole number.
    if len(digits) > _MAX_INTEGER_DIGITS or text == "-0":
        return _float(text)
    return int(text) if -(2**63) <= int(text) < 2**64 else float(text)


def _float(text):
    value = float(text)
    if math.isinf(value):
        raise _Fault(f"holds the number {shorten(text)}, which is too large for a 64-bit float")
    return value


def _constant(text):
    raise _Fault(f"is not valid JSON: holds {text}, which is no JSON number")


def _object(pairs):
    value = dict(pairs)
    if len(value) != len(pairs):
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise _Fault(f"holds the name {excerpt(name)} twice")
            seen.add(name)
    return value


def _check_tree(value):
    """Checks the depth, and that no string holds a lone surrogate."""
    level = [value]
    depth = 0
    while level:
        below = []
        for item in level:
            if isinstance(item, str):
                _check_text(item)
            elif isinstance(item, list):
                below.append(item)
            elif isinstance(item, dict):
                below.append(item.values())
                for name in item:
                    _check_text(name)
        level = [item for container in below for item in container]
        if below:
            depth += 1
        if depth > _MAX_DEPTH:
            raise _Fault(f"is nested more than {_MAX_DEPTH} deep")


def _check_text(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Fault(f"is not valid JSON: the string {shorten(repr(text))} is no Unicode") from None
