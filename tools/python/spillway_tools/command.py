# SPDX-License-Identifier: Apache-2.0
"""What the three commands share: exit codes, messages and progress on stderr.

Exit codes: 0 done, 1 failed (malformed input, full disk), 2 wrong usage, 130 interrupted.
"""

import argparse
import os
import signal
import sys
import time

EXCERPT_CHARACTERS = 80
_MAX_MESSAGE_CHARACTERS = 2000


class InputError(Exception):
    """Malformed or unsupported input, or a file that cannot be read or written. Exit code 1."""


class UsageError(Exception):
    """What was asked for cannot be asked for: flags, or output that exists. Exit code 2."""


def run(program, body):
    """Runs `body()`; returns the exit code, with one line on stderr when it is not 0."""
    # A termination unwinds as Ctrl-C does, so that no half-made folder stays.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores the loss of a terminal
            signal.signal(number, lambda received, _: sys.exit(128 + received))
    _prepare_streams()
    try:
        body()
        if sys.stdout:
            sys.stdout.flush()  # a full disk is told here; at exit nothing could be done about it
        return 0
    except UsageError as error:
        return _fail(program, error, 2)
    except InputError as error:
        return _fail(program, error, 1)
    except BrokenPipeError:
        _flush_or_discard_stdout()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(program, f"{where}{error.strerror or error}", 1)
    except MemoryError:
        return _fail(program, "out of memory", 1)
    except KeyboardInterrupt:
        return _fail(program, "interrupted; nothing was left behind", 130)


def _fail(program, message, code):
    """One line, whatever names and values from a malformed file it repeats."""
    _flush_or_discard_stdout()
    text = "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in shorten(str(message), _MAX_MESSAGE_CHARACTERS)
    )
    print(f"{program}: {text}", file=sys.stderr)
    return code


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


def _flush_or_discard_stdout():
    """A stdout that cannot be written must not fail once more in the flush at exit."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


class Progress:
    """One line that is rewritten on a terminal; on a pipe a line every ten seconds, then the last.

    `total` may be None (a pipe is being read): then only the count is shown.
    """

    def __init__(self, label, total, stream=None):
        self._label = label
        self._total = total
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
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
        print(f"{start}{summary:<{width}}", file=self._stream, flush=True)

    def _show(self, start, end):
        text = f"{self._label}: {format_bytes(self._done)}"
        if self._total:
            share = min(1.0, self._done / self._total)
            text += f" of {format_bytes(self._total)} ({share:.0%})"
        print(
            f"{start}{text:<78}" if self._terminal else text, end=end, file=self._stream, flush=True
        )
