# SPDX-License-Identifier: Apache-2.0
"""Tests runs whose store has several folders, one on each drive."""

import contextlib
import errno
import io
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import spillway
import spillway.torch as st
import torch
from spillway.torch import _spare
from torch_case import DEVICE, StateTest, make_params, set_gradients, state_of, tiny_model, train

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import seed  # noqa: E402

MIB = 1 << 20


def bytes_by_drive(store):
    """Returns the bytes of the last commit's extents in each folder of a store that is closed."""
    with contextlib.closing(sqlite3.connect(f"file:{store[0]}/spillway-catalog.sqlite?mode=ro", uri=True)) as catalog:
        by = dict(catalog.execute("SELECT device, sum(size_bytes) FROM (SELECT DISTINCT device, segment, offset, size_bytes "
                                  "FROM pages) GROUP BY device"))
    return [by.get(device, 0) for device in range(len(store))]


class DrivesTest(StateTest):
    def drives(self, number=2):
        """Returns the folders of a store that does not exist yet."""
        self.stores += 1
        return [str(self.folder / f"drive{drive}/store{self.stores}") for drive in range(number)]

    def quietly_open(self, store, **words):
        with contextlib.redirect_stderr(io.StringIO()):
            return st.open(store, **{"pinned": "4MiB", "report": False, **words})

    def written(self, store, run):
        """Writes and commits 6 MiB, closes the run, and returns the bytes in each folder."""
        run.engine.register("x", "u8", (24, 256 << 10), tile_rows=1, data=os.urandom(6 * MIB))
        run.engine.commit()
        run.close()
        return bytes_by_drive(store)

    def test_losses_and_weights_are_those_of_one_folder(self):
        def trained(store):
            run = self.quietly_open(store, pinned="1MiB")
            model = st.offload(tiny_model(torch.bfloat16), run)
            optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run, gradients="engine")
            with st.saved_tensors(run):
                losses = train(model, optimizer, 4)
            optimizer.load_state_dict(optimizer.state_dict())
            losses += train(model, optimizer, 2, first=4)
            weights, state = [param.detach().clone() for param in model.parameters()], state_of(optimizer)
            optimizer.state_dict()
            run.close()
            return losses, weights, state

        losses, weights, state = trained(self.store())
        for number in (2, 3):
            store = self.drives(number)
            self.assertEqual(trained(store)[0], losses)
            self.assertTrue(all(bytes_by_drive(store)), bytes_by_drive(store))
            again = trained(self.drives(number))
            self.assert_same(again[1], weights)
            self.assert_same_state(again[2], state)

    def test_every_optimizer_takes_a_list_or_a_tuple_of_folders(self):
        for number, rule in enumerate((st.AdamW, st.Adam, st.Lion, st.LAMB, st.LARS, st.SGD, st.RMSprop, st.Adafactor)):
            folders = tuple(map(pathlib.Path, self.drives())) if number % 2 else self.drives()
            with contextlib.redirect_stderr(io.StringIO()):
                ours, theirs = make_params(), make_params()
                optimizer, alone = rule(ours, lr=1e-2, store=folders, pinned="1MiB"), rule(theirs, lr=1e-2)
            for step in range(2):
                for params, each in ((ours, optimizer), (theirs, alone)):
                    set_gradients(params, step)
                    each.step()
            self.assert_same(ours, theirs)
            self.assertEqual(optimizer.run.store, list(map(str, folders)))
            self.assertEqual(optimizer.state_dict()["spillway"]["store"], list(map(str, folders)))
            optimizer.run.close()

    def test_a_list_of_one_folder_is_that_folder(self):
        store = self.store()
        for given in ([store], store, (pathlib.Path(store),)):
            with st.open(given, pinned="1MiB", report=False) as run:
                self.assertEqual(run.store, store)
                run.engine.commit()

    def test_without_rates_drives_get_equal_shares(self):
        store = self.drives(3)
        self.assertEqual(self.written(store, self.quietly_open(store)), [2 * MIB] * 3)

    @unittest.skipUnless(os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 1 << 30,
                         "/dev/shm has not 1 GiB for a drive of other rates")
    def test_a_new_store_is_measured_once_and_each_drive_gets_bytes_in_proportion_to_its_rates(self):
        memory = tempfile.TemporaryDirectory(prefix="spillway-test-", dir="/dev/shm")
        self.addCleanup(memory.cleanup)
        store = [str(self.folder / "disk"), f"{memory.name}/memory"]
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            run = st.open(store, pinned="64MiB", report=False)
        drives = run.engine.stats()["drives"]
        self.assertEqual([drive["folder"] for drive in drives], store)
        # A page is written once for each time that it is read.
        weights = [1 / (1 / drive["read_bytes_per_second"] + 1 / drive["write_bytes_per_second"]) for drive in drives]
        shares = [weight / sum(weights) for weight in weights]
        self.assertIn(f"measures the drives of {store[0]} and {store[1]}, some 6 s each", said.getvalue())
        self.assertIn(f"so it gets {shares[1]:.0%} of the bytes", said.getvalue())
        self.assertEqual(said.getvalue().count("\n"), 3)
        if abs(shares[0] - 0.5) < 0.02:
            self.skipTest(f"the rates of the two drives do not differ: {drives}")
        run.engine.register("x", "u8", (100, 128 << 10), tile_rows=1, data=os.urandom(100 * 128 << 10))
        run.engine.commit()
        run.close()
        found = bytes_by_drive(store)
        # Shares are exact to a page. So few bytes keep no drive busy for long: its rate is not measured anew meanwhile.
        self.assertAlmostEqual(found[0] / sum(found), shares[0], delta=0.02)

        said = io.StringIO()
        with contextlib.redirect_stderr(said), st.open(store, pinned="64MiB", report=False) as run:
            self.assertEqual(run.engine.stats()["drives"], drives)
        self.assertEqual(said.getvalue(), "")

    def test_calibrate_says_whether_drives_are_measured(self):
        def opened(store, **words):
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                run = st.open(store, report=False, **words)
            rates = [drive["read_bytes_per_second"] for drive in run.engine.stats()["drives"]]
            return run, rates, said.getvalue()

        store = self.drives()
        run, rates, said = opened(store, pinned="64MiB", calibrate="off")
        self.assertEqual((rates, said), ([0, 0], ""))
        run.engine.commit()
        run.close()
        run, rates, said = opened(store, pinned="64MiB")  # it has a commit, so it is not new
        self.assertEqual((rates, said), ([0, 0], ""))
        run.close()
        run, rates, said = opened(self.drives(), pinned="8MiB")
        self.assertEqual(rates, [0, 0])
        self.assertRegex(said, "drives takes pinned= of at least 16 MiB, so .* and .* get equal shares of the bytes\n$")
        run.close()
        one = self.store()
        run, rates, said = opened(one, pinned="64MiB")
        self.assertEqual((rates, said), ([0], ""))
        run.close()
        run, rates, said = opened(one, pinned="64MiB", calibrate="now")
        self.assertGreater(rates[0], 0)
        self.assertRegex(said, f"{one} reads [0-9.]+ [GM]B and writes [0-9.]+ [GM]B a second\n$")
        run.close()
        for words, message in (({"calibrate": False}, "calibrate is False: it must be one of auto, now, off"),
                               ({"calibrate": "now", "pinned": "8MiB"}, "measuring takes 16777216 bytes of pinned memory")):
            with self.assertRaisesRegex(spillway.InvalidArgument, message):
                st.open(one, **words)
        with self.assertRaisesRegex(spillway.InvalidArgument, "the drives of a store, and there is none"):
            st.open(calibrate="now")

    def test_a_drive_that_cannot_be_measured_is_named(self):
        store = self.drives()
        os.makedirs(store[1])
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", store[1]], capture_output=True, text=True,
                              check=False)
        if made.returncode != 0:
            self.skipTest(f"no file system can be mounted here: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", store[1]], check=True)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            run = st.open(store, pinned="64MiB", report=False)
        self.assertRegex(said.getvalue(), f"could be measured, .* the device of {store[1]}: .*No space left.*, so {store[0]} "
                                          f"and {store[1]} get equal shares of the bytes\n$")
        self.assertEqual(self.written(store, run), [3 * MIB] * 2)

    def test_ctrl_c_ends_the_measuring(self):
        store = self.drives()
        child = subprocess.Popen([sys.executable, "-c", f"import spillway.torch as st; st.open({store!r}, pinned='64MiB')"],
                                 stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.assertIn("measures the drives", child.stderr.readline())
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
        child.stderr.close()
        self.assertEqual(child.wait(), -signal.SIGINT)
        self.assertTrue(rest.rstrip().endswith("KeyboardInterrupt"), rest)
        self.assertNotIn("a second", rest)
        self.assertEqual([os.path.exists(folder) for folder in store], [False, False])

    def test_what_is_no_store_is_refused(self):
        first, second = self.drives()
        cases = ([], r"store is \[\]: name a folder on each drive"), ((), r"store is \(\): name a folder"), (
            [first, None], "folder 2 of the store .* is None: a folder is a str or a path"), (
            os.fsencode(first), "store is b'.*': a folder is a str or a path"), (
            [os.fsencode(first), second], "folder 1 of the store .* is b'"), (
            {first, second}, "store is {.*}: a folder is a str or a path, and several folders are a list"), (
            5, "store is 5"), ([first, [second]], "folder 2 of the store"), (
            [first, second + "\0"], "folder 2 of the store .* must not have the character NUL"), (
            [first, first], "are the same folder; name each once"), (
            [first, f"{first}/../{pathlib.Path(first).name}"], "are the same folder; name each once"), (
            [first, ""], "a store folder's name is empty"), (
            f"{first},{second}", r"a str names one folder. For several, give a list, as \['.*store1', '.*store1'\]")
        for store, message in cases:
            for opens in (st.open, lambda store: st.AdamW(make_params(), store=store), spillway.Engine):
                with self.subTest(store=store), self.assertRaisesRegex(spillway.InvalidArgument, message):
                    opens(store)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_folder_that_is_there_may_have_a_comma_in_its_name(self):
        named = self.folder / "lr=1,wd=0"
        named.mkdir()
        for store in (named, str(named / "store"), [str(self.folder / "a,b"), self.folder / "c,d"]):
            with self.quietly_open(store) as run:
                run.engine.commit()
        self.assertEqual(sorted(os.listdir(self.folder)), ["a,b", "c,d", "lr=1,wd=0"])

    def test_folders_that_are_not_the_stores_are_named(self):
        ours, others, one = self.drives(), self.drives(), self.store()
        for store in (ours, others, one):
            with self.quietly_open(store) as run:
                run.engine.commit()
        new = self.store()
        for store, message in ((ours[0], "store1 is folder 1 of a store that has 2 folders; 1 was named: name them all"),
                               (ours[1], "store1 is folder 2 of a store that has 2 folders; 1 was named: name them all"),
                               (ours[::-1], f"in this order: {ours[0]},{ours[1]}"),
                               ([ours[0], others[1]], f"{others[1]} belongs to store .* and {ours[0]} to store"),
                               ([*ours, new], "has 2 folders; 3 were named"),
                               ([one, new], "has 1 folder; 2 were named"),
                               ([new, one], f"{one} belongs to a store whose first folder is not {new}"),
                               ([new, ours[1]], f"{ours[1]} belongs to a store whose first folder is not {new}")):
            with self.subTest(store=store), self.assertRaisesRegex(spillway.Error, message):
                self.quietly_open(store)
        self.assertFalse(os.path.exists(new))

    def test_a_folder_that_is_missing_at_open_is_named(self):
        store = self.drives()
        run = self.quietly_open(store)
        run.engine.commit()
        run.close()
        for drive in (0, 1):
            os.rename(store[drive], f"{store[drive]}.away")
            with self.assertRaisesRegex(spillway.FailedPrecondition, f"{store[drive]}[ ;].*is a disk not mounted"):
                self.quietly_open(store)
            self.assertFalse(os.path.exists(store[drive]), "the mount point is as it was")
            os.rename(f"{store[drive]}.away", store[drive])
        self.quietly_open(store).close()

    def test_a_store_that_is_open_is_named(self):
        store = self.drives()
        params = make_params()
        with contextlib.redirect_stderr(io.StringIO()):
            optimizer = st.AdamW(params, store=store, pinned="1MiB")
            with self.assertRaisesRegex(spillway.FailedPrecondition, f"{store[0]} is in use by this process.*run.close()"):
                st.AdamW(make_params(), store=store, pinned="1MiB")
        optimizer.run.close()

    def test_a_dict_loads_in_another_process_and_a_moved_store_is_still_the_same(self):
        store, file = self.drives(), self.folder / "saved.pt"
        model = tiny_model()
        with contextlib.redirect_stderr(io.StringIO()):
            optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store, pinned="1MiB")
        train(model, optimizer, 3)
        torch.save((model.state_dict(), optimizer.state_dict()), file)
        expected = train(model, optimizer, 2, first=3)
        optimizer.run.close()
        moved = [f"{folder}.moved" for folder in store]
        for old, new in zip(store, moved):
            os.rename(old, new)
        code = ("import sys, torch, spillway.torch as st\n"
                f"sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
                "from torch_case import tiny_model, train\n"
                f"torch.set_default_device({str(DEVICE)!r})\n"
                f"weights, saved = torch.load({str(file)!r}, weights_only=True)\n"
                "model = tiny_model()\n"
                "model.load_state_dict(weights)\n"
                f"optimizer = st.AdamW(model.parameters(), lr=5.0, store={moved!r}, pinned='1MiB')\n"
                "optimizer.load_state_dict(saved)\n"
                "print(train(model, optimizer, 2, first=3))\n")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.strip(), str(expected))

    def test_a_dict_of_another_store_names_all_of_its_folders(self):
        store, file = self.drives(), io.BytesIO()
        model = tiny_model()
        with self.quietly_open(store) as run:
            optimizer = st.AdamW(model.parameters(), store=run)
            train(model, optimizer, 1)
            saved = optimizer.state_dict()
            torch.save(saved, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        self.assertEqual(saved["spillway"]["store"], store)
        other = self.drives()
        with self.quietly_open(other) as run, self.assertRaisesRegex(
                spillway.FailedPrecondition,
                f"that was in {store[0]} and {store[1]}, and this is the store in {other[0]} and {other[1]}: a copied"):
            st.AdamW(tiny_model().parameters(), store=run).load_state_dict(saved)
        saved["spillway"]["label"] = "torch-99-12345678"
        with self.quietly_open(store) as run, self.assertRaisesRegex(
                spillway.NotFound, f"the store in {store[0]} and {store[1]} does not have the snapshot torch-99-12345678"):
            st.AdamW(tiny_model().parameters(), store=run).load_state_dict(saved)

    def test_a_dict_of_an_earlier_version_loads(self):
        """It names the folder of a store as one text."""
        for store in (self.store(), self.drives()):
            model = tiny_model()
            run = self.quietly_open(store)
            optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
            train(model, optimizer, 2)
            saved, expected = optimizer.state_dict(), state_of(optimizer)
            if isinstance(store, str):
                self.assertEqual(saved["spillway"]["store"], store)
            saved["spillway"]["store"] = "nvme/run"
            train(model, optimizer, 1, first=2)
            optimizer.load_state_dict(saved)
            self.assert_same_state(expected, state_of(optimizer))
            run.close()
        with self.quietly_open(self.store()) as run, self.assertRaisesRegex(spillway.FailedPrecondition, "was in nvme/run, "):
            st.AdamW(tiny_model().parameters(), store=run).load_state_dict(saved)

    CHILD = """
import os, sys, torch, spillway.torch as st
sys.path.insert(0, {tests!r})
from torch_case import tiny_model, train
torch.set_default_device({device!r})
model = tiny_model()
run = st.open({store!r}, pinned="256KiB", report=False)
checkpoints = st.Checkpoints(run, {out!r})
optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
step = 0
while True:
    file = {out!r} + "/checkpoint.pt"
    torch.save((model.state_dict(), optimizer.state_dict(), step), file + ".new")
    os.replace(file + ".new", file)
    print(step, flush=True)
    train(model, optimizer, 1, first=step)
    step += 1
"""

    def test_a_killed_run_resumes_at_its_last_checkpoint(self):
        import random
        chance = random.Random(seed.draw_seed())
        store, out = self.drives(), self.folder / "out"
        out.mkdir()
        code = self.CHILD.format(tests=str(pathlib.Path(__file__).parent), store=store, out=str(out), device=str(DEVICE))
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(chance.randrange(2, 8)):
            self.assertTrue(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        weights, saved, step = torch.load(out / "checkpoint.pt", weights_only=True)
        model = tiny_model()
        model.load_state_dict(weights)
        run = self.quietly_open(store, pinned="256KiB")
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        optimizer.load_state_dict(saved)
        resumed = train(model, optimizer, 3, first=step)
        run.close()
        whole = tiny_model()
        expected = train(whole, st.AdamW(whole.parameters(), lr=1e-2), step + 3)
        self.assertEqual(resumed, expected[step:])
        self.assert_same(model.parameters(), whole.parameters())

    def test_checkpoints_and_the_last_state_dict(self):
        store, out = self.drives(), self.folder / "out"
        out.mkdir()
        model = tiny_model()
        run = self.quietly_open(store)
        with self.assertRaisesRegex(spillway.NotFound, f"the last commit of the store in {store[0]} and {store[1]} has no "):
            st.last_state_dict(run)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        checkpoints = st.Checkpoints(run, out, keep=1)
        labels, states = [], []
        for step in range(4):
            train(model, optimizer, 1, first=step)
            torch.save(optimizer.state_dict(), out / f"{step}.pt")
            labels.append(checkpoints.labels()[-1])
            states.append(state_of(optimizer))
        self.assertEqual(checkpoints.labels(), labels)
        for gone in (0, 2):
            (out / f"{gone}.pt").unlink()
        with contextlib.redirect_stderr(io.StringIO()) as said:
            checkpoints.drop_gone()
        self.assertEqual(checkpoints.labels(), [labels[1], labels[3]])
        self.assertEqual(said.getvalue().count("is gone"), 2)
        run.close()

        run = self.quietly_open(store)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        last = st.last_state_dict(run)
        self.assertEqual(last["spillway"]["store"], store)
        optimizer.load_state_dict(last)
        self.assert_same_state(state_of(optimizer), states[3])
        optimizer.load_state_dict(torch.load(out / "1.pt", weights_only=True))
        self.assert_same_state(state_of(optimizer), states[1])
        run.close()

    def test_the_command_finds_all_folders(self):
        command = pathlib.Path(os.environ.get("SPILLWAY_LIBRARY", "")).resolve().parents[1] / "bin/spillway"
        if not command.exists():
            self.skipTest(f"there is no {command}")
        store, model = self.drives(), tiny_model()
        run = self.quietly_open(store, pinned="16MiB")
        rates = [drive["read_bytes_per_second"] for drive in run.engine.stats()["drives"]]
        optimizer = st.AdamW(model.parameters(), store=run)
        for step in range(2):
            train(model, optimizer, 1, first=step)
            label = optimizer.state_dict()["spillway"]["label"]
        run.close()

        def said(*arguments):
            return subprocess.run([command, *arguments], capture_output=True, text=True, check=True).stdout

        named = ",".join(store)
        found = json.loads(said("inspect", named, "--json"))
        self.assertEqual([device["path"] for device in found["devices"]], store)
        self.assertEqual([device["calibration"]["read_bytes_per_second"] for device in found["devices"]], rates)
        self.assertEqual(found["snapshots"][1]["label"], label)
        self.assertTrue(said("fsck", named).endswith("whole\n"))
        said("snapshot", "create", named, "mine")
        said("snapshot", "drop", named, "mine")
        said("trim", named)
        with self.quietly_open(store) as run:
            optimizer = st.AdamW(model.parameters(), store=run)
            optimizer.load_state_dict(st.last_state_dict(run))
            self.assertEqual(st.last_state_dict(run)["spillway"]["label"], label)
        said("remove", named, "--yes")
        self.assertEqual([os.listdir(folder) for folder in store], [[], []])

    def test_what_a_load_saves_goes_on_in_the_next_folder_when_one_is_full(self):
        class Full(io.FileIO):
            def write(self, data):
                if self.tell() + len(data) > MIB:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return super().write(data)

        store = self.drives()
        run = self.quietly_open(store, pinned="32MiB", calibrate="off")
        weights = [torch.nn.Parameter(torch.randn(256, 1024)) for _ in range(2)]
        first, second = (st.AdamW([weight], lr=0.1, store=run) for weight in weights)
        for weight, optimizer in zip(weights, (first, second)):
            weight.grad = torch.randn_like(weight)
            optimizer.step()
        saved, begun = first.state_dict(), state_of(first)
        for weight, optimizer in zip(weights, (first, second)):
            optimizer.step()
        stays, real, made = state_of(second), tempfile.TemporaryFile, []

        def full_first(dir, **words):
            made.append(dir)
            return Full(self.folder / "first", "w+") if len(made) == 1 else real(dir=dir, **words)

        with mock.patch("tempfile.TemporaryFile", full_first):
            first.load_state_dict(saved)
        self.assertEqual(sorted(made), sorted(store))
        self.assert_same_state(state_of(first), begun)
        self.assert_same_state(state_of(second), stays)
        with mock.patch("tempfile.TemporaryFile", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
            with self.assertRaisesRegex(spillway.ResourceExhausted,
                                        f"{store[0]} and {store[1]} have no room for the {2 * MIB} bytes of state"):
                first.step()
                first.load_state_dict(saved)
        self.assert_same_state(state_of(second), stays)
        run.close()

    def test_full_disks_are_filled_one_after_another(self):
        folders = [self.folder / "a", self.folder / "b"]
        for folder, size in zip(folders, ("2m", "4m")):
            folder.mkdir()
            made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True,
                                  text=True, check=False)
            if made.returncode != 0:
                self.skipTest(f"no file system can be mounted here: {made.stderr.strip()}")
            self.addCleanup(subprocess.run, ["umount", folder], check=True)
        pieces = [os.urandom(1_300_000) for _ in range(4)]
        with _spare.SpareFiles(list(map(str, folders)), 5_200_000) as files:
            places = [files.write(piece) for piece in pieces]
            self.assertEqual([os.statvfs(folder).f_bavail < os.statvfs(folder).f_blocks for folder in folders], [True, True])
            for place, piece in reversed(list(zip(places, pieces))):
                out = bytearray(len(piece))
                files.read(place, memoryview(out))
                self.assertEqual(out, piece)
            with self.assertRaisesRegex(spillway.ResourceExhausted, f"{folders[0]} and {folders[1]} have no room for the 52"):
                files.write(pieces[0])
            for folder in folders:
                room = os.statvfs(folder)
                self.assertLess(room.f_bavail * room.f_frsize, 1_300_000)
        for folder in folders:
            self.assertEqual(os.statvfs(folder).f_bavail, os.statvfs(folder).f_blocks)

    def test_the_report_names_both(self):
        store = self.drives()
        with contextlib.redirect_stderr(io.StringIO()) as said:
            with st.open(store, pinned="4MiB") as run:
                params = make_params()
                optimizer = st.SGD(params, momentum=0.9, store=run)
                set_gradients(params, 0)
                optimizer.step()
        self.assertIn(f"rest in {store[0]} and {store[1]}, at most", said.getvalue())


if __name__ == "__main__":
    unittest.main()
