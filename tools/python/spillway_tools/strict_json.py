# SPDX-License-Identifier: Apache-2.0
"""Reads JSON as strictly as the C++ side does (tools/hf/strict_json.cc), and says the same of each fault.

Python's reader accepts NaN, repeated names and integers of any length, and would write them again.
Here NaN, a repeated name and a number too large for a 64-bit float are errors. An integer that does
not fit in 64 bits becomes a float.
"""

import json
import math
import re
from json.decoder import scanstring

from spillway_tools.command import EXCERPT_CHARACTERS, InputError

_MAX_DEPTH = 64
# Half a million tensors have about four million values; each takes some 100 bytes in memory.
_MAX_VALUES = 4_000_000
# 2^64 has 20 digits. The C++ side, too, reads larger numbers as floating point.
_MAX_INTEGER_DIGITS = 20

_SPACE = re.compile(rb"[ \t\n\r]*")
_LITERAL = re.compile(rb"true|false|null")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# The characters and escapes of a string. A surrogate comes in a pair.
_CHARACTERS = re.compile(
    rb"""(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"""
    rb"""|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*"""
)


class _Fault(Exception):
    """What is wrong. Its text follows the file's name in the message."""


def parse_json(text, origin):
    """Returns the value of `text`. If it is malformed: InputError, which begins with `origin`."""
    try:
        return _parse(text)
    except MemoryError:
        raise InputError(f"{origin}: takes more memory than there is") from None
    except (json.JSONDecodeError, RecursionError, _Fault):
        fault = _FaultFinder(text.encode(errors="surrogatepass")).find()
    raise InputError(f"{origin}: {fault}")


def _parse(text):
    """Returns the value. Any of some exceptions says that there is a fault."""
    text = text.removeprefix("\ufeff")  # a byte order mark
    _check_num_values(text)
    value = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant, object_pairs_hook=_object)
    _check_tree(value)
    return value


class _FaultFinder:
    """Finds the first fault of a text, from its start. It reads the text as the C++ side does, without building values."""

    def __init__(self, data):
        self._data = data
        self._at = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        self._num_values = 0

    def find(self):
        """Returns what is wrong. If nothing is, empty lists made the text seem to have too many values."""
        names = []  # of each open object; None for an open list
        try:
            self._value(names)
            while names:
                self._rest_of(names)
            self._next(b"")
        except _Fault as fault:
            return str(fault)
        return f"holds more than {_MAX_VALUES} JSON values"

    def _next(self, wanted):
        """Skips white space, and returns the byte that follows, which must be one of `wanted`; b"" is the end."""
        self._at = _SPACE.match(self._data, self._at).end()
        found = self._data[self._at : self._at + 1]
        if wanted is not None and (found not in wanted if found and wanted else found != wanted):
            self._fail()
        return found

    def _fail(self):
        raise _Fault(f"is not valid JSON at byte {self._at}")

    def _count(self):
        self._num_values += 1
        if self._num_values > _MAX_VALUES:
            raise _Fault(f"holds more than {_MAX_VALUES} JSON values")

    def _value(self, names):
        """Reads a value, of a list or an object only the start."""
        found = self._next(None)
        if found in (b"[", b"{"):
            self._at += 1
            if len(names) == _MAX_DEPTH:
                raise _Fault(f"is nested more than {_MAX_DEPTH} deep")
            names.append(set() if found == b"{" else None)
            self._count()
            if self._next(None) == (b"}" if found == b"{" else b"]"):
                self._at += 1
                names.pop()
            elif found == b"{":
                self._member(names)
            else:
                self._value(names)
            return
        if found == b'"':
            self._string()
        else:
            self._word()
        self._count()

    def _rest_of(self, names):
        """Reads what follows a value in the innermost list or object."""
        is_object = names[-1] is not None
        found = self._next(b",}" if is_object else b",]")
        self._at += 1
        if found != b",":
            names.pop()
        elif is_object:
            self._member(names)
        else:
            self._value(names)

    def _member(self, names):
        self._next(b'"')
        name = json.loads(self._string())
        if name in names[-1]:
            raise _Fault(f"holds the name {excerpt(name)} twice")
        names[-1].add(name)
        self._next(b":")
        self._at += 1
        self._value(names)

    def _string(self):
        begin = self._at
        self._at = _CHARACTERS.match(self._data, begin + 1).end()
        if self._data[self._at : self._at + 1] != b'"':
            self._fail()
        self._at += 1
        return self._data[begin : self._at]

    def _word(self):
        word = _LITERAL.match(self._data, self._at)
        number = _NUMBER.match(self._data, self._at)
        if not word and not number:
            self._fail()
        if number and math.isinf(float(number[0])):
            shown = number[0].decode()
            cut = shown if len(shown) <= EXCERPT_CHARACTERS else shown[:EXCERPT_CHARACTERS] + "…"
            raise _Fault(f"holds the number {cut}, which is too large for a 64-bit float")
        self._at = (word or number).end()


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
            raise _Fault
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
        raise _Fault
    return value


def _constant(_):
    raise _Fault


def _object(pairs):
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Fault
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
            raise _Fault


def _check_text(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Fault from None
