# SPDX-License-Identifier: Apache-2.0
"""Tests that a snapshot is kept as long as a checkpoint names it."""

import argparse
import contextlib
import errno
import io
import os
import pathlib
import pickle
import shutil
import tempfile
import unittest
from unittest import mock

import spillway
import spillway.torch as st
import torch
from torch_case import StateTest, state_of, tiny_model, train


class CheckpointsTest(StateTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "out"
        self.out.mkdir()
        self.begin(self.store())

    def begin(self, store):
        """Opens the store and makes an optimizer, as a program does."""
        self.model = tiny_model()
        self.optimizer = st.AdamW(self.model.parameters(), lr=1e-2, store=st.open(store, pinned="4MiB", report=False))
        self.addCleanup(self.optimizer.run.close)

    def step(self):
        """Trains a step, and returns its state dict and the label."""
        train(self.model, self.optimizer, 1)
        saved = self.optimizer.state_dict()
        return saved, saved["spillway"]["label"]

    def save(self, name):
        saved, label = self.step()
        torch.save(saved, self.out / name)
        return label

    def test_snapshots_live_as_long_as_a_file_names_them(self):
        (self.out / "deep/er").mkdir(parents=True)
        checkpoints = st.Checkpoints(self.optimizer.run, self.out)
        (self.out / "gone.pt").symlink_to("nowhere")
        (self.out / "odd.bin").write_bytes(bytes(range(256)))
        for step in range(8):
            whole = {"model": {"big": torch.zeros(1 << 19)}, "optimizer": self.step()[0]}
            torch.save(whole, self.out / "latest.pt")
            if step == 2:
                torch.save(whole, self.out / "deep/er/best.ckpt")
        checkpoints.drop_gone()
        self.assertLessEqual(len(checkpoints.labels()), 4)
        self.optimizer.load_state_dict(torch.load(self.out / "deep/er/best.ckpt", weights_only=True)["optimizer"])
        (self.out / "deep/er/best.ckpt").unlink()
        self.optimizer.load_state_dict(torch.load(self.out / "latest.pt", weights_only=True)["optimizer"])

    def test_what_was_loaded_from_elsewhere_stays(self):
        checkpoints = st.Checkpoints(self.optimizer.run, self.out, keep=1)
        saved, label = self.step()
        self.optimizer.load_state_dict(saved)
        for _ in range(3):
            _, last = self.step()
        self.assertEqual(checkpoints.labels(), [label, last])

    def test_labels_of_older_versions_are_read(self):
        checkpoints = st.Checkpoints(self.optimizer.run, self.out, keep=1)
        saved, label = self.step()
        self.optimizer.run.engine.snapshot("torch-1")
        self.optimizer.run.engine.drop(label)
        saved["spillway"]["label"] = "torch-1"
        torch.save(saved, self.out / "a.pt")
        for _ in range(3):
            _, last = self.step()
        self.assertEqual(checkpoints.labels(), ["torch-1", last])
        self.optimizer.load_state_dict(torch.load(self.out / "a.pt", weights_only=True))

    def test_a_dropped_commit_is_not_named_again(self):
        checkpoints = st.Checkpoints(self.optimizer.run, self.out, keep=1)
        self.save("a.pt")
        checkpoints.drop_gone()
        (self.out / "a.pt").unlink()
        checkpoints.drop_gone()
        self.assertEqual(checkpoints.labels(), [])
        saved, expected = self.optimizer.state_dict(), state_of(self.optimizer)
        self.optimizer.run.close()
        self.begin(self.optimizer.run.store)
        self.optimizer.load_state_dict(saved)
        self.assert_same_state(expected, state_of(self.optimizer))

    def test_a_checkpoint_keeps_its_commit_whatever_else_is_in_the_file(self):
        checkpoints = st.Checkpoints(self.optimizer.run, self.out, keep=1)
        labels = []
        for name, wrapped, more in (("plain", lambda state: state, {}),
                                    ("other", lambda state: {"args": argparse.Namespace(lr=1), "optimizer": state}, {}),
                                    ("deep", lambda state: [[[[[[[state]]]]]]], {}),
                                    ("legacy", lambda state: {"optimizer": state}, {"_use_new_zipfile_serialization": False})):
            saved, label = self.step()
            labels.append(label)
            torch.save([wrapped(saved), "pytorch-99"], self.out / f"{name}.pt", **more)  # has the text of a label
            checkpoints.drop_gone()
        self.assertEqual(checkpoints.labels(), labels)
        with self.assertRaisesRegex(spillway.InvalidArgument, "keep is 0"):
            st.Checkpoints(self.optimizer.run, self.out, keep=0)

    def test_a_checkpoint_that_cannot_be_read_for_a_while_keeps_its_commit(self):
        failed = OSError(errno.EIO, os.strerror(errno.EIO))
        strings_in = "spillway.torch._checkpoints._strings_in"
        checkpoints = st.Checkpoints(self.optimizer.run, self.out, keep=1)
        labels = [self.save("a.pt")]
        checkpoints.drop_gone()
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            (self.out / "a.pt").touch()  # it is read again
            with mock.patch(strings_in, side_effect=failed):
                labels.append(self.save("b.pt"))
                checkpoints.drop_gone()
                checkpoints = st.Checkpoints(self.optimizer.run, self.out, keep=1)  # which has seen none of them
                checkpoints.drop_gone()
            self.assertEqual(checkpoints.labels(), labels)
            self.assertIn(f"dropped none of the snapshots {labels[0]}: {self.out}", said.getvalue())
            checkpoints.drop_gone()
            self.assertEqual(checkpoints.labels(), labels)
            with mock.patch("os.stat", side_effect=failed):
                checkpoints.drop_gone()
            self.assertEqual(checkpoints.labels(), labels)
            with mock.patch("os.walk", return_value=[]):
                checkpoints.drop_gone()
            self.assertEqual(checkpoints.labels(), labels)
            (self.out / "a.pt").unlink()
            checkpoints.drop_gone()
        self.assertEqual(checkpoints.labels(), labels[1:])

    def test_a_folder_that_is_not_there_has_not_lost_its_checkpoints(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        checkpoints = st.Checkpoints(self.optimizer.run, "out", keep=1)
        labels = [self.save("a.pt")]
        checkpoints.drop_gone()
        os.chdir("/")
        labels.append(self.step()[1])
        self.assertEqual(checkpoints.labels(), labels, "the folder is the same in another working directory")
        self.out.rename(self.folder / "elsewhere")
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            labels.append(self.step()[1])
        self.assertEqual(checkpoints.labels(), labels)
        self.assertIn(f"dropped none of the snapshots {labels[1]}: {self.out} (No such file", said.getvalue())
        (self.folder / "elsewhere").rename(self.out)
        checkpoints.drop_gone()
        self.assertEqual(checkpoints.labels(), [labels[0], labels[2]])
        (self.out / "a.pt").unlink()
        checkpoints.drop_gone()
        self.assertEqual(checkpoints.labels(), labels[2:])

    def test_a_folder_on_another_device_has_not_lost_its_checkpoints(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
            if os.stat(other).st_dev == os.stat(self.out).st_dev:
                self.skipTest(f"{other} and {self.out} are on one device")
            mount = self.folder / "mount"
            mount.symlink_to(self.out)
            checkpoints = st.Checkpoints(self.optimizer.run, mount, keep=1)
            (self.out / "deep").mkdir()
            labels = [self.save("a.pt"), self.save("deep/b.pt")]
            checkpoints.drop_gone()
            mount.unlink()
            mount.symlink_to(other)
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                labels += [self.step()[1], self.step()[1]]
            self.assertEqual(checkpoints.labels(), labels)
            self.assertIn(f"{mount} is on another device than before", said.getvalue())
            mount.unlink()
            mount.symlink_to(self.out)
            shutil.rmtree(self.out / "deep")
            checkpoints.drop_gone()
            self.assertEqual(checkpoints.labels(), [labels[0], labels[3]])

    def test_a_snapshot_of_an_earlier_run_stays_if_its_checkpoint_was_not_seen(self):
        self.save("a.pt")
        self.optimizer.run.close()
        self.begin(self.optimizer.run.store)
        (self.folder / "wrong").mkdir()
        checkpoints = st.Checkpoints(self.optimizer.run, self.folder / "wrong", keep=1)
        earlier = checkpoints.labels()
        for _ in range(3):
            _, last = self.step()
        self.assertEqual(checkpoints.labels(), [*earlier, last])

    def test_a_checkpoint_may_have_any_name(self):
        checkpoints = st.Checkpoints(self.optimizer.run, self.out, keep=1)
        labels = [self.save(name) for name in ("a.pth.tar", "b", "c.safetensors")]
        saved, label = self.step()
        (self.out / "d.pkl").write_bytes(pickle.dumps(saved))
        labels.append(label)
        checkpoints.drop_gone()
        self.assertEqual(checkpoints.labels(), labels)
        (self.out / "a.pth.tar").unlink()
        checkpoints.drop_gone()
        self.assertEqual(checkpoints.labels(), labels[1:])

    def test_the_files_of_a_store_are_not_opened(self):
        opened = []
        real = open

        def recording(path, *more):
            opened.append(pathlib.Path(path).name)
            return real(path, *more)

        checkpoints = st.Checkpoints(self.optimizer.run, self.folder, keep=1)
        with mock.patch("builtins.open", recording):
            labels = [self.save("a.pt"), self.step()[1]]
        self.assertEqual(checkpoints.labels(), labels)
        self.assertIn("a.pt", opened)
        self.assertFalse([name for name in opened if "sqlite" in name or "segment" in name], "SQLite would lose its locks")


if __name__ == "__main__":
    unittest.main()
