# SPDX-License-Identifier: Apache-2.0
"""Mutates a wheel: its members, their contents, and the fields of the archive itself."""

import io
import warnings
import zipfile

import gguf_mutator
import mutations

_NAMES = [
    "./",
    "//",
    "../",
    "a/",
    "/",
    "\\",
    "x" * 300,
    "é",
    ".gguf",
    "/config.json",
    "//model.safetensors",
    "\x1b[31m",
]
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
# Offset from the signature, and size, of each field: APPNOTE.TXT 4.3.7, 4.3.12 and 4.3.16.
_RECORDS = {
    b"PK\x03\x04": [(4, 2), (6, 2), (8, 2), (10, 2), (12, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)],
    b"PK\x01\x02": [(4, 2), (6, 2), (8, 2), (10, 2), (12, 2), (14, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2)]
    + [(32, 2), (34, 2), (36, 2), (38, 4), (42, 4)],
    b"PK\x05\x06": [(4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)],
}
_MAX_CHANGES = 3


def mutate(random, data):
    """Returns a wheel made from the valid wheel `data` by random changes."""
    members = _read(data)
    if random.randrange(4):
        for _ in range(random.randrange(1, _MAX_CHANGES + 1)):
            random.choice((_change_content, _change_content, _change_content, _change_name, _change_list))(
                random, members
            )
        data = _write(random, members)
    if random.randrange(3) == 0:
        data = _change_record(random, data)
    return mutations.raw(random, data) if random.randrange(16) == 0 else data


def _read(data):
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        return [[member.filename, wheel.read(member)] for member in wheel.infolist()]


def _write(random, members):
    method = random.choice(_METHODS)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as wheel, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of duplicate names
        for name, content in members:
            wheel.writestr(zipfile.ZipInfo(name.replace("\0", "") or "x"), content, method)
    return file.getvalue()


def _change_content(random, members):
    if not members:
        return
    member = random.choice(members)
    name, content = member
    try:
        if name.endswith(".gguf"):
            member[1] = gguf_mutator.mutate(random, content)
        elif name.endswith(".json"):
            member[1] = mutations.json_text(random, content)
        elif name.endswith(".safetensors"):
            member[1] = _change_safetensors(random, content)
        else:
            member[1] = mutations.raw(random, content)
    except (IndexError, KeyError, ValueError, RecursionError):  # an earlier change has made it invalid
        member[1] = mutations.raw(random, content)


def _change_safetensors(random, content):
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    choice = random.randrange(6)
    if choice == 0:
        return mutations.integer(random, length, 8) + header + data
    if choice == 1:
        data = mutations.floats(random, data)
    elif choice == 2:
        data = mutations.raw(random, data)
    elif choice == 3:
        header = mutations.raw(random, header)
    else:
        header = mutations.json_text(random, header)
    return len(header).to_bytes(8, "little") + header + data


def _change_name(random, members):
    if not members:
        return
    member = random.choice(members)
    piece = random.choice(_NAMES)
    at = random.randrange(len(member[0]) + 1)
    member[0] = random.choice((member[0][:at] + piece + member[0][at:], piece, piece + member[0], member[0] + piece))


def _change_list(random, members):
    choice = random.randrange(5)
    if choice == 0 and members:
        members.remove(random.choice(members))
    elif choice == 1 and members:
        members.append(list(random.choice(members)))
    elif choice == 2:
        members.append([random.choice(("package/", "package/model/", "model.gguf/", "a/config.json/")), b""])
    elif choice == 3:
        members.append([random.choice(("package/x", "package/y.safetensors")), bytes(random.choice((0, 10, 4 << 20)))])
    else:
        random.shuffle(members)


def _change_record(random, data):
    places = [
        (at + offset, size) for mark, fields in _RECORDS.items() for at in _find(data, mark) for offset, size in fields
    ]
    places = [(at, size) for at, size in places if at + size <= len(data)]
    if not places:
        return data
    at, size = random.choice(places)
    value = int.from_bytes(data[at : at + size], "little")
    return data[:at] + mutations.integer(random, value, size) + data[at + size :]


def _find(data, mark):
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + 1)
