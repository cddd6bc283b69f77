# SPDX-License-Identifier: Apache-2.0
"""Mutates a GGUF file by its structure, which is a list of fields with their bytes.

The parser here accepts valid files only, and shares no code with the reader under test.
"""

import dataclasses
import struct

import mutations

_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32
_MAX_CHANGES = 4


@dataclasses.dataclass
class Field:
    kind: str  # integer, string (the field before it is its length), floats or padding
    data: bytes
    group: int  # 0 for the header; each key and each tensor has its own number


class _Parser:
    def __init__(self, data):
        self._data = data
        self._at = 0
        self._group = 0
        self.fields = []

    def parse(self):
        self._take("integer", 4)
        self._take("integer", 4)
        num_tensors = self._number(8)
        for _ in range(self._number(8)):
            self._group += 1
            self._string()
            self._value(self._number(4))
        for _ in range(num_tensors):
            self._group += 1
            self._string()
            for _ in range(self._number(4)):
                self._take("integer", 8)
            self._take("integer", 4)
            self._take("integer", 8)
        self._group += 1
        self._take("padding", min(-self._at % _ALIGNMENT, len(self._data) - self._at))
        self._take("floats", len(self._data) - self._at)
        return self.fields

    def _take(self, kind, count):
        if count > len(self._data) - self._at:
            raise ValueError("no valid GGUF file")
        data = self._data[self._at : self._at + count]
        self._at += count
        self.fields.append(Field(kind, data, self._group))
        return data

    def _number(self, count):
        return int.from_bytes(self._take("integer", count), "little")

    def _string(self):
        self._take("string", self._number(8))

    def _value(self, kind):
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            kind = self._number(4)
            for _ in range(self._number(8)):
                self._value(kind)
        else:
            self._take("integer", _SCALARS[kind])


def mutate(random, data):
    """Returns a GGUF file made from the valid file `data` by one to four changes, or by one of raw bytes."""
    if random.randrange(8) == 0:
        return mutations.raw(random, data)
    fields = _Parser(data).parse()
    for _ in range(random.randrange(1, _MAX_CHANGES + 1)):
        change = random.choice((_change_field, _change_field, _change_field, _change_group, _change_value))
        change(random, fields)
    data = b"".join(field.data for field in fields)
    return mutations.raw(random, data) if random.randrange(16) == 0 else data


def _change_field(random, fields):
    index = random.randrange(len(fields))
    field = fields[index]
    if field.kind == "integer":
        value = int.from_bytes(field.data, "little")
        field.data = mutations.integer(random, value, len(field.data))
    elif field.kind == "string":
        field.data = mutations.string(random, field.data)
        if random.randrange(4):
            fields[index - 1].data = len(field.data).to_bytes(8, "little")
    elif field.kind == "floats":
        field.data = mutations.floats(random, field.data)
    else:
        field.data = mutations.raw(random, field.data)


def _change_group(random, fields):
    """Removes a key or tensor, or copies it elsewhere. The header's count is usually adjusted."""
    group = random.randrange(1, fields[-1].group)
    members = [field for field in fields if field.group == group]
    if not members:
        return
    first = fields.index(members[0])
    is_key = first < _first_tensor(fields)
    choice = random.randrange(3)
    if choice == 0:
        del fields[first : first + len(members)]
        _add_to_count(random, fields, is_key, -1)
    else:
        place = first if choice == 1 else random.randrange(4, len(fields))
        fields[place:place] = [Field(field.kind, field.data, field.group) for field in members]
        _add_to_count(random, fields, is_key, 1)


def _first_tensor(fields):
    num_keys = int.from_bytes(fields[3].data, "little")
    return next((index for index, field in enumerate(fields) if field.group > num_keys), len(fields))


def _add_to_count(random, fields, is_key, change):
    count = fields[3 if is_key else 2]
    if random.randrange(4):
        count.data = ((int.from_bytes(count.data, "little") + change) % 2**64).to_bytes(8, "little")


def _change_value(random, fields):
    """Replaces a key's value by one of a random type. Most of these are well formed."""
    group = random.randrange(1, fields[-1].group)
    members = [index for index, field in enumerate(fields) if field.group == group]
    if len(members) < 3 or members[-1] >= _first_tensor(fields):
        return
    kind, value = random.choice(_values(random))
    fields[members[2]].data = struct.pack("<I", kind) + value
    for index in members[3:]:
        fields[index].data = b""


def _values(random):
    text = random.choice((b"x", b"", b"a b", b"\xff", b"llama", b"gpt2"))
    string = struct.pack("<Q", len(text)) + text
    count = random.choice((0, 1, 2, 1000, 2**21, 2**40))
    return [
        (4, struct.pack("<I", random.choice((0, 1, 2, 2**31 - 1, 2**32 - 1)))),
        (5, struct.pack("<i", random.choice((-1, 0, 1)))),
        (6, struct.pack("<f", random.choice((float("nan"), float("inf"), 0.0, -1.0, 1e-45)))),
        (7, struct.pack("<B", random.choice((0, 1, 2)))),
        (_STRING, string),
        (11, struct.pack("<q", -(2**63))),
        (12, struct.pack("<d", random.choice((1e300, 1e-300, float("nan"))))),
        (_ARRAY, struct.pack("<IQ", 0, count) + bytes(min(count, 1000))),
        (_ARRAY, struct.pack("<IQ", _STRING, 2) + string * 2),
        (_ARRAY, struct.pack("<IQ", _ARRAY, 1) * random.choice((1, 3, 50, 3000)) + struct.pack("<IQ", 0, 0)),
    ]
