#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rejects an include against the direction of the folders, and a source that does not include its own header first.

    tools/checks/includes.py [ROOT]            the check
    tools/checks/includes.py --alone [ROOT]    the headers that no source proves to compile alone

Folders include in one direction: tools, bench, tests -> src/capi -> src/optim -> src/engine -> {src/plan,
tiers -> io} -> src/base. Kernels are written with src/simt, which includes the standard library alone. Inside
src/engine, the mover includes pager/, and pager/ includes following/. Only tools/trainer/compute includes
tools/trainer/kernels. Every wrong include is printed as FILE:LINE: reason, and the exit status is then 1.

X.cc must include its own X.h first. Compiling X.cc then proves that X.h needs no other header before it. The target
spillway_headers compiles the other headers, which --alone lists.
"""

import argparse
import dataclasses
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+(?P<open>["<])(?P<path>[^">]+)[">]')
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
TOPS = ("include", "src", "io", "tiers", "tools", "bench", "tests")
GUARD = re.compile(r"^#ifndef (\w+)\n#define \1$", re.MULTILINE)

# The public headers are included as "spillway/...", from include/.
PUBLIC = "spillway"

COMMAND = {PUBLIC, "src/base", "io", "tiers", "src/plan", "src/engine", "src/simulation", "src/optim", "tools/hf", "tools/trainer"}

# What each folder may include beside itself and the standard library. The longest matching folder applies.
MAY_INCLUDE = {
    "include/spillway": {PUBLIC},
    "src/base": {PUBLIC},
    "src/simt": set(),
    "io": {PUBLIC, "src/base"},
    "tiers": {PUBLIC, "src/base", "io"},
    "src/plan": {PUBLIC, "src/base"},
    "src/engine/following": {PUBLIC, "src/base", "src/plan"},
    "src/engine/pager": {PUBLIC, "src/base", "src/plan", "src/engine/following"},
    "src/engine": {PUBLIC, "src/base", "io", "tiers", "src/plan", "src/engine/following", "src/engine/pager"},
    "src/simulation": {PUBLIC, "src/base", "src/plan", "src/engine", "src/engine/following", "src/engine/pager"},
    "src/optim": {PUBLIC, "src/base", "src/simt", "io", "tiers", "src/plan", "src/engine"},
    "src/capi": {PUBLIC, "src/base", "src/optim"},
    "tools/hf": {"src/base"},
    "tools/trainer": {PUBLIC, "src/base", "tools/hf", "tools/trainer/compute", "tools/trainer/compute/gpu"},
    "tools/trainer/compute": {PUBLIC, "src/base", "tools/trainer", "tools/trainer/compute/gpu", "tools/trainer/kernels"},
    "tools/trainer/compute/gpu": {PUBLIC, "src/base", "src/simt", "tiers", "tools/trainer/compute"},
    "tools/trainer/kernels": {PUBLIC, "src/base", "tools/trainer/compute"},
    "tools/spillway/command": COMMAND,
    **{f"tools/spillway/{folder}": COMMAND | {"tools/spillway/command"}
       for folder in ("bench", "report", "store")},
    # Measures the machine with the loops of the benchmarks.
    "tools/spillway/machine": COMMAND | {"tools/spillway/command", "tools/spillway/bench", "tools/trainer/compute"},
    # Counts what a walk would compute.
    "tools/spillway/step": COMMAND | {"tools/trainer/compute"},
    "tools/spillway/gpu": {PUBLIC, "src/base", "tools/trainer/compute/gpu"},
    "tools/spillway/train": COMMAND | {"tools/spillway/command", "tools/spillway/gpu", "tools/spillway/machine",
                                       "tools/spillway/step", "tools/trainer/compute"},
    # Asks with the recipe of train's flags.
    "tools/spillway/plan": COMMAND | {"tools/spillway/command", "tools/spillway/machine", "tools/spillway/step", "tools/spillway/train"},
    # Trains models by name.
    "tools/spillway/bench/train": COMMAND | {"tools/spillway/command", "tools/spillway/bench", "tools/spillway/plan",
                                             "tools/spillway/step", "tools/spillway/train", "tools/trainer/compute"},
    # Lays out the tensors of a question's model.
    "tools/spillway/capacity": COMMAND | {"tools/spillway/command", "tools/spillway/plan", "tools/spillway/train"},
    "tools/spillway/doctor": COMMAND | {"tools/spillway/command", "tools/spillway/store", "tools/trainer/compute/gpu"},  # reports on a store
    "bench": None,  # anything
    "tests": None,
}

# The order of the parts inside a folder. A part may include itself and those before it. A part is a header with its
# sources: X.h, X.cc, X_more.cc.
ORDER = {
    "src/plan": """stop transfer rates tile_bits trace retention room_tree range_map uses frames prices ways_to_retain pack plan op_writer
        reserve make_plan bounds zero_bytes""".split(),
    "src/engine/following": "step_plan plan_index plan_progress ready_ops plan_periods plan_follower".split(),
    "src/engine/pager": """arena_map tile_table use_queue action leases write_failures job page_table
        transfers plan_frames room plan_moves plan_run arrivals flush pager""".split(),
    "src/engine": """open_engine recorded_step overlap_meter caller_waits rate_meter resting_room plan_service step_planner
        timeline_recorder transfer_thread mover tensor_registry tensor_reader store_reader engine_stream engine_parts
        engine""".split(),
}

# Libraries that only some folders may include. Tests and benchmarks may include any.
LIBRARIES = {
    "liburing.h": {"io"},
    "sqlite3.h": {"io"},
    "xxhash.h": {"io", "tools/trainer", "tools/spillway"},
    "cblas.h": {"tools/trainer"},
    "CLI/": {"tools/spillway/command"},  # adds 4 to 8 s to the compilation of a source
    "nlohmann/": {"src/capi", "tools/hf", "tools/trainer", "tools/spillway"},
}

# Only *_cuda.* files and CUDA sources may include the headers of CUDA, in any folder.
CUDA = re.compile(r"^(cuda|cublas|nvtx|nccl|driver_types)")


@dataclasses.dataclass(frozen=True)
class Wrong:
    file: str
    line: int
    reason: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.reason}"


def folder_of(path, folders=MAY_INCLUDE):
    """Returns the longest folder of `folders` that holds `path`, or None."""
    holders = [folder for folder in folders if path.startswith(folder + "/")]
    return max(holders, key=len, default=None)


def owner_of(included):
    """Returns the project folder that an include path names, or None for a library's header."""
    if included.startswith(PUBLIC + "/"):
        return PUBLIC
    return folder_of(included)


