# SPDX-License-Identifier: Apache-2.0
"""Defers signal handlers while an operation must be done as a whole: they may raise, or save a checkpoint."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

# What users and schedulers of clusters send. Ctrl-C is the first to be deferred and the last to be restored, so that its
# exception does not break that off.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


@contextlib.contextmanager
def later_interrupts() -> Iterator[None]:
    """Defers Ctrl-C, and the handlers in Python of signals that end a run or make it save, within the block: they run when
    the block ends. Has no effect outside the main thread, where Python runs no handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with contextlib.ExitStack() as stack:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) or (number == signal.SIGINT and handler == signal.SIG_DFL):
                stack.enter_context(_later(number))
        yield


@contextlib.contextmanager
def _later(number: signal.Signals) -> Iterator[None]:
    received: list[Any] = []
    before = signal.signal(number, lambda *what: received.append(what))
    try:
        yield
    finally:
        signal.signal(number, before)
        if received and callable(before):
            before(*received[0])
        elif received:
            signal.raise_signal(number)  # ends the process
