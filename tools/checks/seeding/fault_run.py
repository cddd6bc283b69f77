# SPDX-License-Identifier: Apache-2.0
"""Applies one fault after another to a copy of the tree, and checks whether its step of .ci/run finds it."""

import dataclasses
import re
import time

from . import suite

# A test that takes longer counts as hung. The slowest ones here take about 20 s under a sanitizer.
TEST_SECONDS = 180


@dataclasses.dataclass(frozen=True)
class Finding:
    fault: object
    found: bool
    line: str
    seconds: float


def run_check(check, tree, jobs):
    """Runs the reduced step `check`. Returns the first outcome that fails, or the last one."""
    outcome = suite.Outcome(True, "", 0)
    if check.preset:
        build = suite.Build(tree.root, check.preset, jobs)
        outcome = build.configure(["--preset", check.preset])
        targets = list(check.targets) + (build.programs(check.tests) if check.tests and outcome.passed else [])
        if outcome.passed and targets:
            outcome = build.build(targets)
        if outcome.passed and check.tests:
            outcome = run_tests(build.tests(check.tests))
    if outcome.passed and check.command:
        outcome = suite.run(list(check.command), tree.root)
    return outcome


def run_tests(tests):
    for test in tests:
        outcome = test.run({}, TEST_SECONDS)
        if not outcome.passed:
            return dataclasses.replace(outcome, output=f"{test.name}: {outcome.why()}\n{outcome.output}")
    if not tests:
        return suite.Outcome(False, "no such test", 0)
    return suite.Outcome(True, "", 0)


def run_faults(faults, tree, files, jobs, tell):
    """Yields a Finding for each fault. `files` is the tree without faults, as TreeCopy.sync takes it."""
    passed = set()
    for fault in faults:
        tree.sync(files)
        if fault.check not in passed:
            tell(f"{fault.check.step}, without a fault")
            outcome = run_check(fault.check, tree, jobs)
            if not outcome.passed:
                tell(f"{fault.check.step} fails without a fault, once more: {outcome.why()}")
                outcome = run_check(fault.check, tree, jobs)
            if not outcome.passed:
                line = f"{fault.check.step} fails without a fault, so it proves nothing: {outcome.why()}"
                yield Finding(fault, False, line, outcome.seconds)
                continue
            passed.add(fault.check)
        tell(f"{fault.check.step}, with fault {fault.name}")
        start = time.monotonic()
        tree.write(fault.file, fault.apply(tree.read(fault.file)))
        try:
            outcome = run_check(fault.check, tree, jobs)
        finally:
            tree.sync(files)
        found = not outcome.passed and re.search(fault.says, outcome.output + outcome.why()) is not None
        line = "it passed" if outcome.passed else outcome.why()
        yield Finding(fault, found, line, time.monotonic() - start)
