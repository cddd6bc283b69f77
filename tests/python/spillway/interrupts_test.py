# SPDX-License-Identifier: Apache-2.0
"""Tests what a signal handler that raises, as for Ctrl-C, does to the calls of the Python package `spillway`."""

import contextlib
import ctypes
import faulthandler
import gc
import inspect
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import unittest
import weakref
from unittest import mock

import spillway
from spillway import _dlpack, _engine, _library, _reader

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from seed import draw_seed


class Alarm(Exception):
    pass


def raise_alarm(*_):
    raise Alarm


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

    def handle(self, number, handler):
        self.addCleanup(signal.signal, number, signal.signal(number, handler))

    def assert_filled(self, name, byte):
        """Fails if the tensor is registered, and one of its bytes is another."""
        with contextlib.suppress(spillway.NotFound):
            read = self.engine.read(self.engine.find(name))
            self.assertEqual(read.count(byte), len(read))

    def test_a_signal_at_any_time_ends_a_registration_and_is_raised_or_all_bytes_are_right(self):
        chance, hook = random.Random(draw_seed()), sys.unraisablehook
        self.handle(signal.SIGINT, signal.default_int_handler)
        self.handle(signal.SIGALRM, raise_alarm)
        main = threading.main_thread().ident

        def send(number, seconds):
            over.wait(seconds)
            signal.pthread_kill(main, number)

        for byte in range(1, 251):
            number, error = chance.choice([(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Alarm)])
            over = threading.Event()
            sender = threading.Thread(target=send, args=(number, chance.uniform(0, 0.005)))

            def fill(_, out):
                out[:] = bytes([byte]) * len(out)

            heard = False
            try:
                sender.start()
                self.engine.register("w", "u8", (128, 4096), tile_rows=1, data=fill)
                over.set()
                sender.join()
            except error:
                heard = True
            with contextlib.suppress(error):  # a join that the signal has broken off
                sender.join()
            self.assertTrue(heard, (byte, number))
            self.assert_filled("w", byte)
            with contextlib.suppress(spillway.NotFound):
                self.engine.forget("w")
            self.assertIs(sys.unraisablehook, hook)

    def register_with(self, before, fill, tiles=4):
        """Registers a tensor of so many tiles. `before` runs where Python may raise before the reader's first statement."""
        def trace(frame, event, _):
            if (frame.f_code.co_filename, frame.f_code.co_name, event) == (_reader.__file__, "read", "call"):
                before()

        tracing = sys.gettrace()
        sys.settrace(trace)
        try:
            return self.engine.register("w", "u8", (tiles, 4096), tile_rows=1, data=fill)
        finally:
            sys.settrace(tracing)

    def test_a_handler_that_raises_before_the_reader_begins_is_raised_by_the_call(self):
        self.handle(signal.SIGALRM, raise_alarm)
        self.handle(signal.SIGINT, signal.default_int_handler)
        for number, error in ((signal.SIGALRM, Alarm), (signal.SIGINT, KeyboardInterrupt)):
            for at in range(4):
                filled = []
                with self.assertRaises(error), mock.patch.object(sys, "unraisablehook") as hook:
                    self.register_with(lambda: len(filled) == at and signal.raise_signal(number),
                                       lambda offset, _: filled.append(offset))
                self.assertEqual(len(filled), at)
                hook.assert_not_called()
                with self.assertRaises(spillway.NotFound):
                    self.engine.find("w")

    def test_of_two_signals_whose_handlers_raise_the_last_is_raised_and_has_the_first_as_its_context(self):
        self.handle(signal.SIGINT, signal.default_int_handler)
        self.handle(signal.SIGALRM, raise_alarm)
        both = (signal.SIGINT, signal.SIGALRM)

        def receive_both():  # at once, so that SIGALRM's handler has not run when SIGINT's raises
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:
                signal.pthread_kill(threading.get_ident(), number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)

        def fill(*_):
            try:
                raise Alarm
            finally:
                signal.raise_signal(signal.SIGINT)

        loses_second = sys.version_info >= (3, 13)  # _reader.py
        for before, data, last, first in ((receive_both, lambda *_: None, *((KeyboardInterrupt, type(None)) if loses_second
                                                                            else (Alarm, KeyboardInterrupt))),
                                          (lambda: None, fill, KeyboardInterrupt, Alarm)):
            with self.assertRaises(last) as raised:
                self.register_with(before, data)
            self.assertIsInstance(raised.exception.__context__, first)
            with self.assertRaises(spillway.NotFound):
                self.engine.find("w")

    def test_a_handler_may_be_broken_off_by_another(self):
        caught = []

        def handler(*_):
            try:
                signal.raise_signal(signal.SIGALRM)
            except Alarm:
                caught.append(1)

        self.handle(signal.SIGALRM, raise_alarm)
        self.handle(signal.SIGTERM, handler)
        self.register_with(lambda: signal.raise_signal(signal.SIGTERM), lambda *_: None)
        self.assertEqual(len(caught), 4)

    def test_a_reader_that_does_not_begin_fails_the_call(self):
        def recursion():
            raise RecursionError

        errors = []

        def register():
            try:
                self.register_with(recursion, lambda *_: None)
            except Exception as error:
                errors.append(error)

        register()
        thread = threading.Thread(target=register)
        with mock.patch.object(sys, "unraisablehook"):
            thread.start()
            thread.join()
        self.assertIsInstance(errors[0], RecursionError)
        self.assertIsInstance(errors[1], spillway.Cancelled)
        self.assertIn("did not begin", str(errors[1]))
        with self.assertRaises(spillway.NotFound):
            self.engine.find("w")

    def test_what_python_ignores_elsewhere_reaches_its_hook(self):
        class Broken:
            def __del__(self):
                raise Alarm

        found = []

        def fill(*_):
            found.append(sys.unraisablehook)
            Broken()

        ignored = []
        with mock.patch.object(sys, "unraisablehook", lambda each: ignored.append(type(each.exc_value))):
            hook = sys.unraisablehook
            self.register_with(lambda: None, fill, tiles=2)
            self.assertEqual(ignored, [Alarm, Alarm])
            self.assertIs(sys.unraisablehook, hook)
            found[0](mock.Mock(exc_value=KeyError()))  # as what was installed meanwhile, and passes on to the hook it found
            self.assertEqual(ignored[2:], [KeyError])

    def test_a_registration_leaves_what_listens_to_signals_in_c(self):
        with open(self.folder / "dump", "w+") as file:
            self.handle(signal.SIGUSR1, raise_alarm)
            faulthandler.register(signal.SIGUSR1, file)
            self.addCleanup(faulthandler.unregister, signal.SIGUSR1)
            self.engine.register("w", "u8", (10,), data=bytes(10))
            os.kill(os.getpid(), signal.SIGUSR1)
            file.seek(0)
            self.assertIn("test_a_registration_leaves", file.read())

    def test_the_data_is_dropped_without_the_garbage_collector(self):
        class Source(bytearray):
            pass

        def fail(*_):
            raise Alarm

        self.handle(signal.SIGALRM, raise_alarm)
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        source = Source(10)
        dropped = [weakref.ref(source)]
        self.engine.register("v", "u8", (10,), data=source)
        del source
        for before, read in ((lambda: None, fail), (lambda: signal.raise_signal(signal.SIGALRM), fail)):
            source = Source(10)

            def fill(*_, held=source):
                read()

            dropped.append(weakref.ref(source))
            with contextlib.suppress(Alarm):
                self.register_with(before, fill)
                self.fail("no exception")
            del source, fill
        self.assertEqual([ref() for ref in dropped], [None] * 3)

    def test_a_handler_that_raises_within_data_is_raised_there(self):
        self.handle(signal.SIGALRM, raise_alarm)
        caught = []

        def fill(_, out):
            try:
                signal.raise_signal(signal.SIGALRM)
            except Alarm:
                caught.append(1)
            out[:] = b"\7" * len(out)

        tensor = self.register_with(lambda: None, fill)
        self.assertEqual(len(caught), 4)
        self.assertEqual(bytes(self.engine.read(tensor)), b"\7" * 4 * 4096)

    def test_a_handler_that_raises_nothing_runs_once_and_data_is_asked_once(self):
        heard, filled = [], []

        def handler(*_):
            heard.append(len(filled))
            signal.signal(signal.SIGALRM, signal.SIG_IGN)

        self.handle(signal.SIGALRM, handler)
        self.register_with(lambda: len(filled) == 2 and signal.raise_signal(signal.SIGALRM),
                           lambda offset, _: filled.append(offset))
        self.assertEqual(heard, [2])
        self.assertEqual(filled, [0, 4096, 8192, 12288])
        self.assertEqual(signal.getsignal(signal.SIGALRM), signal.SIG_IGN)  # what the handler has set

    def test_data_that_registers_another_tensor_is_ended_by_a_signal(self):
        self.handle(signal.SIGALRM, raise_alarm)

        def inner(_, out):
            signal.raise_signal(signal.SIGALRM)

        def outer(_, out):
            self.engine.register("inner", "u8", (10,), data=inner)

        with self.assertRaises(Alarm):
            self.engine.register("outer", "u8", (10,), data=outer)
        for name in ("inner", "outer"):
            with self.assertRaises(spillway.NotFound):
                self.engine.find(name)

    def test_another_thread_registers(self):
        ids = []
        thread = threading.Thread(target=lambda: ids.append(self.engine.register("w", "u8", (5000,), data=bytes([3]) * 5000)))
        thread.start()
        thread.join()
        self.assertEqual(bytes(self.engine.read(ids[0])), bytes([3]) * 5000)

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
