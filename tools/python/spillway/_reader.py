# SPDX-License-Identifier: Apache-2.0
"""Calls spw_register with a function that fills a tensor, and loses no exception that ends the function.

Python may raise an exception before a callback's first statement, as when it runs a signal handler there. Then ctypes gives
the exception to sys.unraisablehook and returns any number to the library, often the one that means success. So each read is
confirmed (spw_confirmed_reader), and the hook keeps the exception until the library has returned.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from spillway._errors import Cancelled
from spillway._library import READER, ConfirmedReader, library, u8


def call_with_reader(register: Callable[[Any, Any], int | None], fill: Callable[[int, memoryview], Any]) -> int | None:
    """Returns the status of register(reader, user), which gives both to spw_register. The reader calls fill(offset, out).
    Raises what ends a read, from `fill` or from a signal handler; then the tensor is not registered. Raises what a signal
    handler raises when `register` has returned, as after any call."""
    raised: list[BaseException] = []
    ignored: list[Any] = []

    def read(reader: int, offset: int, out: int, size: int) -> int:
        try:
            fill(offset, memoryview((u8 * size).from_address(out)).cast("B"))
            ConfirmedReader.from_address(reader).is_done = 1
        except BaseException as error:
            raised.append(error)
        return 0

    reader = ConfirmedReader(READER(read), None, 1)
    reader.user = ctypes.addressof(reader)  # `read` does not refer to the struct, which would be a cycle
    hook = sys.unraisablehook
    # Runs no Python code, so the handler of a second signal cannot break it off.
    keep = functools.partial(ignored.append)
    # Python runs signal handlers only in the main thread. Two threads could not put back the hook in the right order.
    is_main = threading.current_thread() is threading.main_thread()
    try:
        try:
            if is_main:
                sys.unraisablehook = keep
            status = register(library.spw_read_confirmed, ctypes.byref(reader))
        finally:
            if sys.unraisablehook is keep:
                sys.unraisablehook = hook
            keep.__setstate__((hook, (), {}, None))  # whoever has found `keep` in place may call it later
            raised += _taken(ignored, read, hook)
    except BaseException as last:
        if raised and last not in raised:
            last.__context__ = last.__context__ or raised[-1]
        raised.clear()  # the tracebacks refer to it
        raise
    if raised:
        library.spw_status_free(status)
        del raised[:-1]  # Python has made them the context of the last
        raise raised.pop()
    if not reader.is_done:
        library.spw_status_free(status)
        raise Cancelled("data(offset, out) did not begin, because of an exception that Python has printed: the tensor is not "
                        "registered")
    return status


def _taken(ignored: list[Any], read: Callable[..., int], hook: Callable[[Any], Any]) -> list[BaseException]:
    """Empties the list of what Python gave to sys.unraisablehook. Returns the exceptions that ended `read`, and gives the
    others to `hook`."""
    taken = []
    while ignored:
        each = ignored.pop(0)
        if _has_ended(each, read):
            taken.append(each.exc_value)
        else:
            hook(each)
    return taken


def _has_ended(ignored: Any, read: Callable[..., int]) -> bool:
    # From version 3.13 on, Python names the callback only in the message. If a second handler raises while Python makes the
    # message, there is none, and the exception of that handler is lost.
    if ignored.err_msg is not None:
        return ignored.object is read or repr(read) in ignored.err_msg
    return ignored.exc_traceback is not None and ignored.exc_traceback.tb_frame.f_code is read.__code__
