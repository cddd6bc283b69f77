# SPDX-License-Identifier: Apache-2.0
"""Defers Ctrl-C while an operation must be done as a whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def later_interrupts() -> Iterator[None]:
    """Defers Ctrl-C within the block: its handler runs when the block ends. Has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    pressed: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *what: pressed.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed and callable(before):
            before(*pressed[0])
        elif pressed and before == signal.SIG_DFL:
            signal.raise_signal(signal.SIGINT)  # ends the process
