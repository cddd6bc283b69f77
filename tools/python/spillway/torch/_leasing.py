# SPDX-License-Identifier: Apache-2.0
"""Runs operations of several threads that lease the tensors they use: one that finds no room waits for the others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import spillway


class Leasing:
    """The operations of one run. An operation leases everything that it uses before it begins, and releases all of it
    before it waits. So an operation that has its leases ends, and the operations that wait for it go on."""

    def __init__(self) -> None:
        self._turn = threading.Lock()  # held by the operation that tries again
        self._alone = threading.Lock()  # held by a thread in none()
        self._is_shut = False
        self._changed = threading.Condition()
        self._active = 0  # operations that take or hold leases
        self._begun = self._ended = 0
        self._mine = threading.local()  # depth: the number of nested operations of this thread

    @contextlib.contextmanager
    def operation(self, lease_all: Callable[[contextlib.ExitStack], Any]) -> Iterator[Any]:
        """Runs the block with the leases that `lease_all` enters into the stack, and yields what it returns. Raises
        ResourceExhausted if there is no room although no other operation holds leases."""
        depth = getattr(self._mine, "depth", 0)
        # A nested operation does not wait for room: it would wait for the operation that contains it.
        stack, leased = self._lease(lease_all) if depth == 0 else self._try(lease_all)
        self._mine.depth = depth + 1
        try:
            with stack:
                yield leased
        finally:
            self._mine.depth = depth
            self._end()

    def call(self, of_engine: Callable[[], Any]) -> Any:
        """Returns the result of an engine call that takes leases itself and may be repeated."""
        with self.operation(lambda _: of_engine()) as returned:
            return returned

    @contextlib.contextmanager
    def none(self) -> Iterator[None]:
        """Runs the block while no operation of another thread holds a lease: operations under way end first, and new ones
        wait. If this thread is within an operation already, other operations are not excluded."""
        if getattr(self._mine, "depth", 0) > 0:
            yield
            return
        with self._alone:
            try:
                with self._changed:
                    self._is_shut = True
                    self._changed.wait_for(lambda: self._active == 0)
                self._mine.depth = 1
                yield
            finally:
                self._mine.depth = 0
                with self._changed:
                    self._is_shut = False
                    self._changed.notify_all()

    def _lease(self, lease_all: Callable[[contextlib.ExitStack], Any]) -> tuple[contextlib.ExitStack, Any]:
        with contextlib.suppress(spillway.ResourceExhausted):
            return self._try(lease_all)
        with self._turn:
            while True:
                with self._changed:
                    begun, was_alone = self._begun, self._active == 0
                try:
                    return self._try(lease_all)
                except spillway.ResourceExhausted as error:
                    if was_alone and self._begun == begun + 1:
                        raise spillway.ResourceExhausted(f"{error}. An operation leases all the tensors that it uses: give "
                                                         "them more room (pinned=, on a GPU device_memory=)") from None
                with self._changed:
                    ended = self._ended
                    self._changed.wait_for(lambda: self._active == 0 or self._ended != ended)

    def _try(self, lease_all: Callable[[contextlib.ExitStack], Any]) -> tuple[contextlib.ExitStack, Any]:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_shut or getattr(self._mine, "depth", 0) > 0)
            self._active += 1
            self._begun += 1
        try:
            with contextlib.ExitStack() as stack:
                leased = lease_all(stack)
                return stack.pop_all(), leased
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        with self._changed:
            self._active -= 1
            self._ended += 1
            self._changed.notify_all()
