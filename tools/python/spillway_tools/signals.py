# SPDX-License-Identifier: Apache-2.0
"""What SIGINT, SIGTERM and SIGHUP do to a command: its stages, one handler each.

While packages are loaded nothing has been made, and a signal ends the process at once: an exception
would come out of whatever package is just being loaded, often as another one. Then a signal raises
`Interrupted`, so that what was made is removed. Once the output is in place it ends the process as
done. A signal that is ignored from the start (nohup) stays so.

Signals are held up here and not by the kernel: it would hand them to another thread of a package.
"""

import os
import signal
import time

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The same key pressed twice asks for one end; what is raised during an unwinding would cut it off.
_REPEAT_SECONDS = 1.0


class Interrupted(KeyboardInterrupt):
    """One of the signals came. `number` says which."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number

    def __str__(self):
        return describe(self.number)


class _State:
    holds = 0
    pending = None  # the signal that came meanwhile
    raised_at = None  # by the monotonic clock


def describe(number):
    if number == signal.SIGINT:
        return "interrupted"
    return f"ended by {signal.Signals(number).name}"


def end_at_once(program):
    """From here on a signal ends the process, with a line on stderr."""

    def end(number, _):
        try:
            os.write(2, f"{program}: {describe(number)}; nothing was left behind\n".encode())
        finally:
            os._exit(128 + number)

    _install(end)


def unwind():
    """From here on a signal raises Interrupted."""
    _install(_raise)


def complete():
    """From here on a signal ends the process as done. Signals that were held up are forgotten."""
    _State.pending = None
    _install(lambda *_: os._exit(0))


def ignore():
    """From here on signals do nothing: the process is about to end by itself."""
    _install(signal.SIG_IGN)


def hold():
    """Signals wait until `release()`, which raises the first of them. Calls nest."""
    _State.holds += 1


def release():
    _State.holds -= 1
    if _State.holds == 0 and _State.pending is not None:
        number, _State.pending = _State.pending, None
        _raise(number, None)


def _raise(number, _):
    now = time.monotonic()
    if _State.holds > 0:
        _State.pending = _State.pending or number
    elif _State.raised_at is None or now - _State.raised_at > _REPEAT_SECONDS:
        _State.raised_at = now
        raise Interrupted(number)


def _install(handler):
    for number in _NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)
