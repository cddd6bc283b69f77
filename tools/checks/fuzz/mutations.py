# SPDX-License-Identifier: Apache-2.0
"""Changes bytes, numbers and JSON in ways that readers often handle wrongly, as a random.Random chooses."""

import json
import struct

_EDGES = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 127, 128, 255, 256, 1000, 4096, 65535, 65536]
_EDGES += [2**n + d for n in (20, 24, 31, 32, 40, 48, 62, 63, 64) for d in (-1, 0, 1)]
_STRINGS = [b"", b".", b"..", b"/", b"a/b", b"\x00", b"\xff\xfe", b"\x1b[31m", "é🙂".encode(), b" ", b"\n", b"x" * 300]
_STRINGS += [b"y" * 70000, b"0", b"-1", b"1e999", b"nan", b"general.alignment", b"blk.1.attn_q.weight", b"%s%n", b"{}"]
JSON_TEXTS = ["NaN", "Infinity", "-Infinity", "1e999", "-0", "0", "-1", "1.5", "1e-999", "9" * 30, "9" * 4301, "true"]
JSON_TEXTS += ["false", "null", '""', '"x"', '"no"', "[]", "{}", "[[]]", '"\\ud800"', '"\\u0000"', "[" * 70 + "]" * 70]
JSON_TEXTS += [
    "[" * 3000,
    '{"a":1,"a":2}',
    "2147483647",
    "2147483648",
    "100000",
    "18446744073709551616",
    "01",
    "",
    "'a'",
]


def integer(random, value, num_bytes):
    """Returns another integer of `num_bytes`, little endian."""
    if num_bytes == 0:
        return b""
    choice = random.randrange(4)
    if choice == 0:
        value = random.getrandbits(8 * num_bytes)
    elif choice == 1:
        value += random.choice((-32, -8, -1, 1, 8, 32))
    elif choice == 2:
        value ^= 1 << random.randrange(8 * num_bytes)
    else:
        value = random.choice(_EDGES)
    return (value % (1 << 8 * num_bytes)).to_bytes(num_bytes, "little")


def string(random, value):
    choice = random.randrange(4)
    if choice == 0 and value:
        at = random.randrange(len(value))
        return value[:at] + bytes([random.randrange(256)]) + value[at + 1 :]
    if choice == 1:
        return value[: random.randrange(len(value) + 1)]
    if choice == 2:
        return value + random.choice(_STRINGS)
    return random.choice(_STRINGS)


def floats(random, data):
    """Replaces one fp32 of `data` by one that is not finite, very large, very small, or -0."""
    if len(data) < 4:
        return data
    at = random.randrange(len(data) // 4) * 4
    value = random.choice((float("nan"), float("inf"), float("-inf"), 3e38, 1e-45, -0.0))
    return data[:at] + struct.pack("<f", value) + data[at + 4 :]


def raw(random, data):
    """Flips a bit, removes, repeats, inserts or replaces bytes, or cuts off the end."""
    if not data:
        return bytes([random.randrange(256)])
    at = random.randrange(len(data))
    count = min(len(data) - at, random.choice((1, 1, 2, 4, 8, 64)))
    choice = random.randrange(6)
    if choice == 0:
        return data[:at]
    if choice == 1:
        return data[:at] + data[at + count :]
    if choice == 2:
        return data[:at] + data[at : at + count] * 2 + data[at + count :]
    if choice == 3:
        return data[:at] + random.randbytes(count) + data[at:]
    if choice == 4:
        return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
    return data[:at] + random.randbytes(count) + data[at + count :]


def json_text(random, text):
    """Replaces or removes one value of a JSON text, or renames or repeats a key. The result may be invalid JSON."""
    try:
        value = json.loads(text)
        places = list(_places(value))
    except (ValueError, RecursionError):
        return raw(random, text)
    if not places:
        return random.choice(JSON_TEXTS).encode()
    container, key = random.choice(places)
    mark = "\ue000"
    choice = random.randrange(8)
    new = random.choice(JSON_TEXTS)
    if choice == 0:
        del container[key]
    elif choice == 1 and isinstance(container, dict):
        container[random.choice(("\ue001", "x" * 200, "", "__metadata__", "rope_parameters"))] = container.pop(key)
    elif choice == 2 and isinstance(container, dict):
        new = f"{json.dumps(container[key])},{json.dumps(key)}:{json.dumps(container[key])}"
        container[key] = mark
    elif choice == 3 and isinstance(container[key], int):
        new = str(int.from_bytes(integer(random, container[key], 8), "little"))
        container[key] = mark
    else:
        container[key] = mark
    return json.dumps(value).replace(json.dumps(mark), new).encode("utf-8", "surrogatepass")


def _places(value):
    """Yields each position in a JSON tree as its container and its key or index."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in list(items):
        yield value, key
        yield from _places(below)
