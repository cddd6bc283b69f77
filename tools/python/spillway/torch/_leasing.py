# SPDX-License-Identifier: Apache-2.0
"""Runs operations of several threads that lease the tensors they use: one that finds no room waits for the others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import spillway


class _Mine(threading.local):
    """What this thread runs."""

    def __init__(self) -> None:
        self.under_way: set[object] = set()  # operations and none(), from before they begin until they have ended


class Leasing:
    """The operations of one run. An operation leases everything that it uses before it begins, and releases all of it
    before it waits. So an operation that has its leases ends, and the operations that wait for it go on.

    An operation is an object in a set, so that its end can be recorded twice. A `finally` does that, because the exception
    of a signal handler, such as KeyboardInterrupt, can break off the first of two calls in it even before it has begun.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()  # held by the operation that tries again
        self._alone = threading.Lock()  # held by a thread in none()
        # Of `_changed`. It is used itself in a `with`, because Condition.__enter__ is Python code: an exception of a signal
        # handler could break it off when it has the lock.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._shut: set[object] = set()  # the none() that waits or whose block runs
        self._active: set[object] = set()  # operations that take or hold leases
        self._begun = self._ended = 0
        self._mine = _Mine()

    @contextlib.contextmanager
    def operation(self, lease_all: Callable[[contextlib.ExitStack], Any]) -> Iterator[Any]:
        """Runs the block with the leases that `lease_all` enters into the stack, and yields what it returns. Raises
        ResourceExhausted if there is no room although no other operation holds leases."""
        me = object()
        # A nested operation, of a signal's handler perhaps, does not wait for room: it would wait for the one that contains it.
        lease = self._try if self._mine.under_way else self._lease
        stack = contextlib.ExitStack()
        try:
            self._mine.under_way.add(me)
            yield lease(me, stack, lease_all)
        finally:
            try:
                self._finish(me, stack)
            finally:
                self._finish(me, stack)

    def call(self, of_engine: Callable[[], Any]) -> Any:
        """Returns the result of an engine call that takes leases itself and may be repeated."""
        with self.operation(lambda _: of_engine()) as returned:
            return returned

    @contextlib.contextmanager
    def none(self) -> Iterator[None]:
        """Runs the block while no operation of another thread holds a lease: operations under way end first, and new ones
        wait. If this thread is within an operation or a none() already, as when a signal's handler runs there, other
        operations are not excluded."""
        if self._mine.under_way:
            yield
            return
        me = object()
        try:
            self._mine.under_way.add(me)
            with self._alone:
                with self._lock:
                    self._shut.add(me)
                    self._changed.wait_for(lambda: not self._active)
                yield
        finally:
            try:
                self._finish(me, None)
            finally:
                self._finish(me, None)

    def _lease(self, me: object, stack: contextlib.ExitStack, lease_all: Callable[[contextlib.ExitStack], Any]) -> Any:
        with contextlib.suppress(spillway.ResourceExhausted):
            return self._try(me, stack, lease_all)
        with self._turn:
            while True:
                with self._lock:
                    begun, was_alone = self._begun, not self._active
                try:
                    return self._try(me, stack, lease_all)
                except spillway.ResourceExhausted as error:
                    if was_alone and self._begun == begun + 1:
                        raise spillway.ResourceExhausted(f"{error}. An operation leases all the tensors that it uses: give "
                                                         "them more room (pinned=, on a GPU device_memory=)") from None
                with self._lock:
                    ended = self._ended
                    self._changed.wait_for(lambda: not self._active or self._ended != ended)

    def _try(self, me: object, stack: contextlib.ExitStack, lease_all: Callable[[contextlib.ExitStack], Any]) -> Any:
        with self._lock:
            self._changed.wait_for(lambda: not self._shut or len(self._mine.under_way) > 1)  # nested: see operation()
            self._active.add(me)
            self._begun += 1
        try:
            return lease_all(stack)
        except BaseException:
            self._end(me, stack)
            raise

    def _end(self, me: object, stack: contextlib.ExitStack | None) -> None:
        """Releases the leases in the stack, and records that an operation or a none() has ended. May be called again."""
        if stack is not None:
            stack.close()
        with self._lock:
            self._active.discard(me)
            self._shut.discard(me)
            self._ended += 1
            self._changed.notify_all()

    def _finish(self, me: object, stack: contextlib.ExitStack | None) -> None:
        self._end(me, stack)
        self._mine.under_way.discard(me)
