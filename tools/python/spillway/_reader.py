# SPDX-License-Identifier: Apache-2.0
"""Calls spw_register with a function that fills a tensor, and loses no exception that ends the function.

Python may raise an exception before a callback's first statement, as when it runs a signal handler there. Then ctypes prints
the exception and returns any number to the library, often the one that means success. So each read is confirmed
(spw_confirmed_reader), and while the library may call back, the exceptions of signal handlers are kept until it has returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from spillway._errors import Cancelled
from spillway._library import READER, ConfirmedReader, library, u8


def call_with_reader(register: Callable[[Any, Any], int | None], fill: Callable[[int, memoryview], Any]) -> int | None:
    """Returns the status of register(reader, user), which gives both to spw_register. The reader calls fill(offset, out).
    Raises what `fill` raises, and what a signal handler raises meanwhile: within `fill` at once, else after `register` has
    returned. Then the tensor is registered only if all of it was filled before."""
    raised: list[BaseException] = []
    keeps = False  # whether the exceptions of signal handlers go to `raised`

    def read(_: int, offset: int, out: int, size: int) -> int:
        nonlocal keeps
        try:
            keeps = False
            if not raised:
                fill(offset, memoryview((u8 * size).from_address(out)).cast("B"))
            keeps = True
        except BaseException as error:
            keeps = True
            raised.append(error)
        reader.is_done = not raised
        return 0

    def keeping(handler: Callable[..., Any]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            try:
                handler(*arguments)
            except BaseException as error:
                if not keeps:
                    raise
                raised.append(error)

        return run

    reader = ConfirmedReader(READER(read), None, 1)
    try:
        with _handlers_replaced(keeping):
            keeps = True
            status = register(library.spw_read_confirmed, ctypes.byref(reader))
    finally:
        keeps = False  # for a handler that an exception left in place
    if raised:
        library.spw_status_free(status)
        raise raised.pop(0)
    if not reader.is_done:
        library.spw_status_free(status)
        raise Cancelled("data(offset, out) did not begin, because of an exception that Python has printed: the tensor is not "
                        "registered")
    return status


@contextlib.contextmanager
def _handlers_replaced(replace: Callable[[Callable[..., Any]], Callable[..., None]]) -> Iterator[None]:
    """Within the block, each signal handler in Python is replace(handler). Has no effect outside the main thread, where Python
    runs no handler."""
    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                before = signal.getsignal(number)
                if callable(before):
                    handler = replace(before)
                    stack.callback(_put_back, number, handler, before)
                    signal.signal(number, handler)
        yield


def _put_back(number: int, handler: Callable[..., None], before: Callable[..., Any]) -> None:
    if signal.getsignal(number) is handler:  # a handler may have set another
        signal.signal(number, before)
