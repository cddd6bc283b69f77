# SPDX-License-Identifier: Apache-2.0
"""Operations of several threads that lease what they use: one that finds no room waits for the others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import spillway


class Leasing:
    """Of one run. An operation leases all that it uses before it begins, and gives all of it back before it waits. So one
    that has what it needs ends, and what waits for it goes on."""

    def __init__(self) -> None:
        self._turn = threading.Lock()  # of who tries again
        self._alone = threading.Lock()  # of who wants that there are none
        self._is_shut = False
        self._changed = threading.Condition()
        self._active = 0  # operations that lease or have leased
        self._begun = self._ended = 0
        self._mine = threading.local()  # depth: operations of this thread, one within the other

    @contextlib.contextmanager
    def operation(self, lease_all: Callable[[contextlib.ExitStack], Any]) -> Iterator[Any]:
        """A block that has what `lease_all` enters into the stack, and returns. ResourceExhausted: there is no room for
        it, though no other operation holds any."""
        depth = getattr(self._mine, "depth", 0)
        # One within another would wait for that.
        stack, leased = self._lease(lease_all) if depth == 0 else self._try(lease_all)
        self._mine.depth = depth + 1
        try:
            with stack:
                yield leased
        finally:
            self._mine.depth = depth
            self._end()

    def call(self, of_engine: Callable[[], Any]) -> Any:
        """What a call of the engine's returns that leases by itself, and may be made again."""
        with self.operation(lambda _: of_engine()) as returned:
            return returned

    @contextlib.contextmanager
    def none(self) -> Iterator[None]:
        """A block in which no other thread's operation holds a lease: those under way end first, others wait. Within an
        operation of this thread there may be others."""
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
