# SPDX-License-Identifier: Apache-2.0
"""Tests imports into folders that cannot be written, change meanwhile or hold other files."""

import os
import shutil
import tempfile
import unittest
from pathlib import Path

from hostile_machine_test import MachineTest
from tool_testing import model_tensors, write_folder

# Makes the third move of a file into the output fail.
_FAILING_MOVE = """
import errno
move, calls = staging._move, []
def fail(file, target):
    calls.append(target)
    if len(calls) == 3:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    move(file, target)
staging._move = fail
"""


class HostileOutputTest(MachineTest):
    def setUp(self):
        super().setUp()
        for name in ("tokenizer_config.json", "generation_config.json"):
            (self.source / name).write_text("{}")
        (self.source / "additional_chat_templates").mkdir()
        (self.source / "additional_chat_templates/tools.jinja").write_text("{{ tools }}")

    def run_import(self, *options, expect=0, out=None):
        out = out or self.out
        return self.run_tool("import_command", self.source, out, *options, expect=expect)

    def contents(self):
        """Returns the bytes of each file of the output by its path there."""
        files = (path for path in self.out.rglob("*") if path.is_file())
        return {str(file.relative_to(self.out)): file.read_bytes() for file in files}

    def test_an_output_on_another_file_system(self):
        holder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.addCleanup(holder.cleanup)
        if os.stat(holder.name).st_dev == self.folder.stat().st_dev:
            self.skipTest("/dev/shm is no other file system")
        self.out.symlink_to(holder.name)
        self.run_import()
        self.run_import("--force")
        self.assertEqual(len(os.listdir(holder.name)), 6)
        self.assert_nothing_left("in", "out")

    def test_an_output_whose_parent_cannot_be_written(self):
        self.out = self.folder / "parent/out"
        self.out.mkdir(parents=True)
        self.out.parent.chmod(0o555)
        self.addCleanup(self.out.parent.chmod, 0o755)
        if os.access(self.out.parent, os.W_OK):
            self.skipTest("this user may write every folder")
        self.run_import()

    def test_a_file_system_without_hard_links(self):
        self.out.mkdir()
        change = "import errno\ndef link(*_): raise PermissionError(errno.EPERM, 'no')\n"
        change += "os.link = link"
        self.run_changed(change, 0)
        self.assertEqual(len(self.contents()), 6)

    def test_a_failure_takes_back_what_was_in_place(self):
        self.out.mkdir()
        (self.out / "notes.txt").write_text("mine")
        told = self.run_changed(_FAILING_MOVE, 1).stderr
        self.assertIn(f"{self.out}/generation_config.json: cannot be put in place: No space left", told)
        self.assertNotIn(".partial", told)
        self.assertEqual(self.contents(), {"notes.txt": b"mine"})

    def test_a_failure_with_force_puts_back_what_was_replaced(self):
        self.run_import("--max-shard-bytes", 20000)
        (self.out / "notes.txt").write_text("mine")
        before = self.contents()
        write_folder(self.source, model_tensors(seed=8))
        self.run_changed(_FAILING_MOVE, 1, "--force")
        self.assertEqual(self.contents(), before)

    def test_force_mixes_no_two_models_and_takes_nothing_else(self):
        self.run_import("--max-shard-bytes", 20000)
        mine = {"model-best-of-my.safetensors": b"1", "model-1-of-2.safetensors": b"2"}
        for name, data in mine.items():
            (self.out / name).write_bytes(data)
        (self.source / "generation_config.json").unlink()
        self.run_import("--force")
        expected = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
        expected.add("additional_chat_templates/tools.jinja")
        self.assertEqual(set(self.contents()), expected | set(mine))
        self.assertEqual({name: self.contents()[name] for name in mine}, mine)

    def test_files_of_others_among_the_chat_templates_are_not_removed(self):
        for name in ("mine.txt", "mine.jinja/file"):
            mine = self.out / "additional_chat_templates" / name
            mine.parent.mkdir(parents=True)
            mine.write_text("mine")
            told = self.run_import("--force", expect=2).stderr
            self.assertIn("is no .jinja file, and would be removed with its folder", told)
            self.assertEqual(mine.read_text(), "mine")
            shutil.rmtree(self.out)

    def test_old_files_that_a_killed_run_had_aside_stay(self):
        self.out.mkdir()
        change = "staging._move = lambda *_: kill(signal.SIGKILL)"
        (self.out / "config.json").write_text("mine")
        self.run_changed(change, -9, "--force")
        told = self.run_import("--force").stderr
        old = [*self.out.glob(".out.partial-*/old/config.json")]
        self.assertEqual([file.read_text() for file in old], ["mine"])
        self.assertIn(f"{old[0].parents[1]}: a killed run was replacing what its folder old", told)

    def test_what_comes_into_being_meanwhile_stays(self):
        for begin in ("", "os.makedirs(sys.argv[2]); "):
            change = "from spillway_tools import importer\n"
            change += "def make(_):\n  os.makedirs(sys.argv[2], exist_ok=True)\n"
            change += "  open(sys.argv[2] + '/notes', 'w').close()\n"
            change += "importer._check_weights = make"
            self.run_changed(begin + change, 0)
            self.assertEqual(len(self.contents()), 7)
            shutil.rmtree(self.out)

    def test_folders_made_for_an_import_that_fails_go(self):
        (self.source / "config.json").write_text("{}")
        self.run_import(expect=1, out=self.folder / "a/b/c")
        self.assert_nothing_left("in")
        (self.folder / "a").mkdir()
        self.run_import(expect=1, out=self.folder / "a/b/c")
        self.assert_nothing_left("a", "in")

    def test_a_link_to_nothing_is_found_first(self):
        self.out.symlink_to(self.folder / "nowhere")
        told = self.run_import(expect=2).stderr
        self.assertIn("nowhere, which does not exist", told)
        self.assertNotIn("reading", told)

    def test_too_little_room_is_told_in_figures(self):
        change = "import shutil\nfrom collections import namedtuple\n"
        change += "shutil.disk_usage = lambda _: namedtuple('Usage', 'free')(110_000)"
        told = self.run_changed(change, 1).stderr
        size_bytes = sum(file.stat().st_size for file in self.source.iterdir())
        self.assertGreater(size_bytes, 110_000)
        self.assertRegex(told, r"its files take .* has 107.4 KiB free: free [0-9.]+ KiB more or")
        self.assert_nothing_left("in")


if __name__ == "__main__":
    unittest.main()
