#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rejects an include that runs against the direction of the folders.

    tools/checks/includes.py [ROOT]

Arrows run one way: tools, bench, tests -> src/optim -> src/engine -> {src/plan, tiers -> io} ->
src/base. Every wrong include is printed as FILE:LINE: reason; the exit status is then 1.
"""

import dataclasses
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+(?P<open>["<])(?P<path>[^">]+)[">]')
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}

# The public headers are included as "spillway/...", from include/.
PUBLIC = "spillway"

# What each folder may include beside itself and the standard library. The longest match counts.
MAY_INCLUDE = {
    "include/spillway": {PUBLIC},
    "src/base": {PUBLIC},
    "io": {PUBLIC, "src/base"},
    "tiers": {PUBLIC, "src/base", "io"},
    "src/plan": {PUBLIC, "src/base"},
    "src/engine": {PUBLIC, "src/base", "io", "tiers", "src/plan"},
    "src/optim": {PUBLIC, "src/base", "io", "tiers", "src/plan", "src/engine"},
    "tools/hf": set(),
    "tools/trainer": {PUBLIC, "tools/hf"},
    "tools/spillway": {PUBLIC, "src/base", "io", "tiers", "src/plan", "src/engine", "src/optim",
                       "tools/hf", "tools/trainer"},
    "bench": None,  # anything
    "tests": None,
}

# Libraries that only some folders know; tests and benchmarks may include any.
LIBRARIES = {
    "liburing.h": {"io"},
    "sqlite3.h": {"io"},
    "xxhash.h": {"io", "tools/trainer", "tools/spillway"},
    "cblas.h": {"tools/trainer"},
    "CLI/": {"tools/spillway"},
    "nlohmann/": {"tools/hf", "tools/trainer", "tools/spillway"},
}

# CUDA's own headers, wherever they are, are for *_cuda.* files, and for CUDA's sources.
CUDA = re.compile(r"^(cuda|cublas|nvtx|nccl|driver_types)")


@dataclasses.dataclass(frozen=True)
class Wrong:
    file: str
    line: int
    reason: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.reason}"


def folder_of(path, folders=MAY_INCLUDE):
    """The longest folder of `folders` that holds `path`, or None."""
    holders = [folder for folder in folders if path.startswith(folder + "/")]
    return max(holders, key=len, default=None)


def owner_of(included):
    """The project folder that an include path names, or None for a library's header."""
    if included.startswith(PUBLIC + "/"):
        return PUBLIC
    return folder_of(included)


def reason_against(file, included, is_quoted, root):
    """Why `file` may not include `included`, or None."""
    folder = folder_of(file)
    if folder is None:
        return f"this folder is not in {pathlib.Path(__file__).name}: say there what it may include"
    if folder == "include/spillway" and CUDA.match(included):
        return f"<{included}>: a public header never includes CUDA's"
    if CUDA.match(included) and not ("_cuda." in file or file.endswith((".cu", ".cuh"))):
        return f"<{included}>: CUDA's headers are for *_cuda.* files"
    owner = owner_of(included)
    if owner is None:
        return library_reason(folder, file, included, is_quoted, root)
    if owner in ("bench", "tests") and folder not in ("bench", "tests"):
        return f'"{included}": nothing includes {owner}'
    base = root / ("include" if owner == PUBLIC else "")
    if not (base / included).is_file():
        return f'"{included}": no such file'
    own = PUBLIC if folder == "include/spillway" else folder
    allowed = MAY_INCLUDE[folder]
    if owner == own or allowed is None or owner in allowed:
        return None
    return f'"{included}": {folder} may include only {", ".join(sorted(allowed | {own}))}'


def library_reason(folder, file, included, is_quoted, root):
    if is_quoted and (root / file).parent.joinpath(included).is_file():
        return f'"{included}": write the path from the root of the repository'
    if folder in ("bench", "tests"):
        return None
    for library, folders in LIBRARIES.items():
        is_it = included.startswith(library) if library.endswith("/") else included == library
        if is_it and folder not in folders:
            return f"<{included}>: only {', '.join(sorted(folders))} may include it"
    return None


def check(root):
    """Every wrong include under `root`, in order of file and line."""
    wrong = []
    for top in ("include", "src", "io", "tiers", "tools", "bench", "tests"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            file = path.relative_to(root).as_posix()
            if file.startswith("tests/consumer/"):  # a project of its own
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if match := INCLUDE.match(line):
                    reason = reason_against(file, match["path"], match["open"] == '"', root)
                    if reason:
                        wrong.append(Wrong(file, number, reason))
    return wrong


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    if len(sys.argv) == 1:
        root = root.parents[2]
    wrong = check(root)
    for each in wrong:
        print(each, file=sys.stderr)
    if wrong:
        print(f"{len(wrong)} wrong includes; the directions: src/DESIGN.md", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
