# SPDX-License-Identifier: Apache-2.0
"""Builds a tree, and runs the tests that ctest lists for a build, one by one with a limit of time."""

import dataclasses
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import tempfile
import time

# In memory, for tests that sync often (tests/temp_folder.h).
FAST_PLACE = "/dev/shm"

SKIPPED = 77  # exit code of a test that this machine cannot run

# Patterns of the line that tells why a step failed, the most specific first.
FAILING_LINES = [re.compile(pattern, re.MULTILINE) for pattern in (
    r"^.*(?:ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error): ?.*$",
    r"^.*(?: error: |: fatal error: ).*$",
    r"^.*: Failure\n.*$",
    r"^.*\bterminate called\b.*$",
    r"^\[  FAILED  \] .*$",
    r"^FAIL(?:ED)?: .*$",
    r"^.*\S.*$",
)]


@dataclasses.dataclass(frozen=True)
class Outcome:
    passed: bool
    output: str
    seconds: float
    hung: bool = False

    def why(self):
        """Returns the first text that tells why it failed, on one line."""
        if self.hung:
            return f"no end after {self.seconds:.0f} s"
        for pattern in FAILING_LINES:
            if match := pattern.search(self.output):
                return " ".join(match[0].split())
        return "it failed and said nothing"


# A test of the release build writes far less. It also needs far less memory, but each of two arenas without a budget
# reserves as much address space as the machine has memory, and that counts.
MOST_FILE_BYTES = 8 << 30
MOST_DATA_BYTES = MOST_FILE_BYTES + 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limit_bytes():
    """Limits a test whose mutant allocates or writes without end, and makes the system kill it first."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA_BYTES, MOST_DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    pathlib.Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def run(command, folder, environment=None, limit_seconds=None, prepare=None):
    """Runs a command. At the limit, or at its end, kills all processes that it has started."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=prepare)
        hung = False
        try:
            process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            hung = True
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Outcome(process.returncode in (0, SKIPPED) and not hung, text, time.monotonic() - start, hung)


@dataclasses.dataclass(frozen=True)
class Test:
    name: str
    command: tuple
    folder: str
    environment: tuple  # texts of the form NAME=value
    labels: frozenset
    limit_seconds: float = 1500

    def run(self, environment, limit_seconds, prepare=None):
        """Runs the test with its own folders for temporary files, which are removed afterwards."""
        of_test = dict(each.split("=", 1) for each in self.environment)
        fast = FAST_PLACE if os.access(FAST_PLACE, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="spillway-run-") as slow_folder, \
                tempfile.TemporaryDirectory(prefix="spillway-run-", dir=fast) as fast_folder:
            temporary = {"TMPDIR": slow_folder, "TEST_TMPDIR": slow_folder, "SPILLWAY_TEST_FAST_TMPDIR": fast_folder}
            return run(self.command, self.folder, {**os.environ, **temporary, **of_test, **environment}, limit_seconds,
                       prepare)


class Build:
    """A build folder of a tree."""

    def __init__(self, tree, name, jobs):
        self.tree = pathlib.Path(tree)
        self.folder = self.tree / "build" / name
        self.name = name
        self.jobs = jobs

    def configure(self, options):
        self.folder.mkdir(parents=True, exist_ok=True)
        return run(["cmake", *options], self.tree)

    def build(self, targets, keep_going=False):
        command = ["cmake", "--build", str(self.folder), "--parallel", str(self.jobs), "--target", *targets]
        return run(command + (["--", "-k", "0"] if keep_going else []), self.tree)

    def programs(self, pattern):
        """Returns the targets that build the programs of the tests whose names match."""
        add_test = re.compile(r'^add_test\((?:\[=*\[)?(.+?)(?:\]=*\])? "([^"]+)"', re.MULTILINE)
        found = set()
        for file in self.folder.rglob("CTestTestfile.cmake"):
            for name, program in add_test.findall(file.read_text(encoding="utf-8")):
                if re.search(pattern, name) and program.startswith(f"{self.folder}/"):
                    found.add(str(pathlib.Path(program).relative_to(self.folder)))
        return sorted(found)

    def tests(self, pattern):
        """Returns the tests whose names match. REQUIRES: their programs are built."""
        # With an empty pattern, ctest selects no test.
        chosen = ["-R", pattern] if pattern else []
        listed = subprocess.run(["ctest", "--test-dir", str(self.folder), "--show-only=json-v1", *chosen],
                                check=True, capture_output=True).stdout
        tests = []
        for each in json.loads(listed)["tests"]:
            properties = {one["name"]: one["value"] for one in each["properties"]}
            tests.append(Test(each["name"], tuple(each.get("command", ())), properties["WORKING_DIRECTORY"],
                              tuple(properties.get("ENVIRONMENT", ())), frozenset(properties.get("LABELS", ())),
                              float(properties.get("TIMEOUT", 1500))))
        return tests
