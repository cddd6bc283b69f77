# SPDX-License-Identifier: Apache-2.0
"""Tests the engine through the Python package `spillway`."""

import array
import contextlib
import copy
import ctypes
import gc
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from unittest import mock

import spillway
from spillway import _library


class EngineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spillway-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.engine = self.open()
        self.addCleanup(lambda: self.engine.close())

    def open(self, mode="create", **more):
        return spillway.Engine(self.folder / "store", mode=mode, device_bytes="1MiB", pinned_bytes="1MiB",
                               page_bytes=4096, **more)

    def reopen(self):
        self.engine.close()
        self.engine = self.open("open_or_create")

    def test_a_tensor_is_leased_committed_and_found_again(self):
        weight = self.engine.register("w", "f32", (6, 1000), tile_rows=2)
        with self.engine.acquire(weight, 1, "read-write") as lease:
            values = memoryview(lease).cast("B").cast("f")
            self.assertEqual(len(values), 2000)
            values[1999] = 0.5
        self.engine.end_step()
        self.engine.commit(b"one\0two")
        self.assertEqual(self.engine.commit_number, 1)
        store = self.engine.store_id
        self.reopen()
        self.assertEqual(self.engine.user_state(), b"one\0two")
        self.assertEqual(self.engine.store_id, store)
        found = self.engine.register("w", "f32", (6, 1000), tile_rows=2, data=self.never)
        values = array.array("f", bytes(self.engine.read(found, 8000)))
        self.assertEqual(values[1999], 0.5)
        self.assertEqual(self.engine.find("w"), found)
        self.assertEqual(self.engine.spec(found)["num_tiles"], 3)

    def test_the_packages_example_runs(self):
        lines = spillway.__doc__.splitlines()
        example = "\n".join(line for line in lines if line.startswith("    "))
        self.assertIn("engine.commit", example)
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        pathlib.Path("nvme").mkdir()
        exec(textwrap.dedent(example), {})
        with spillway.Engine("nvme/run", mode="open_or_create", pinned_bytes="1GiB", device_bytes="1GiB") as engine:
            weight = engine.register("w", "f32", (4096, 4096), tile_rows=512)
            self.assertEqual(engine.user_state(), b"step 1")
            with engine.acquire(weight, tile=3) as lease:
                self.assertEqual(memoryview(lease).cast("B").cast("f")[0], 1.0)

    def never(self, offset, out):
        self.fail("the tensor is stored, and its data was asked for")

    def test_data_is_a_buffer_or_a_function(self):
        content = array.array("H", range(5000))
        first = self.engine.register("first", "bf16", (50, 100), tile_rows=7, data=content)
        self.assertEqual(bytes(self.engine.read(first)), content.tobytes())
        calls = []

        def fill(offset, out):
            calls.append((offset, out.nbytes))
            out[:] = content.tobytes()[offset:offset + out.nbytes]

        second = self.engine.register("second", "bf16", [50, 100], tile_rows=7, data=fill)
        self.assertEqual(bytes(self.engine.read(second)), content.tobytes())
        self.assertEqual(len(calls), 8)
        self.assertEqual(calls[1][0], 1400)
        with self.assertRaisesRegex(spillway.InvalidArgument, "has 10000 bytes, and data has 8"):
            self.engine.register("third", "bf16", (50, 100), data=bytes(8))

        def fails(offset, out):
            raise KeyError("my own")

        with self.assertRaisesRegex(KeyError, "my own"):
            self.engine.register("fourth", "u8", (10,), data=fails)
        with self.assertRaises(spillway.NotFound):
            self.engine.find("fourth")

    def test_bytes_are_read_and_written_anywhere(self):
        tensor = self.engine.register("b", "u8", (100, 100), tile_rows=3)
        self.engine.write(tensor, bytes(range(200)), offset=450)
        out = bytearray(300)
        self.assertIs(self.engine.read(tensor, 400, out), out)
        self.assertEqual(out[50:250], bytes(range(200)))
        self.engine.write(tensor, bytearray(b"abc"))
        self.assertEqual(bytes(self.engine.read(tensor))[:4], b"abc\0")
        with self.assertRaisesRegex(IndexError, "past its end"):
            self.engine.write(tensor, b"x", offset=10000)

    def test_another_process_reads_a_snapshot_beside_this_one(self):
        weight = self.engine.register("w", "f32", (6, 1000), tile_rows=2, data=bytes(range(250)) * 96)
        self.engine.commit(b"one\0two")
        self.engine.snapshot("kept")
        self.assertEqual(self.engine.snapshot_user_state("kept"), b"one\0two")
        with self.assertRaisesRegex(spillway.NotFound, "none"):
            self.engine.snapshot_user_state("none")
        self.engine.write(weight, bytes(24000))
        self.engine.commit(b"three")
        reads = textwrap.dedent(f"""
            import spillway
            with spillway.StoreReader({str(self.folder / "store")!r}) as store:
                assert store.store_id == {self.engine.store_id!r}
                assert store.user_state("kept") == b"one\\0two"
                assert store.read("kept", {self.engine.spec(weight)!r}) == bytes(range(250)) * 96
                try:
                    store.read("none", {self.engine.spec(weight)!r})
                except spillway.NotFound:
                    pass
                else:
                    raise AssertionError
            try:
                store.store_id
            except spillway.FailedPrecondition:
                print("read")
            """)
        self.assertEqual(subprocess.run([sys.executable, "-c", reads], capture_output=True, text=True).stdout, "read\n")
        self.engine.write(weight, bytes(24000))
        self.engine.commit()
        with self.assertRaisesRegex(spillway.NotFound, "nowhere"):
            spillway.StoreReader(self.folder / "nowhere")

    def test_snapshots(self):
        tensor = self.engine.register("b", "u8", (10,), data=b"0123456789")
        self.engine.commit()
        self.engine.snapshot("kept")
        self.engine.write(tensor, b"X")
        self.engine.commit()
        self.assertEqual([each["label"] for each in self.engine.snapshots()], ["kept"])
        self.engine.restore("kept")
        self.assertEqual(bytes(self.engine.read(tensor)), b"0123456789")
        self.engine.drop("kept")
        with self.assertRaisesRegex(spillway.NotFound, "^[^'].*kept"):
            self.engine.restore("kept")

    def test_a_store_of_several_folders_has_bytes_in_each(self):
        folders = [str(self.folder / name) for name in ("a", "b", "c")]
        content = os.urandom(1 << 20)
        for given in (folders, tuple(map(pathlib.Path, folders))):
            with spillway.Engine(given, mode="open_or_create", device_bytes="1MiB", pinned_bytes="1MiB") as engine:
                tensor = engine.register("b", "u8", (64, 16384), tile_rows=1, data=content)
                engine.commit()
                self.assertEqual(bytes(engine.read(tensor)), content)
                drives = engine.stats()["drives"]
                self.assertEqual(drives, [{"folder": folder, "read_bytes_per_second": 0, "write_bytes_per_second": 0}
                                          for folder in folders])
        for folder in folders:
            segments = list(pathlib.Path(folder).glob("spillway-segment-*"))
            self.assertGreater(sum(segment.stat().st_blocks * 512 for segment in segments), 1 << 18, folder)
        os.rename(folders[1], self.folder / "away")
        with self.assertRaisesRegex(spillway.FailedPrecondition, f"{folders[1]} has no identity.*is a disk not mounted"):
            spillway.Engine(folders, mode="open_or_create", device_bytes="1MiB", pinned_bytes="1MiB")
        for store in ([], [folders[0], None], b"a", [b"a"], 5, f"{folders[0]},{folders[2]}"):
            with self.assertRaisesRegex(spillway.InvalidArgument, "store.* is "):
                spillway.Engine(store)
        self.assertEqual(self.engine.stats()["drives"][0]["folder"], str(self.folder / "store"))
        with spillway.Engine(device_bytes="1MiB", pinned_bytes="1MiB") as engine:
            self.assertEqual(engine.stats()["drives"], [])

    def test_errors_are_classes_by_code_and_name_the_choices(self):
        tensor = self.engine.register("b", "u8", (10,))
        lease = self.engine.acquire(tensor)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "tensor 'b' tile 0"):
            self.engine.commit()
        lease.release()
        lease.release()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "has ended"):
            lease.address
        with self.assertRaisesRegex(ValueError, "access is 'write-read'.*read, write, read-write, discard"):
            self.engine.acquire(tensor, access="write-read")
        with self.assertRaisesRegex(ValueError, "dtype is 'float32'.*f32, f16, bf16, u8"):
            self.engine.register("c", "float32", (1,))
        with self.assertRaisesRegex(spillway.InvalidArgument, "device is 'gpu'"):
            spillway.Engine(device="gpu")
        with self.assertRaisesRegex(spillway.FailedPrecondition, "in use by this process"):
            self.open()
        with self.assertRaises(spillway.Error) as raised:
            self.engine.acquire(1234)
        self.assertEqual(raised.exception.code, 3)
        self.engine.close()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "closed"):
            self.engine.end_step()

    def test_numbers_that_the_library_could_not_take_whole_are_refused(self):
        tensor = self.engine.register("b", "u8", (10,))
        for call, what in ((lambda: self.engine.acquire(tensor, tile=2**64), "tile is 18446744073709551616"),
                           (lambda: self.engine.acquire_host(tensor + 2**32), "the id of a tensor is 4294967296"),
                           (lambda: self.engine.evict(tensor, -2**64), "tile is -18446744073709551616"),
                           (lambda: self.engine.discard(tensor, 2**64), "tile is 18446744073709551616"),
                           (lambda: self.engine.spec(tensor + 2**32), "the id of a tensor is"),
                           (lambda: self.engine.unregister(tensor + 2**32), "the id of a tensor is"),
                           (lambda: self.engine.prefetch([(tensor, 2**32, "pinned", "read")]), "tile is 4294967296"),
                           (lambda: self.engine.read(tensor, 2**64, bytearray(1)), "offset is"),
                           (lambda: self.engine.write(tensor, b"x", 2**64), "offset is"),
                           (lambda: self.engine.register("c", "u8", (2**64 + 3,)), "a dimension of 'c' is"),
                           (lambda: self.engine.register("c", "u8", (3,), tile_rows=2**64 + 1), "tile_rows of 'c' is"),
                           (lambda: spillway.Engine(queue_depth=2**32 + 8), "queue_depth is 4294967304"),
                           (lambda: spillway.Engine(timeline_events=-1), "timeline_events is -1"),
                           (lambda: spillway.Engine(device="cuda:4294967296"), "the number of a GPU is")):
            with self.assertRaisesRegex(spillway.InvalidArgument, what + ".*: it must be from"):
                call()
        with self.assertRaises(TypeError):
            self.engine.acquire(tensor, tile=0.5)
        for offset in (11, -1):
            with self.assertRaisesRegex(spillway.OutOfRange, f"offset {offset} is not within tensor 'b', which has 10 bytes"):
                self.engine.read(tensor, offset)
        self.assertEqual(self.engine.read(tensor, 10), b"")

    def test_text_that_would_end_early_is_refused(self):
        for call in (lambda text: self.engine.register(text, "u8", (10,)), self.engine.find, self.engine.forget,
                     self.engine.snapshot, self.engine.restore, self.engine.drop, spillway.Engine):
            with self.assertRaisesRegex(spillway.InvalidArgument, r"is 'a\\x00b': it must not have the character NUL"):
                call("a\0b")

    def test_a_lease_keeps_the_engine_until_it_is_dropped(self):
        tensor = self.engine.register("b", "u8", (4096,))
        lease = self.engine.acquire(tensor, access="read-write")
        self.engine.close()
        memoryview(lease).cast("B")[0] = 7
        with self.assertRaisesRegex(spillway.FailedPrecondition, "in use|locked|process"):
            self.open("open_or_create")
        del lease
        gc.collect()
        self.engine = self.open("open_or_create")

    def test_dlpack_ends_the_lease_with_the_capsule(self):
        tensor = self.engine.register("w", "f32", (4, 8), tile_rows=2)
        lease = self.engine.acquire(tensor, 1, "read-write")
        self.assertEqual(lease.__dlpack_device__(), (1, 0))
        capsule = lease.__dlpack__()
        self.assertEqual(type(capsule).__name__, "PyCapsule")
        with self.assertRaises(spillway.FailedPrecondition):
            lease.__dlpack__()
        with self.assertRaises(spillway.FailedPrecondition):
            self.engine.unregister(tensor)
        del lease
        gc.collect()
        with self.assertRaises(spillway.FailedPrecondition):
            self.engine.unregister(tensor)
        del capsule
        gc.collect()
        self.engine.unregister(tensor)

    def test_a_consumer_that_refuses_a_capsule_raises_its_own_error(self):
        tensor = self.engine.register("w", "bf16", (4, 8))
        # The operator drops the capsule while its error is set, as a consumer in C does.
        with self.engine.acquire(tensor) as lease:
            with self.assertRaisesRegex(TypeError, "unsupported operand"):
                lease.__dlpack__() + 1
        self.engine.evict(tensor)
        with self.assertRaisesRegex(TypeError, "unsupported operand"):
            (lambda lease: lease.__dlpack__() + 1)(self.engine.acquire(tensor))
        self.engine.evict(tensor)
        lease = self.engine.acquire(tensor)
        with self.assertRaisesRegex(TypeError, "unsupported operand"):
            lease.__dlpack__() + 1
        lease.release()
        lease.release()
        self.engine.evict(tensor)
        self.engine.unregister(tensor)

    def test_a_capsule_is_for_the_lease_s_own_device(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        lease = self.engine.acquire(tensor)
        with self.assertRaisesRegex(BufferError, r"\(1, 0\).*\(2, 0\) was asked for"):
            lease.__dlpack__(dl_device=(2, 0))
        del lease
        gc.collect()
        self.assertEqual(type(self.engine.acquire(tensor).__dlpack__(dl_device=(1, 0))).__name__, "PyCapsule")
        self.engine.unregister(tensor)

    def test_a_lease_is_not_copied(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        with self.engine.acquire(tensor) as lease:
            for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                    duplicate(lease)
            self.assertEqual(len(bytes(lease)), 128)
        self.engine.unregister(tensor)

    def test_streams_hold_leases_that_are_released_on_them(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        stream = self.engine.stream()
        self.assertIsNone(stream.native)
        self.engine.acquire(tensor, access="read-write", stream=stream).release(stream)
        self.engine.acquire_host(tensor, access="read", stream=stream).release(stream)
        stream.synchronize()
        self.engine.unregister(tensor)
        with self.assertRaisesRegex(spillway.InvalidArgument, "host"):
            self.engine.wrap_stream(1)

    def launch(self, stream, work):
        """Runs work() on the stream, on a thread of its own."""
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: work())
        self.addCleanup(lambda: function)  # refers to it until the test has ended
        launch = _library.library.spw_stream_launch
        launch.argtypes, launch.restype = [ctypes.c_void_p] * 3, ctypes.c_void_p
        _library.check(launch(stream._handle.get(), ctypes.cast(function, ctypes.c_void_p), None))

    @contextlib.contextmanager
    def held(self, stream):
        """Launches work on the stream that lasts as long as the block."""
        may_end = threading.Event()
        self.launch(stream, may_end.wait)
        try:
            yield
        finally:
            may_end.set()

    def test_a_lease_ends_on_the_stream_that_it_was_acquired_with(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        stream = self.engine.stream()
        for acquire in (self.engine.acquire, self.engine.acquire_host):
            for end in (spillway.Lease.release, spillway.Lease.__exit__, lambda lease: None):
                lease = acquire(tensor, stream=stream)
                with self.held(stream):
                    end(lease)
                    del lease
                    gc.collect()
                    with self.assertRaisesRegex(spillway.FailedPrecondition, "used by a stream"):
                        self.engine.evict(tensor)
                stream.synchronize()
                self.engine.evict(tensor)

    def test_a_lease_that_has_ended_keeps_no_stream(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        leases = [self.engine.acquire(tensor, stream=self.engine.stream()) for _ in range(2)]
        leases[0].release()
        leases[1].__dlpack__()
        leases[1].release()
        self.reopen()

    def test_a_capsule_is_made_when_the_bytes_have_arrived(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        stream = self.engine.stream()
        for acquire in (self.engine.acquire, self.engine.acquire_host):
            ran = []
            lease = acquire(tensor, stream=stream)
            self.launch(stream, lambda: (time.sleep(0.05), ran.append(1)))
            capsule = lease.__dlpack__()
            self.assertEqual(ran, [1])
            del lease, capsule

    def test_a_capsule_on_a_gpu_ends_its_lease_on_the_stream_of_the_consumer(self):
        engine = self.engine
        tensor = engine.register("w", "f32", (4, 8))
        own = engine.stream()
        on_streams = {1: engine.stream(), 77: engine.stream()}

        def lease_of(stream):
            lease = engine.acquire(tensor, stream=stream)
            engine._device = (1, 0)  # a stand-in for a GPU
            return lease

        self.addCleanup(setattr, engine, "_device", engine._device)
        with mock.patch.object(engine, "wrap_stream", on_streams.__getitem__):
            for acquired, consumer, on in ((None, None, on_streams[1]), (None, 1, on_streams[1]), (own, 77, on_streams[77]),
                                           (own, 1, own), (own, -1, own)):  # a stream whose handle is 0 is stream 1
                capsule = lease_of(acquired).__dlpack__(stream=consumer)
                with self.held(on):
                    del capsule
                    with self.assertRaisesRegex(spillway.FailedPrecondition, "used by a stream"):
                        engine.evict(tensor)
                on.synchronize()
                engine.evict(tensor)
            for consumer in (0, 2, -2):
                with self.assertRaisesRegex(BufferError, f"stream is {consumer}: it must be 1"):
                    lease_of(None).__dlpack__(stream=consumer)
            lease_of(None).__dlpack__(stream=-1)
        engine.unregister(tensor)

    def test_a_capsule_that_cannot_be_made_leaves_the_lease(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        lease = self.engine.acquire(tensor)
        stream = spillway.Engine().stream()
        with mock.patch.object(spillway.Lease, "_stream_of", lambda *_: stream):  # of another engine
            with self.assertRaisesRegex(spillway.InvalidArgument, "engine"):
                lease.__dlpack__()
        self.assertTrue(lease.address)  # raises if the lease has ended
        lease.release()
        self.engine.unregister(tensor)

    def test_declared_uses_stats_and_timeline(self):
        tensor = self.engine.register("w", "f32", (4, 8), tile_rows=1, transient=True)
        self.engine.prefetch([(tensor, tile, "device", "read") for tile in range(4)])
        self.engine.clear_prefetch()
        self.engine.evict(tensor, 2)
        self.engine.discard(tensor, 2)
        self.engine.wait_for_plan()
        self.assertEqual(self.engine.stats()["device"], "host")
        self.assertEqual(self.engine.take_timeline()["events"], [])
        self.assertEqual(self.engine.page_bytes, 4096)

    def test_a_waiting_thread_does_not_hold_the_interpreter(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        held = self.engine.acquire(tensor, access="read-write")
        got = []
        thread = threading.Thread(target=lambda: got.append(self.engine.acquire(tensor)))
        thread.start()
        time.sleep(0.05)
        self.assertEqual(got, [])
        held.release()
        thread.join(timeout=60)
        self.assertEqual(len(got), 1)
        got.clear()

    def test_a_forked_process_is_told(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        lease = self.engine.acquire(tensor)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            self.engine._device, lease._on_host = (1, 0), False  # as if the lease were on a GPU
            calls = (lambda: self.engine.acquire(tensor), self.engine.clear_prefetch, lambda: self.engine.page_bytes,
                     lambda: lease.address, lambda: lease.__cuda_array_interface__, lambda: lease.__dlpack__(stream=-1))
            try:
                for number, call in enumerate(calls, 1):
                    try:
                        call()
                        os._exit(number)
                    except spillway.FailedPrecondition as error:
                        if "forked" not in str(error):
                            os._exit(number)
                os._exit(0)
            finally:
                os._exit(100)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        lease.release()
        self.engine.acquire(tensor).release()

    def test_a_lease_has_an_address_after_its_engine_was_closed(self):
        lease = self.engine.acquire(self.engine.register("w", "f32", (4, 8)))
        address = lease.address
        self.engine.close()
        self.assertEqual(lease.address, address)

    def child(self, code):
        """Runs the code in a process of its own, with `engine`, its tensor `w` of 8 MiB and `begun`, an Event."""
        begin = """
import faulthandler, threading, spillway
faulthandler.enable()
engine = spillway.Engine(None, pinned_bytes="32MiB", device_bytes="1MiB")
w = engine.register("w", "f32", (2 << 20,))
begun = threading.Event()
"""
        return subprocess.run([sys.executable, "-c", begin + textwrap.dedent(code)], capture_output=True, text=True, timeout=300)

    def test_a_process_ends_while_a_thread_calls(self):
        for poll in ("engine.stats()", "engine.read(w)", "memoryview(engine.acquire_host(w)).tobytes()"):
            for _ in range(3):
                ended = self.child(f"""
                    def work():
                        while True:
                            {poll}
                            begun.set()
                    for _ in range(3):
                        threading.Thread(target=work, daemon=True).start()
                    begun.wait()
                """)
                self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_a_process_ends_while_a_thread_waits(self):
        ended = self.child("""
            held = engine.acquire_host(w, access="read-write")
            def work():
                begun.set()
                engine.acquire_host(w)
            threading.Thread(target=work, daemon=True).start()
            begun.wait()
        """)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_an_engine_is_closed_while_threads_call(self):
        ended = self.child("""
            errors = []
            def work():
                try:
                    while True:
                        engine.read(w)
                        engine.stats()
                        begun.set()
                except Exception as error:
                    errors.append(error)
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            begun.wait()
            engine.close()
            for thread in threads:
                thread.join()
            assert {(type(error), str(error)) for error in errors} == {(spillway.FailedPrecondition, "the engine was closed")}, errors
        """)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_an_error_that_is_kept_keeps_no_engine(self):
        errors = []
        for call in (lambda: self.engine.acquire(1234), lambda: self.engine.spec(1234), lambda: self.engine.read(1234),
                     lambda: self.engine.restore("none")):
            try:
                call()
            except spillway.Error as error:
                errors.append(error)
        self.assertEqual(len(errors), 4)
        self.reopen()

    def test_a_store_is_open_until_the_last_call_returns(self):
        tensor = self.engine.register("w", "f32", (4, 8))
        held = self.engine.acquire(tensor, access="read-write")
        leases = []

        def wait(engine):
            with contextlib.suppress(spillway.FailedPrecondition):  # if the engine was closed before the call
                leases.append(engine.acquire(tensor))

        thread = threading.Thread(target=wait, args=(self.engine,))
        thread.start()
        self.engine.close()
        held.release()
        del held
        thread.join()
        leases.clear()
        self.engine = self.open("open_or_create")

    def test_eight_threads_call_everything(self):
        shared = self.engine.register("shared", "f32", (4, 64), tile_rows=1)
        failures = []

        def work(number):
            try:
                for round in range(10):
                    own = self.engine.register(f"own.{number}.{round}", "f32", (2, 64), tile_rows=1,
                                               data=array.array("f", [number] * 128))
                    with self.engine.acquire(shared, round % 4, "read-write") as lease:
                        ctypes.c_float.from_address(lease.address).value += 1
                    if array.array("f", bytes(self.engine.read(own))) != array.array("f", [number] * 128):
                        raise AssertionError(f"own.{number}.{round} has other values")
                    try:
                        self.engine.commit()
                    except spillway.FailedPrecondition:
                        pass
                    self.engine.end_step()
                    self.engine.unregister(own)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        values = array.array("f", bytes(self.engine.read(shared)))
        self.assertEqual(sum(values), 80)


if __name__ == "__main__":
    unittest.main()
