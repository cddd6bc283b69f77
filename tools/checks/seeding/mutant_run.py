# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that reach each mutant, the quickest first, until one fails."""

import collections
import concurrent.futures
import dataclasses
import math
import tempfile
import threading

from . import suite

# Tests whose result does not depend on the mutated library, or that take too long.
LABELS_LEFT_OUT = {"slow", "gpu", "reference", "checks"}
# With a fixed seed, random tests try the same cases for every mutant.
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
    tests: int = 0  # how many reach it
    tried: int = 0  # how many of these were run


class Runner:
    """Runs tests in parallel, but never a test beside itself, because some use a fixed folder. The tests that are run
    for one mutant take at most `most_seconds` together when no mutant is active."""

    def __init__(self, jobs, tell, most_seconds=math.inf):
        self.jobs = jobs
        self.tell = tell
        self.most_seconds = most_seconds
        self.locks = collections.defaultdict(threading.Lock)

    def _run(self, test, environment, limit_seconds):
        with self.locks[test.name]:
            return test.run({**SEED, **environment}, limit_seconds, suite.limit_bytes)

    def reach(self, tests, num_numbers):
        """Returns which mutants each test reaches while none is active. A test that fails then is left out."""
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
        """Yields a verdict for each number, in order."""
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
            # A mutant may make the test loop for ever.
            limit_seconds = 5 * reach.seconds + 20
            outcome = self._run(reach.test, {"SPILLWAY_MUTANT": str(number)}, limit_seconds)
            if outcome.passed:
                continue
            # A test that fails only sometimes has not found the mutant.
            if not outcome.hung and self._run(reach.test, {"SPILLWAY_MUTANT": str(number)}, limit_seconds).passed:
                self.tell(f"mutant {number}: {reach.test.name} failed once and passed once: {outcome.why()}")
                continue
            return Verdict(number, "killed", reach.test.name, outcome.why(), len(reaching), tried + 1)
        return Verdict(number, "survived" if reaching else "not reached", tests=len(reaching), tried=len(reaching))
