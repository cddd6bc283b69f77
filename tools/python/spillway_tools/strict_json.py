# SPDX-License-Identifier: Apache-2.0
"""JSON read as strictly as the C++ side reads it (tools/hf/strict_json.cc).

Python's reader takes NaN, a name that stands twice and numbers of any length, and what it has taken
it would write again. All of these are errors here.
"""

import json
import math
from json.decoder import scanstring

from spillway_tools.command import EXCERPT_CHARACTERS, InputError, shorten

_MAX_DEPTH = 64
# Half a million tensors have about four million values; each takes some 100 bytes in memory.
_MAX_VALUES = 4_000_000
# 2^64 has 20 digits; the C++ side, too, reads what is larger as floating point.
_MAX_INTEGER_DIGITS = 20


class _Fault(Exception):
    """What is wrong, as the message goes on after the file's name."""


def parse_json(text, origin):
    """The value that `text` holds; InputError, which begins with `origin`, where it is malformed."""
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
    """`value` as JSON on one line, cut off where it is long."""
    if isinstance(value, (dict, list)) and len(value) > EXCERPT_CHARACTERS:
        value = list(value)[:EXCERPT_CHARACTERS]  # what is cut off need not be written out
    return shorten(json.dumps(value, default=str))


def _check_num_values(text):
    """Counts values before they take memory: each but the first follows a bracket or a comma."""
    if _num_marks(text, 0, len(text)) < _MAX_VALUES:
        return
    num_values = num_strings = at = 0
    while at < len(text):
        quote = text.find('"', at)
        num_values += _num_marks(text, at, quote if quote >= 0 else len(text))
        num_strings += 1
        # An object has a name beside each value; more strings than that are no JSON.
        if num_values >= _MAX_VALUES or num_strings > 2 * _MAX_VALUES:
            raise _Fault(f"holds more than {_MAX_VALUES} JSON values")
        if quote < 0:
            return
        try:
            _, at = scanstring(text, quote + 1, True)  # strings are passed over one at a time
        except json.JSONDecodeError:
            return  # the reader will come to it, too


def _num_marks(text, begin, end):
    return sum(text.count(mark, begin, end) for mark in "[{,")


def _integer(text):
    digits = text.removeprefix("-")
    # -0 is no whole number from 0 to anything, so it must not become one.
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
    """The depth, and that each string is text (half of a surrogate pair is none)."""
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
