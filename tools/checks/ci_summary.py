#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what a run of .ci/run took: the seconds of each step, the slowest tests, the skipped tests, and ctest's last
line.

    tools/checks/ci_summary.py build/ci

Reads seconds.tsv (one line per step: name, seconds) and the results of each run of ctest (NAME.xml, in
JUnit's format) in that folder.
"""

import pathlib
import sys
import xml.etree.ElementTree as xml

SLOWEST = 20


def steps_in(folder):
    """Returns (step, seconds) of each step, in order."""
    file = folder / "seconds.tsv"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [(name, float(seconds)) for name, seconds in (line.rsplit("\t", 1) for line in lines)]


def tests_in(folder):
    """Returns (test with its run, seconds, whether it failed, whether it was skipped) of each test in the results of
    ctest."""
    tests = []
    for file in sorted(folder.glob("*.xml")):
        for case in xml.parse(file).getroot().iter("testcase"):
            skipped = case.find("skipped") is not None
            failed = case.get("status") != "run" and not skipped
            tests.append((f"{case.get('name')} ({file.stem})", float(case.get("time") or 0), failed, skipped))
    return tests


def table(rows):
    return "\n".join(f"{seconds:8.0f} s  {name}" for name, seconds in rows)


def summary(folder):
    steps, tests = steps_in(folder), tests_in(folder)
    text = "\nSeconds of each step:\n"
    text += table(steps + [("in all", sum(seconds for _, seconds in steps))])
    if not tests:
        return text
    slowest = sorted(((name, seconds) for name, seconds, *_ in tests), key=lambda test: -test[1])[:SLOWEST]
    skipped = [name for name, *_, was_skipped in tests if was_skipped]
    failed = sum(has_failed for _, _, has_failed, _ in tests)
    share = (len(tests) - failed) * 100 // len(tests)
    text += f"\n\nThe {len(slowest)} slowest tests:\n{table(slowest)}\n\n"
    if skipped:
        text += f"{len(skipped)} skipped: {', '.join(skipped)}\n"
    return f"{text}{share}% tests passed, {failed} tests failed out of {len(tests)}"


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    print(summary(pathlib.Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
