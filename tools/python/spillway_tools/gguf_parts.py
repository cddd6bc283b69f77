# SPDX-License-Identifier: Apache-2.0
"""Reads the headers of a GGUF model: of one file, or of the parts that it was split into.

The parts are named PREFIX-00001-of-00003.gguf and so on. Each says in its keys which one it is
(`split.no`, from 0 on), how many there are (`split.count`) and how many tensors they hold together
(`split.tensors.count`). The first has the model's metadata; the others need none.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from spillway_tools.command import InputError
from spillway_tools.gguf_layout import GgufHeader, read_header
from spillway_tools.model_config import ConfigReader
from spillway_tools.source_file import open_regular
from spillway_tools.strict_json import excerpt

_PART_NAME = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf\Z")
_NUMBER, _COUNT, _NUM_TENSORS = "split.no", "split.count", "split.tensors.count"
_MAX_PARTS = 99_999  # five digits
_MAX_SHOWN = 5


@dataclass(frozen=True)
class GgufPart:
    """A file of a model. Messages name it `origin`."""

    path: Path
    origin: str
    header: GgufHeader

    def open(self):
        return open_regular(self.path, self.origin)


def part_suffix(number, count):
    """Returns how the name of part `number` ends, counted from 1."""
    return f"-{number:05d}-of-{count:05d}.gguf"


def part_number(name):
    """Returns which part of how many a name says, or None."""
    match = _PART_NAME.search(name)
    return (int(match[1]), int(match[2])) if match else None


def group_by_model(names):
    """Returns the names of .gguf files as lists, one for each model, sorted."""
    models = {}
    for name in sorted(names):
        models.setdefault(_PART_NAME.sub(r" of \2", name), []).append(name)
    return list(models.values())


def read_parts(path, origin, keys):
    """Returns the GgufParts of the model that the file `path` is, or is a part of, in order.

    A header's fields are those of `keys`. Messages name `origin` instead of `path`; both end in the
    same way. InputError if a part is missing, or is not of this model.
    """
    path = Path(path)
    keys = frozenset((*keys, _NUMBER, _COUNT, _NUM_TENSORS, "general.name"))
    given = _read(path, origin, keys)
    fields = given.header.fields
    if fields.get(_COUNT) == 0:  # as gguf-split writes it when it merges parts
        return [given]
    count = ConfigReader(fields, origin).size(_COUNT, 1, _MAX_PARTS)
    if count == 1:
        return [given]
    number = _number(given, count)
    if part_number(path.name) != (number, count):
        raise InputError(
            f"{origin}: is part {number} of {count} of a model, as its keys split.no and"
            f" split.count say; the other parts are found by its name, which must end in"
            f" {part_suffix(number, count)}"
        )
    places = [(_beside(str(path), n, count), _beside(origin, n, count)) for n in range(1, count + 1)]
    missing = [shown for place, shown in places if not Path(place).exists()]
    if missing:
        more = f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
        raise InputError(
            f"{', '.join(missing[:_MAX_SHOWN])}{more}: missing; {origin} is part {number} of"
            f" {count} of a model, which is read when they are all in one folder"
        )
    parts = [
        given if n == number else _read(Path(place), shown, keys)
        for n, (place, shown) in enumerate(places, 1)
    ]
    for n, part in enumerate(parts, 1):
        _check_belongs(part, n, parts[0], given)
    _check_tensors(parts)
    return parts


def _read(path, origin, keys):
    with open_regular(path, origin) as file:
        return GgufPart(path, origin, read_header(file, origin, keys))


def _number(part, count):
    reader = ConfigReader(part.header.fields, part.origin)
    value = reader.find(_NUMBER)
    if type(value) is not int or not 0 <= value < count:
        raise reader.error(_NUMBER, f"a whole number below {_COUNT}, {count}, is expected")
    return value + 1


def _beside(name, number, count):
    return _PART_NAME.sub("", name) + part_suffix(number, count)


def _check_belongs(part, number, first, given):
    """InputError unless `part` says what `given`, a part, and its own name say."""
    count = given.header.fields[_COUNT]
    found = part.header.fields.get(_COUNT)
    if found != count:
        raise InputError(
            f"{part.origin}: its {_COUNT} is {excerpt(found)}, and that of {given.origin} is"
            f" {count}: they are not parts of one model; put the right part there"
        )
    if _number(part, count) != number:
        raise InputError(
            f"{part.origin}: is part {_number(part, count)} of {count}, as its {_NUMBER} says, and"
            f" is named as part {number}: give it its own name"
        )
    for key in sorted(part.header.fields.keys() & first.header.fields.keys() - {_NUMBER}):
        theirs, ours = part.header.fields[key], first.header.fields[key]
        if theirs != ours:
            raise InputError(
                f"{part.origin}: its {key} is {excerpt(theirs)}, and that of {first.origin} is"
                f" {excerpt(ours)}: they are not parts of one model; put the right part there"
            )


def _check_tensors(parts):
    """InputError unless the parts hold different tensors, as many as they say."""
    holders = {}
    for part in parts:
        for tensor in part.header.tensors:
            other = holders.setdefault(tensor.name, part)
            if other is not part:
                raise InputError(
                    f"{part.origin}: holds tensor {excerpt(tensor.name)}, and so does"
                    f" {other.origin}: they are not parts of one model; put the right part there"
                )
    expected = parts[0].header.fields.get(_NUM_TENSORS)
    if expected is not None and expected != len(holders):
        held = ", ".join(f"{part.origin} holds {len(part.header.tensors)}" for part in parts[:9])
        raise InputError(
            f"{parts[0].origin}: its {_NUM_TENSORS} is {excerpt(expected)}, and the parts hold"
            f" {len(holders)} ({held}): one of them is of another model; put the right one there"
        )
