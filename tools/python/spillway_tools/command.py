# SPDX-License-Identifier: Apache-2.0
"""What the three commands share: exit codes, messages and progress on stderr.

Exit codes: 0 done, 1 failed (malformed input, full disk), 2 wrong usage, 3 too little memory
allowed, 128 + N ended by signal N.
"""

import argparse
import contextlib
import importlib
import os
import sys
import time

from spillway_tools import memory, signals

EXCERPT_CHARACTERS = 80
_MAX_MESSAGE_CHARACTERS = 2000


class InputError(Exception):
    """Malformed or unsupported input, or a file that cannot be read or written. Exit code 1."""


class UsageError(Exception):
    """What was asked for cannot be asked for: flags, or output that exists. Exit code 2."""


def run(program, parse, module):
    """Runs `module`'s run(parse()); returns the exit code, with a line on stderr when it is not 0.

    `module` is named and not imported: what it imports takes a while, and memory.
    """
    signals.end_at_once(program)
    _prepare_streams()
    try:
        return _run(program, parse, module)
    except signals.Interrupted as interrupted:  # while the end was being told
        return 128 + interrupted.number
    finally:
        signals.ignore()
        _flush_or_discard(sys.stdout)
        _flush_or_discard(sys.stderr)


def _run(program, parse, module):
    try:
        arguments = parse()
        body = _load(module)
        signals.unwind()
        body.run(arguments)
        if sys.stdout:
            sys.stdout.flush()  # a full disk is told here; at exit nothing could be done about it
        return 0
    except UsageError as error:
        return _fail(program, error, 2)
    except memory.TooLittleMemory as error:
        return _fail(program, error, 3)
    except InputError as error:
        return _fail(program, error, 1)
    except BrokenPipeError:
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(program, f"{where}{error.strerror or error}", 1)
    except MemoryError:
        return _fail(program, "out of memory", 1)
    except signals.Interrupted as interrupted:
        left = "; nothing was left behind" if leaves_nothing() else ""
        return _fail(program, f"{interrupted}{left}", 128 + interrupted.number)


def _load(module):
    memory.require_memory()
    with memory.one_blas_thread():
        return importlib.import_module(module)


def _fail(program, message, code):
    _flush_or_discard(sys.stdout)
    tell(f"{program}: {shorten(str(message), _MAX_MESSAGE_CHARACTERS)}")
    return code


_left_behind = []


def leave_behind(path, error):
    """Tells of a half-made file or folder that cannot be removed."""
    _left_behind.append(path)
    tell(f"{path}: half-made, and it cannot be removed: {error.strerror}; remove it")


def leaves_nothing():
    return not _left_behind


def printable(text):
    """`text` on one line, whatever names and values from a malformed file it repeats."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def tell(text):
    """One line on stderr. A stderr that cannot be written is no reason to end."""
    _write_stderr(printable(text) + "\n")


def _write_stderr(text):
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        _flush_or_discard(sys.stderr)


@contextlib.contextmanager
def os_errors(what):
    """An OSError becomes an InputError, "`what`: the system's words"."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}") from error


def _prepare_streams():
    """What was closed is opened, so that no file of the output gets its descriptor."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest descriptor that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if sys.stdout:
        # What a terminal's character set lacks is shown escaped, as on stderr, and is no error.
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush_or_discard(stream):
    """A stream that cannot be written must not fail once more in the flush at exit."""
    try:
        if stream:
            stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


def shorten(text, max_characters=EXCERPT_CHARACTERS):
    """`text`, cut off with an ellipsis where it is longer than that."""
    return text if len(text) <= max_characters else text[:max_characters] + "…"


def format_bytes(count):
    """`1536` -> `1.5 KiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


class Parser(argparse.ArgumentParser):
    """argparse that prints the examples first and leaves their line breaks alone."""

    def __init__(self, examples, **arguments):
        super().__init__(
            description=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **arguments,
        )

    def _print_message(self, message, file=None):
        if not message:
            return
        text = "".join(printable(line) + "\n" for line in message.rstrip("\n").split("\n"))
        if file is sys.stdout:
            file.write(text)
        else:
            _write_stderr(text)


class Progress:
    """One line that is rewritten on a terminal; on a pipe a line every ten seconds, then the last.

    `total` may be None (a pipe is being read): then only the count is shown.
    """

    def __init__(self, label, total):
        self._label = label
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._done = 0
        self._last = time.monotonic()

    def add(self, count):
        self._done += count
        now = time.monotonic()
        if now - self._last >= (0.1 if self._terminal else 10.0):
            self._last = now
            self._show("\r" if self._terminal else "", "" if self._terminal else "\n")

    def finish(self, summary):
        """`summary` is the line that stays."""
        start = "\r" if self._terminal else ""
        # Blanks, not an escape sequence, hide what is left of a longer line.
        width = 78 if self._terminal else 0
        _write_stderr(f"{start}{printable(summary):<{width}}\n")

    def _show(self, start, end):
        text = f"{self._label}: {format_bytes(self._done)}"
        if self._total:
            share = min(1.0, self._done / self._total)
            text += f" of {format_bytes(self._total)} ({share:.0%})"
        _write_stderr((f"{start}{text:<78}" if self._terminal else text) + end)
