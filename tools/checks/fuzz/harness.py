# SPDX-License-Identifier: Apache-2.0
"""Runs spillway-import on one input after another, each in its own process with limits of time and memory.

The process is a fork of this one, which has already imported the importer and its packages, so an input takes about
10 ms. An input passes if the exit code is 0, 1 or 2, the message has one line and no traceback, no file is left
behind, and, with exit code 0, the folder holds a model.
"""

import dataclasses
import os
import pathlib
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback

_LIMIT_CPU_SECONDS = 20
_LIMIT_SECONDS = 200  # for a process that waits; on a busy machine 20 CPU seconds may take as long
_LIMIT_BYTES = 512 << 20  # beyond the memory of the packages
_LIMIT_FILE_BYTES = 64 << 20
_LIMIT_MESSAGE_BYTES = 10_000
_SECONDS_BETWEEN_LINES = 30
_MAX_FAILURES = 20
_CODES = (0, 1, 2)


@dataclasses.dataclass
class Failure:
    kind: str  # the same for inputs that fail in the same way
    stderr: str


class Harness:
    """Runs inputs in a temporary folder, in memory (/dev/shm) if possible. Context manager."""

    def __init__(self, import_main, check_model, suffix):
        """`check_model(folder)` raises an error if the imported folder holds no valid model."""
        self._main = import_main
        self._check_model = check_model
        self._suffix = suffix

    def __enter__(self):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="spillway-fuzz-", dir=memory))
        with open("/proc/self/statm", encoding="ascii") as statm:
            self._limit_bytes = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + _LIMIT_BYTES
        return self

    def __exit__(self, *_):
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, data):
        """Returns the exit code and None, or None and a Failure."""
        work = self._folder / "work"
        work.mkdir()
        try:
            source = work / f"input{self._suffix}"
            source.write_bytes(data)
            code = self._run_process(source)
            stderr = (self._folder / "stderr").read_text(errors="replace")
            kind = self._judge(code, stderr, {entry.name for entry in work.iterdir()} - {source.name})
            return (None, Failure(kind, stderr)) if kind else (code, None)
        finally:
            shutil.rmtree(work)

    def _run_process(self, source):
        """Returns the exit code, or a text if the process was killed by a signal or ran out of time."""
        process = os.fork()
        if process == 0:
            self._child(source)
        descriptor = os.pidfd_open(process)
        try:
            in_time, _, _ = select.select([descriptor], [], [], _LIMIT_SECONDS)
            if not in_time:
                os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
        finally:
            os.close(descriptor)
        if not in_time:
            return f"took more than {_LIMIT_SECONDS} s"
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    def _child(self, source):
        code = 70
        try:
            stderr = os.open(self._folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(stderr, 2)
            resource.setrlimit(resource.RLIMIT_AS, (self._limit_bytes, self._limit_bytes))
            resource.setrlimit(resource.RLIMIT_CPU, (_LIMIT_CPU_SECONDS, _LIMIT_CPU_SECONDS + 1))
            resource.setrlimit(resource.RLIMIT_FSIZE, (_LIMIT_FILE_BYTES, _LIMIT_FILE_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            out = source.with_name("out")
            sys.argv = ["spillway-import", str(source), str(out)]
            try:
                self._main()
            except SystemExit as end:
                code = end.code or 0
            if code == 0:
                self._check_model(out)
                shutil.rmtree(out)
        except BaseException:
            code = 70
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    @staticmethod
    def _judge(code, stderr, left):
        """Returns why an input failed, or '' if it passed."""
        if "Traceback (most recent call last)" in stderr or "panicked at" in stderr:
            # Numbers differ between inputs that fail in the same way.
            return "traceback: " + re.sub(r"\d+", "N", stderr.strip().splitlines()[-1])[:120]
        if code not in _CODES:
            return str(code)
        if left:
            return f"left {', '.join(sorted(re.sub('partial-.*', 'partial-*', name) for name in left))}"
        if "out of memory" in stderr:
            return f"took more than {_LIMIT_BYTES >> 20} MiB"
        if ".partial-" in stderr:
            return "the message names a temporary file"
        if len(stderr.encode()) > _LIMIT_MESSAGE_BYTES:
            return "the message is long"
        if code != 0 and len(stderr.splitlines()) != 2:  # "reading …" and the message
            return f"{len(stderr.splitlines())} lines on stderr"
        return ""


class Campaign:
    """Runs inputs that `mutate(random, data)` makes from the valid files of a corpus.

    First it runs the files of the corpus unchanged, and the `found` files, which are inputs that failed once.
    """

    def __init__(self, harness, corpus, found, mutate, seed, out):
        self._harness = harness
        self._corpus = corpus  # name -> bytes
        self._found = found
        self._mutate = mutate
        self._seed = seed
        self._out = pathlib.Path(out)  # folder for failing inputs
        self._failures = {}
        self._codes = dict.fromkeys(_CODES, 0)

    def run(self, seconds):
        """Returns True if no input failed."""
        begin = said = time.monotonic()
        for name, data in sorted((self._corpus | self._found).items()):
            self._take(name, data)
        number = 0
        while time.monotonic() - begin < seconds and len(self._failures) < _MAX_FAILURES:
            self.run_one(number)
            number += 1
            if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                print(f"  {number} inputs, {len(self._failures)} failures, {said - begin:.0f} s", flush=True)
        codes = ", ".join(f"{count} with exit code {code}" for code, count in self._codes.items())
        print(
            f"{len(self._corpus | self._found)} files of the corpus and {number} mutants of them in"
            f" {time.monotonic() - begin:.0f} s: {codes}, {len(self._failures)} failures"
        )
        return not self._failures

    def run_one(self, number):
        """Runs input `number` of this seed. It does not depend on the other inputs."""
        chooser = random.Random(f"{self._seed}/{number}")
        data = self._mutate(chooser, self._corpus[chooser.choice(sorted(self._corpus))])
        self._take(f"{self._seed}-{number}", data)

    @property
    def failed(self):
        return bool(self._failures)

    def _take(self, name, data):
        code, failure = self._harness.run(data)
        if failure is None:
            self._codes[code] += 1
            return
        if failure.kind in self._failures:
            return
        self._out.mkdir(parents=True, exist_ok=True)
        path = self._out / name
        path.write_bytes(data)
        self._failures[failure.kind] = path
        print(f"FAILED: {path}: {failure.kind}\n{failure.stderr}", flush=True)
