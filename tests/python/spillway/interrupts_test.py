# SPDX-License-Identifier: Apache-2.0
"""Tests what a signal handler that raises, as for Ctrl-C, does to the calls of the Python package `spillway`."""

import contextlib
import ctypes
import gc
import inspect
import os
import pathlib
import signal
import sys
import tempfile
import threading
import unittest
import weakref
from unittest import mock

import spillway
from spillway import _dlpack, _engine, _library


class InterruptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spillway-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.engine = self.open("create")
        self.addCleanup(lambda: self.engine.close())

    def open(self, mode="open_or_create"):
        return spillway.Engine(self.folder / "store", mode=mode, device_bytes="1MiB", pinned_bytes="1MiB", page_bytes=4096)

    def interrupted(self, wait):
        """Returns the KeyboardInterrupt that `wait` raises while SIGINT comes again and again; None if it raises none."""
        waits, over = threading.Event(), threading.Event()
        pressed = []

        def handler(*_):  # ignores signals that come before or after the wait
            pressed.append(1)
            if waits.is_set():
                raise KeyboardInterrupt

        def press():
            while not over.wait(0.05):
                os.kill(os.getpid(), signal.SIGINT)

        before = signal.signal(signal.SIGINT, handler)
        thread = threading.Thread(target=press)
        try:
            thread.start()
            waits.set()
            wait()
        except KeyboardInterrupt as error:
            return error
        finally:
            waits.clear()
            over.set()
            thread.join()
            signal.signal(signal.SIGINT, before)
        return None

    def test_an_address_may_be_dropped_at_any_depth_of_calls(self):
        def drop(depth, addresses):
            if depth == 0:
                addresses.clear()
            else:
                drop(depth - 1, addresses)

        for left in range(12):
            address = _library.Address(lambda _: None)
            address.value = 1
            addresses = [address]
            del address
            frames = len(inspect.stack())
            with contextlib.suppress(RecursionError), mock.patch.object(sys, "unraisablehook"):
                drop(sys.getrecursionlimit() - frames - left, addresses)

    def test_ctrl_c_ends_a_call_that_waits(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        held = self.engine.acquire(tensor, access="read-write")
        for access in ("read", "write", "discard"):
            for acquire in (self.engine.acquire, self.engine.acquire_host):
                # This thread holds the lease itself, so the call would wait for ever.
                self.assertIsInstance(self.interrupted(lambda: acquire(tensor, access=access)), KeyboardInterrupt)
        held.release()
        self.engine.commit()

    def test_a_handler_that_raises_nothing_ends_nothing(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        held = self.engine.acquire(tensor, access="read-write")
        heard = []

        def handler(*_):
            heard.append(1)
            if len(heard) == 2:  # the first came while the call waited, or before it
                held.release()

        before = signal.signal(signal.SIGINT, handler)
        over = threading.Event()

        def press():
            while not over.wait(0.1):
                os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        try:
            self.engine.acquire(tensor, access="read-write").release()
        finally:
            over.set()
            thread.join()
            signal.signal(signal.SIGINT, before)
        self.assertGreaterEqual(len(heard), 2)
        self.engine.commit()

    def test_ctrl_c_while_an_engine_closes_is_raised_by_the_close(self):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

        def interrupt_release_of(handle):
            address = handle.get()
            release = address._release
            address._release = lambda *arguments: (release(*arguments), signal.raise_signal(signal.SIGINT))

        for close in (spillway.Engine.close, spillway.Engine.__exit__):
            interrupt_release_of(self.engine._handle)
            with self.assertRaises(KeyboardInterrupt):
                close(self.engine)
            self.engine = self.open()  # fails while the store is open
        # Streams of consumers of leases, of which the first to be closed is broken off.
        self.engine._consumers = {native: self.engine.stream() for native in (1, 2)}
        interrupt_release_of(self.engine._consumers[2]._handle)
        with self.assertRaises(KeyboardInterrupt):
            self.engine.close()
        self.engine = self.open()

    def test_ctrl_c_before_an_object_is_released_does_not_prevent_it(self):
        address = self.engine._handle.get()
        address._is_exiting = mock.Mock(side_effect=[KeyboardInterrupt, False])
        del address
        with self.assertRaises(KeyboardInterrupt):
            self.engine.close()
        self.engine = self.open()

    def test_a_capsule_that_is_broken_off_anywhere_ends_with_release(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        for owner, name in ((ctypes, "byref"), (_library.library, "spw_lease_dlpack_on"), (_engine, "check"),
                            (_dlpack, "capsule"), (weakref, "finalize"), (_dlpack, "set_destructor")):
            inner = getattr(owner, name)

            def interrupted(*arguments):  # as the handler of a signal that comes during this call
                inner(*arguments)
                del arguments
                raise KeyboardInterrupt

            with self.subTest(name):
                lease = self.engine.acquire(tensor, access="read-write")
                with mock.patch.object(owner, name, interrupted):
                    try:
                        lease.__dlpack__()
                        self.fail("no interrupt")
                    except KeyboardInterrupt as error:
                        kept = error  # as a notebook keeps it, with its traceback
                lease.release()
                self.engine.commit()  # fails while a tile is leased to be written
                del kept

    def test_a_capsule_that_is_broken_off_ends_the_lease(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        inner = _library.library.spw_lease_dlpack_on

        def interrupted(*arguments):
            inner(*arguments)
            del arguments
            raise KeyboardInterrupt

        with mock.patch.object(_library.library, "spw_lease_dlpack_on", interrupted):
            try:
                self.engine.acquire(tensor, access="read-write").__dlpack__()
                self.fail("no interrupt")
            except KeyboardInterrupt:
                pass
        gc.collect()
        self.engine.commit()  # fails while a tile is leased to be written


if __name__ == "__main__":
    unittest.main()
