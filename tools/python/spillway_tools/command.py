# SPDX-License-Identifier: Apache-2.0
"""What the three commands share: exit codes, messages, and progress on stderr.

Exit codes: 0 done, 1 failed (malformed input, full disk), 2 wrong usage, 3 a memory limit is too
low, 128 + N ended by signal N.
"""

import argparse
import contextlib
import importlib
import math
import os
import re
import sys
import time

from spillway_tools import memory, signals

EXCERPT_CHARACTERS = 80
_MAX_MESSAGE_CHARACTERS = 2000


class InputError(Exception):
    """Malformed or unsupported input, or a file that cannot be read or written. Exit code 1."""


class UsageError(Exception):
    """The request is invalid: wrong flags, or output that exists already. Exit code 2."""


def run(program, parse, module):
    """Runs `module`'s run(parse()) and returns the exit code. Most failures print a line on stderr.

    `module` is a name and is imported late, because its imports take time and memory.
    """
    signals.end_at_once(program)
    _prepare_streams()
    try:
        return _run(program, parse, module)
    except signals.Interrupted as interrupted:  # a signal came while the failure was being printed
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
            sys.stdout.flush()  # reports a full disk here; at exit it is too late
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
    """Prints that a half-made file or folder cannot be removed, and records it."""
    _left_behind.append(path)
    tell(f"{path}: half-made, and it cannot be removed: {error.strerror}; remove it")


def leaves_nothing():
    return not _left_behind


def printable(text):
    """Returns `text` on one line. It may quote a malformed file, so it is escaped."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def tell(text):
    """Prints one line on stderr. The command goes on if stderr cannot be written."""
    _write_stderr(printable(text) + "\n")


def _write_stderr(text):
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        _flush_or_discard(sys.stderr)


@contextlib.contextmanager
def os_errors(what):
    """Turns an OSError into an InputError that says "`what`: the system's message"."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}") from error


def _prepare_streams():
    """Opens the standard streams that are closed, so that no output file gets their descriptors."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest descriptor that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if sys.stdout:
        # Escapes the characters that a terminal's character set lacks, as on stderr.
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush_or_discard(stream):
    """Flushes a stream. If that fails, discards its data, so that the flush at exit succeeds."""
    try:
        if stream:
            stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


def shorten(text, max_characters=EXCERPT_CHARACTERS):
    """Returns `text`, cut off with an ellipsis if it has more than `max_characters`."""
    return text if len(text) <= max_characters else text[:max_characters] + "…"


def format_bytes(count):
    """`1536` -> `1.5 KiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?) ?(?:([Kk]|[MGTP])(i?))?[Bb]?")


def parse_bytes(text):
    """Returns the bytes of a size as the command `spillway` takes it: "123", "48MiB", "1.5 GiB".

    Raises ArgumentTypeError, which argparse turns into a message.
    """
    match = _SIZE.fullmatch(text)
    value, prefix, binary = match.groups() if match else ("", None, None)
    if prefix:
        base = 1024 if binary else 1000
        size = float(value) * base ** ("KMGTP".index(prefix.upper()) + 1)
    else:  # plain bytes are exact: no fraction
        size = int(value) if value.isdecimal() and len(value) < 20 else math.inf
    if size >= 2**63:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: write bytes, or a number with KiB, MiB, GiB, TiB (powers of"
            " 1024) or KB, MB, GB, TB (powers of 1000), for example 48MiB"
        )
    return round(size)


class Parser(argparse.ArgumentParser):
    """An argparse parser that prints examples before the options and keeps their line breaks."""

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


_LINE = 78  # the characters of a progress line, padded


class Progress:
    """Shows progress on stderr: one line that is rewritten on a terminal, else a line every 10 s.

    `total` may be None, as for input from a pipe. Then only the count is shown.
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
            self._show()

    def finish(self, summary):
        """Prints `summary`, the last line. On a terminal it replaces the progress line."""
        blank = f"\r{'':<{min(_LINE, _columns())}}\r" if self._terminal else ""
        _write_stderr(f"{blank}{printable(summary)}\n")

    def _show(self):
        text = f"{self._label}: {format_bytes(self._done)}"
        if self._total:
            share = min(1.0, self._done / self._total)
            text += f" of {format_bytes(self._total)} ({share:.0%})"
        if self._terminal:
            # Blanks, not an escape sequence, overwrite the rest of a longer line. A line that the
            # terminal wraps could not be rewritten, so it is cut.
            columns = _columns()
            _write_stderr(f"\r{text[:columns]:<{min(_LINE, columns)}}")
        else:
            _write_stderr(text + "\n")


def _columns():
    """Returns how many characters of a line the terminal of stderr shows without wrapping it."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return (columns or 80) - 1  # 0: the terminal does not know
