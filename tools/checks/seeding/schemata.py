# SPDX-License-Identifier: Apache-2.0
"""Draws mutants by a seed, finds them again in another tree, and compiles all of them into one build. An environment
variable selects the active one (mutant_switch.h.in)."""

import bisect
import dataclasses
import pathlib
import random
import re

from . import sites

FOLDERS = ("src/engine", "src/plan", "io/store")
HEADER = "src/base/mutant_switch.h"
OPTIONS = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-w", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
           "-DSPILLWAY_BENCH=OFF", "-DSPILLWAY_CUDA=OFF")


class DoesNotBuild(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A site, with what is needed to find it in another tree: its lines, and which occurrence of these it is in."""

    file: str
    line: int
    column: int
    before: str
    after: str
    switch: str
    lines: str
    occurrence: int
    length: int

    def find(self, text):
        """Returns its start and end in the text of the file, or None if the text does not have these lines."""
        start = -1
        for _ in range(self.occurrence + 1):
            start = text.find(self.lines, start + 1)
            if start < 0:
                return None
        return start + self.column, start + self.column + self.length


def mutant_of(site, text):
    """Returns the mutant for a site. `text` is the text of its file."""
    first = text.rfind("\n", 0, site.start) + 1
    last = text.find("\n", site.end)
    lines = text[first:last + 1]
    occurrence, at = 0, text.find(lines)
    while at != first:
        occurrence, at = occurrence + 1, text.find(lines, at + 1)
    return Mutant(site.file, text.count("\n", 0, site.start) + 1, site.start - first, site.before, site.after,
                  site.switch, lines, occurrence, site.end - site.start)


class Draw:
    """Draws the mutants of a tree in an order that depends only on its text and the seed."""

    def __init__(self, files, seed):
        self.texts = {path: content.decode() for path, (content, _) in files.items()
                      if path.endswith((".cc", ".h")) and path.startswith(tuple(f"{each}/" for each in FOLDERS))}
        self.sites = [site for path in sorted(self.texts) for site in sites.find_sites(path, self.texts[path])]
        random.Random(seed).shuffle(self.sites)
        self.taken = {}  # by file: the ranges of drawn mutants, in order

    def next(self):
        """Returns the next mutant that overlaps none of those before it, or None."""
        while self.sites:
            site = self.sites.pop()
            ranges = self.taken.setdefault(site.file, [])
            at = bisect.bisect(ranges, (site.start, site.end))
            is_free = (at == 0 or ranges[at - 1][1] <= site.start) and (at == len(ranges) or site.end <= ranges[at][0])
            if is_free:
                ranges.insert(at, (site.start, site.end))
                return mutant_of(site, self.texts[site.file])
        return None


def with_mutants(text, mutants):
    """Returns the text with a switch for each (number, mutant). Its lines keep their numbers."""
    ranges = sorted((*mutant.find(text), number, mutant.switch) for number, mutant in mutants)
    for start, end, number, switch in reversed(ranges):
        switch = switch.replace("NUMBER", str(number)).replace("ORIGINAL", text[start:end])
        text = text[:start] + switch + text[end:]
    return f'#include "{HEADER}"  {text}'  # on the first line, before the licence comment


def seed_tree(tree, files, mutants):
    """Makes the copy hold the tree `files` with all mutants compiled in. `mutants` is a dictionary by number."""
    seeded = dict(files)
    header = pathlib.Path(__file__).with_name("mutant_switch.h.in")
    seeded[HEADER] = (header.read_bytes(), False)
    for path in {mutant.file for mutant in mutants.values()}:
        of_file = [(number, mutant) for number, mutant in mutants.items() if mutant.file == path]
        content, executable = files[path]
        seeded[path] = (with_mutants(content.decode(), of_file).encode(), executable)
    tree.sync(seeded)


def build(build_folder):
    """Builds the copy. Returns the compiler's output if that fails, else an empty string."""
    configured = build_folder.configure(["-S", ".", "-B", str(build_folder.folder), *OPTIONS])
    if not configured.passed:
        raise DoesNotBuild(configured.why())
    built = build_folder.build(["all"], keep_going=True)
    return "" if built.passed else built.output


def blamed(output, mutants, root):
    """Returns the numbers of the mutants in whose lines the compiler reports errors."""
    wrong = set()
    for path, line in re.findall(r"(\S+?):(\d+):\d+: ", output):
        # ccache makes paths relative to the build.
        path = re.sub(r"^(?:\.\.?/)+", "", path.removeprefix(f"{root}/"))
        for number, mutant in mutants.items():
            # The line after counts too, because an error may be reported there.
            if mutant.file == path and mutant.line <= int(line) <= mutant.line + mutant.lines.count("\n"):
                wrong.add(number)
    return wrong


def draw_that_compile(draw, count, tree, files, build_folder, tell):
    """Builds `count` mutants, or as many as there are, into the copy, and returns them by number. A mutant that does
    not compile is replaced by the next one drawn."""
    mutants = {}
    number = 0
    while True:
        while len(mutants) < count and (mutant := draw.next()):
            mutants[number] = mutant
            number += 1
        seed_tree(tree, files, mutants)
        tell(f"building {len(mutants)} mutants")
        output = build(build_folder)
        if not output:
            break
        wrong = blamed(output, mutants, tree.root)
        if not wrong:
            raise DoesNotBuild(output[-4000:])
        for each in wrong:
            tell(f"does not compile: {describe(mutants.pop(each))}")
    return mutants


def describe(mutant):
    return f"{mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}"
