# SPDX-License-Identifier: Apache-2.0
"""Finds what a checkpoint of torch.distributed.checkpoint (DCP) has, without unpickling anything.

Such a checkpoint is a folder of data files, and `.metadata`, which is written last: a pickle that says where in the files each
entry is. A pickle is a program. Here its instructions are followed, but what would call a function, or import one, only makes a
record of that.
"""

from __future__ import annotations

import pathlib
import pickletools
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A part of a data file."""

    name: str  # of the entry in the flattened state dict
    path: pathlib.Path
    offset: int
    size: int


class _Made:
    """What a pickle makes by calling something that is not called here."""

    def __init__(self, of: Any, arguments: Any):
        self.of, self.arguments, self.state = of, arguments, _Pairs()

    def get(self, name: str) -> Any:
        return self.state.get(name)


class _Pairs(list):
    """A dict, as a list of pairs: keys that are not made cannot be hashed."""

    def get(self, name: str) -> Any:
        return next((value for key, value in self if key == name), None)


def is_metadata(path: pathlib.Path) -> bool:
    return path.name.endswith(".metadata")


def entries(metadata: pathlib.Path) -> list[Entry]:
    """Returns the entries of a checkpoint, given its `.metadata`. Raises OSError if the file cannot be read, and ValueError if
    it is something else."""
    found = []
    for index, info in _part_of(metadata, "storage_data"):
        values = (index.get("fqn"), info.get("relative_path"), info.get("offset"), info.get("length"))
        if tuple(map(type, values)) != (str, str, int, int):
            raise ValueError(f"{metadata} has an entry without a place in a file")
        found.append(Entry(values[0], metadata.parent / values[1], values[2], values[3]))
    return found


def paths(metadata: pathlib.Path) -> dict[str, tuple[Any, ...]]:
    """Returns the keys under which each entry was in the nested state dict, by the entry's name. Raises as entries() does."""
    return {name: tuple(keys) for name, keys in _part_of(metadata, "planner_data")}


def _part_of(metadata: pathlib.Path, name: str) -> _Pairs:
    made = _read_inertly(metadata.read_bytes())
    part = made.get(name) if isinstance(made, _Made) else None
    if not isinstance(part, _Pairs):
        raise ValueError(f"{metadata} is no metadata of torch.distributed.checkpoint")
    return part


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": _Pairs, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CALLS = {"REDUCE", "NEWOBJ"}
_VALUES = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
           "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "STRING", "BINSTRING",
           "SHORT_BINSTRING"}


def _read_inertly(pickled: bytes) -> Any:
    """Follows a pickle's instructions, and calls nothing. Raises ValueError if there is one that is not known here."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        at = len(stack) - 1 - next(place for place, each in enumerate(reversed(stack)) if each is _MARK)
        taken = stack[at + 1:]
        del stack[at:]
        return taken

    try:
        for code, argument, _ in pickletools.genops(pickled):
            name = code.name
            if name in _VALUES:
                stack.append(argument)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _EMPTY:
                stack.append(_EMPTY[name]())
            elif name == "MARK":
                stack.append(_MARK)
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in _TUPLES:
                stack[-_TUPLES[name]:] = [tuple(stack[-_TUPLES[name]:])]
            elif name == "TUPLE":
                stack.append(tuple(since_mark()))
            elif name == "LIST":
                stack.append(since_mark())
            elif name == "DICT":
                taken = since_mark()
                stack.append(_Pairs(zip(taken[::2], taken[1::2])))
            elif name == "APPEND":
                value = stack.pop()
                stack[-1].append(value)
            elif name in ("APPENDS", "ADDITEMS"):
                taken = since_mark()
                stack[-1].extend(taken)
            elif name == "SETITEM":
                key, value = stack[-2:]
                del stack[-2:]
                _items_of(stack[-1]).append((key, value))
            elif name == "SETITEMS":
                taken = since_mark()
                _items_of(stack[-1]).extend(zip(taken[::2], taken[1::2]))
            elif name == "GLOBAL":
                stack.append(argument)
            elif name == "STACK_GLOBAL":
                stack[-2:] = [" ".join(map(str, stack[-2:]))]
            elif name in _CALLS:
                stack[-2:] = [_Made(*stack[-2:])]
            elif name == "NEWOBJ_EX":
                stack[-3:] = [_Made(stack[-3], stack[-2])]
            elif name == "BUILD":
                state = stack.pop()
                if isinstance(stack[-1], _Made) and isinstance(state, _Pairs):
                    stack[-1].state = state
            elif name == "STOP":
                return stack.pop()
            elif name not in ("PROTO", "FRAME"):
                raise ValueError(f"a pickle has the instruction {name}, which is not known here")
    except (LookupError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"a pickle cannot be followed ({error})") from error
    raise ValueError("a pickle has no end")


def _items_of(value: Any) -> Any:
    """Returns the list of pairs of a dict, or of what is made and then filled as one, such as an OrderedDict."""
    return value.state if isinstance(value, _Made) else value
