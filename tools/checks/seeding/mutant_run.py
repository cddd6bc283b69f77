# SPDX-License-Identifier: Apache-2.0
"""Runs, for each mutant, the tests that reach it, the quickest first, until one fails."""

import collections
import concurrent.futures
import dataclasses
import math
import tempfile
import threading

from . import suite

# What the mutated library does not decide, or takes too long.
LABELS_LEFT_OUT = {"slow", "gpu", "reference", "checks"}
# Random tests try the same with every mutant.
SEED = {"SPILLWAY_TEST_SEED": "1"}


@dataclasses.dataclass(frozen=True)
class Reach:
    test: object
    seconds: float
    numbers: frozenset


@dataclasses.dataclass(frozen=True)
class Verdict:
    number: int
    result: str  # killed, survived, not reached
    by: str = ""  # the test
    line: str = ""
    tests: int = 0  # that reach it
    tried: int = 0  # of them


class Runner:
    """Runs tests beside each other, but no test twice at a time: some have a folder of their own. A mutant meets tests
    that together take at most `most_seconds` without one."""

    def __init__(self, jobs, tell, most_seconds=math.inf):
        self.jobs = jobs
        self.tell = tell
        self.most_seconds = most_seconds
        self.locks = collections.defaultdict(threading.Lock)

    def _run(self, test, environment, limit_seconds):
        with self.locks[test.name]:
            return test.run({**SEED, **environment}, limit_seconds, suite.limit_bytes)

    def reach(self, tests, num_numbers):
        """What each test reaches with no mutant active. A test that fails so is left out."""
        def one(test):
            with tempfile.NamedTemporaryFile(prefix="spillway-mutants-") as marks:
                marks.write(bytes(num_numbers))
                marks.flush()
                outcome = self._run(test, {"SPILLWAY_MUTANTS_REACHED": marks.name},
                                    self.jobs * test.limit_seconds)
                marks.seek(0)
                reached = frozenset(number for number, mark in enumerate(marks.read()) if mark)
            if not outcome.passed:
                self.tell(f"{test.name} fails without a mutant and is left out: {outcome.why()}")
                return None
            return Reach(test, outcome.seconds, reached)
        chosen = [test for test in tests if test.command and not test.labels & LABELS_LEFT_OUT]
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            return sorted(filter(None, pool.map(one, chosen)), key=lambda reach: reach.seconds)

    def judge(self, numbers, reaches):
        """A verdict for each number, in order."""
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for verdict in pool.map(lambda number: self._judge(number, reaches), numbers):
                self.tell(f"mutant {verdict.number}: {verdict.result} {verdict.by}".rstrip())
                yield verdict

    def _judge(self, number, reaches):
        reaching = [reach for reach in reaches if number in reach.numbers]
        seconds = 0
        for tried, reach in enumerate(reaching):
            seconds += reach.seconds
            if seconds > self.most_seconds:
                return Verdict(number, "survived", tests=len(reaching), tried=tried)
            # A mutant may loop for ever.
            limit_seconds = 5 * reach.seconds + 20
            outcome = self._run(reach.test, {"SPILLWAY_MUTANT": str(number)}, limit_seconds)
            if outcome.passed:
                continue
            # A test that fails now and then has not found the mutant.
            if not outcome.hung and self._run(reach.test, {"SPILLWAY_MUTANT": str(number)}, limit_seconds).passed:
                self.tell(f"mutant {number}: {reach.test.name} failed once and passed once: {outcome.why()}")
                continue
            return Verdict(number, "killed", reach.test.name, outcome.why(), len(reaching), tried + 1)
        return Verdict(number, "survived" if reaching else "not reached", tests=len(reaching), tried=len(reaching))
