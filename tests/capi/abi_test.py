#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the C ABI of this build with the committed one (abi.txt beside this file). Every difference fails the check.

    tests/capi/abi_test.py DUMP LIBRARY            the check
    tests/capi/abi_test.py --write DUMP LIBRARY    after an intended change: writes abi.txt

DUMP is the program of abi_dump.c, which prints structs and values. LIBRARY is libspillway.so. A change may only add to
the ABI: a new symbol, a new value, or a new member at the end of a struct that begins with its size.
"""

import pathlib
import re
import subprocess
import sys

COMMITTED = pathlib.Path(__file__).with_name("abi.txt")
HEADER = pathlib.Path(__file__).resolve().parents[2] / "include/spillway/spillway.h"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(library):
    """Returns the names with their versions, such as "spw_read@@SPILLWAY_1"."""
    lines = output("nm", "--dynamic", "--defined-only", "--with-symbol-versions", library).splitlines()
    return sorted(name for name in (line.split()[-1] for line in lines) if name.startswith("spw_"))


def main(arguments):
    write = arguments[:1] == ["--write"]
    dump, library = arguments[write:]
    abi = output(dump) + "\n".join(symbols(library)) + "\n"
    if write:
        COMMITTED.write_text(abi)
        return 0
    wrong = []
    text = HEADER.read_text()
    declared = set(re.findall(r"\b(spw_\w+)\(", text)) - {"spw_X_release", "spw_X_init"}
    exported = {name.partition("@")[0] for name in symbols(library)}
    wrong += [f"{name} is declared in spillway.h, and the library has it not" for name in sorted(declared - exported)]
    wrong += [f"the library has {name}, which spillway.h does not declare" for name in sorted(exported - declared)]
    now, then = abi.splitlines(), COMMITTED.read_text().splitlines()
    wrong += [f"missing or changed: {line}" for line in then if line not in now]
    wrong += [f"new: {line}" for line in now if line not in then]
    for line in wrong:
        print(f"abi_test: {line}", file=sys.stderr)
    if wrong:
        print("abi_test: if this is meant, and callers that were built before still run: tests/capi/abi_test.py --write "
              f"{dump} {library}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