def reason_against(file, included, is_quoted, root):
    """Returns why `file` may not include `included`, or None."""
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
    if folder in ORDER and owner == folder:
        return order_reason(folder, file, included)
    own = PUBLIC if folder == "include/spillway" else folder
    allowed = MAY_INCLUDE[folder]
    if owner == own or allowed is None or owner in allowed:
        return None
    return f'"{included}": {folder} may include only {", ".join(sorted(allowed | {own}))}'


def part_of(path, order):
    """Returns the part of `order` that a file belongs to: the longest name that fits. None if there is none."""
    stem = pathlib.PurePosixPath(path).stem
    return max((part for part in order if stem == part or stem.startswith(part + "_")), key=len, default=None)


def order_reason(folder, file, included):
    order = ORDER[folder]
    part, other = part_of(file, order), part_of(included, order)
    if part is None:
        return f"{folder} has no part for this file: say in ORDER of {pathlib.Path(__file__).name} where it comes"
    if other is not None and order.index(other) <= order.index(part):
        return None
    return f'"{included}": in {folder}, {part} comes before it'


def library_reason(folder, file, included, is_quoted, root):
    if is_quoted and (root / file).parent.joinpath(included).is_file():
        return f'"{included}": write the path from the root of the repository'
    if folder in ("bench", "tests"):
        return None
    for library, folders in LIBRARIES.items():
        is_it = included.startswith(library) if library.endswith("/") else included == library
        if is_it and not any(f"{folder}/".startswith(f"{each}/") for each in folders):
            return f"<{included}>: only {', '.join(sorted(folders))} may include it"
    return None


def own_header(source, root):
    """Returns the header of the source X.cc: X.h beside it, or for a source in src/ the public one, or None."""
    path = pathlib.PurePosixPath(source)
    candidates = [path.with_suffix(".h")]
    if path.is_relative_to("src"):
        candidates.append(pathlib.PurePosixPath("include", PUBLIC, path.stem + ".h"))
    return next((each.as_posix() for each in candidates if (root / each).is_file()), None)


def first_include_reason(source, included, root):
    """Returns why `included` may not be the first include of `source`, or None."""
    header = own_header(source, root)
    if header is None or included == header.removeprefix("include/"):
        return None
    return f'"{header.removeprefix("include/")}" must be the first include: it is then seen to need nothing before it'


def headers_to_compile(root):
    """Returns the headers that no source proves to compile alone. Sources in tests/ are compiled with a precompiled
    header, so their first includes prove nothing. Headers of *_cuda files are left out, as they need a CUDA build."""
    sources = [file for file in project_files(root) if file.endswith(".cc") and not file.startswith("tests/")]
    proven = {own_header(source, root) for source in sources}
    return [file for file in project_files(root)
            if file.endswith(".h") and not file.endswith("_cuda.h") and file not in proven]


def project_files(root):
    for top in TOPS:
        for path in sorted((root / top).rglob("*")):
            file = path.relative_to(root).as_posix()
            # tests/consumer is a project of its own.
            if path.suffix in SUFFIXES and not file.startswith("tests/consumer/"):
                yield file


def wrong_in(file, root):
    """Yields every wrong include of `file`: first that of its own header, then the others by line."""
    lines = (root / file).read_text(encoding="utf-8").splitlines()
    includes = [(number, match) for number, line in enumerate(lines, start=1) if (match := INCLUDE.match(line))]
    if file.endswith(".cc"):
        number, first = includes[0] if includes else (1, None)
        if reason := first_include_reason(file, first and first["path"], root):
            yield Wrong(file, number, reason)
    for number, match in includes:
        if reason := reason_against(file, match["path"], match["open"] == '"', root):
            yield Wrong(file, number, reason)


def check(root):
    """Returns every wrong include under `root`, then every header without an include guard. spillway_headers includes
    each header that it compiles alone twice, which proves the guards of those."""
    wrong = [each for file in project_files(root) for each in wrong_in(file, root)]
    compiled = set(headers_to_compile(root))
    for file in project_files(root):
        if file.endswith(".h") and file not in compiled and not GUARD.search((root / file).read_text(encoding="utf-8")):
            wrong.append(Wrong(file, 1, "no include guard: #ifndef NAME, then #define NAME"))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true", help="list the headers that must be compiled alone")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2],
                        metavar="ROOT", help="of the repository (default: this one)")
    arguments = parser.parse_args()
    if arguments.alone:
        print(*headers_to_compile(arguments.root), sep="\n")
        return 0
    wrong = check(arguments.root)
    for each in wrong:
        print(each, file=sys.stderr)
    if wrong:
        print(f"{len(wrong)} wrong; the directions: src/DESIGN.md", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
