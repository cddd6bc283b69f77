# SPDX-License-Identifier: Apache-2.0
"""How a command handles SIGINT, SIGTERM and SIGHUP. Each stage of a command has its own handler.

While packages are loaded, a signal ends the process at once. Nothing has been made yet, and an
exception would be raised inside the package that is being loaded, which often turns it into another
one. Later, a signal raises `Interrupted`, so that files made so far are removed. Once the output is
in place, a signal ends the process with exit code 0. A signal that was ignored at the start (nohup)
stays ignored.

Signals are blocked in this module and not with a signal mask, because the kernel would deliver them
to another thread, started by a package.
"""

import os
import signal
import time

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A user may press the key twice. A second exception within this time would cut off the clean-up.
_REPEAT_SECONDS = 1.0


class Interrupted(KeyboardInterrupt):
    """One of the signals arrived. `number` is the signal's number."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number

    def __str__(self):
        return describe(self.number)


class _State:
    holds = 0
    pending = None  # the first signal that arrived during a hold
    raised_at = None  # time of the last Interrupted, on the monotonic clock


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
    """From here on a signal ends the process with exit code 0. Held signals are dropped."""
    _State.pending = None
    _install(lambda *_: os._exit(0))


def ignore():
    """From here on signals do nothing, because the process is about to end."""
    _install(signal.SIG_IGN)


def hold():
    """Holds signals until `release()`, which raises Interrupted for the first. Calls nest."""
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
