# SPDX-License-Identifier: Apache-2.0
"""A killed run of a command leaves files. The next run for its output removes them, and no others."""

import os
import re
import signal
import subprocess
import time
import unittest

from tool_testing import ToolTest, tool_command, tool_environment, write_folder

_DEADLINE_SECONDS = 60


class LeftoversTest(ToolTest):
    def setUp(self):
        super().setUp()
        write_folder(self.folder / "model")
        os.mkfifo(self.folder / "pipe")  # blocks a run that reads its text from it

    def start_run(self):
        """Starts a run that waits for its text. Returns the process and its hidden folder."""
        command = tool_command(
            *("tokenize_command", "--model", self.folder / "model"),
            *("--text", self.folder / "pipe", "--out", self.folder / "data"),
        )
        run = subprocess.Popen(command, env=tool_environment(), stderr=subprocess.DEVNULL)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        pipe = os.open(self.folder / "pipe", os.O_RDWR)
        self.addCleanup(os.close, pipe)
        end = time.monotonic() + _DEADLINE_SECONDS
        while not (made := set(self.folder.glob(".data.partial-*/output/*.npy"))):
            self.assertLess(time.monotonic(), end, "the run did not begin")
            time.sleep(0.01)
        return run, made.pop().parents[1]

    def kill(self, run):
        run.send_signal(signal.SIGKILL)
        run.wait()

    def next_run(self, out="data"):
        (self.folder / "text.txt").write_text("the an\n")
        return self.run_tool(
            *("tokenize_command", "--model", self.folder / "model", "--force"),
            *("--text", self.folder / "text.txt", "--out", self.folder / out),
        ).stderr

    def test_what_a_killed_run_left_is_removed_and_told(self):
        run, left = self.start_run()
        self.kill(run)
        (left / "scratch/deep").mkdir()
        (left / "scratch/deep/weights").write_bytes(bytes(1 << 20))
        told = self.next_run()
        self.assertFalse(left.exists())
        self.assertIn(f"removed {left}: 1.0 MiB that a killed run had left", told)

    def test_an_import_removes_it_too(self):
        run, left = self.start_run()
        self.kill(run)
        self.run_tool("import_command", self.folder / "model", self.folder / "data")
        self.assertFalse(left.exists())

    def test_a_living_run_keeps_its_folder(self):
        _, living = self.start_run()
        self.assertNotIn("removed", self.next_run())
        self.assertTrue(living.exists())

    def test_another_output_s_leftovers_stay(self):
        run, left = self.start_run()
        self.kill(run)
        self.next_run("data2")
        self.next_run("dat")
        self.assertTrue(left.exists())

    def test_what_the_program_did_not_make_stays(self):
        run, left = self.start_run()
        self.kill(run)
        lock = re.escape((left / "spillway-partial").read_text())
        mine = self.folder / ".data.partial-mine0000"
        (mine / "output").mkdir(parents=True)
        (mine / "output/thesis").write_text("mine")
        other = self.folder / ".data.partial-other000"
        other.mkdir()
        (other / "spillway-partial").write_text("not " + lock)
        linked = self.folder / ".data.partial-linked00"
        linked.mkdir()
        (linked / "spillway-partial").symlink_to(left / "spillway-partial")
        (self.folder / "elsewhere").mkdir()
        os.link(left / "spillway-partial", self.folder / "elsewhere/spillway-partial")
        through = self.folder / ".data.partial-through0"
        through.symlink_to(self.folder / "elsewhere")
        long = self.folder / ".data.partial-longer000"
        long.mkdir()
        os.link(left / "spillway-partial", long / "spillway-partial")
        (self.folder / ".data.partial-file0000").write_text("mine")
        self.next_run()
        self.assertFalse(left.exists())
        for kept in (mine / "output/thesis", other, linked, through, long):
            self.assertTrue(kept.exists() or kept.is_symlink(), kept)
        self.assertTrue((self.folder / "elsewhere/spillway-partial").exists())
        self.assertTrue((self.folder / ".data.partial-file0000").exists())

    def test_signals_that_can_be_caught_leave_nothing(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with self.subTest(number.name):
                run, left = self.start_run()
                run.send_signal(number)
                self.assertEqual(run.wait(_DEADLINE_SECONDS), 128 + number)
                self.assertFalse(left.exists())

    def test_a_signal_just_before_a_read_is_not_missed(self):
        """The signal goes to another thread. Like one just before a read, it interrupts no read."""
        command = tool_command(
            *("tokenize_command", "--model", self.folder / "model"),
            *("--text", self.folder / "pipe", "--out", self.folder / "data"),
        )
        command[2] = (
            "import io, signal, threading\n"
            "from spillway_tools import text_tokenizer\n"
            "begin = text_tokenizer._write_tokens\n"
            "def kill():\n"
            "  signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
            "def write(*arguments):\n"
            "  threading.Timer(0.5, kill).start()\n"
            "  return begin(*arguments)\n"
            "text_tokenizer._write_tokens = write\n"
        ) + command[2]
        pipe = os.open(self.folder / "pipe", os.O_RDWR)
        self.addCleanup(os.close, pipe)
        finished = subprocess.run(
            command,
            env=tool_environment(),
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_DEADLINE_SECONDS,
        )
        self.assertEqual(finished.returncode, 128 + signal.SIGTERM)
        self.assert_nothing_left("model", "pipe")


class PublishTest(ToolTest):
    def test_a_folder_in_the_place_of_a_file_is_found_first(self):
        write_folder(self.folder / "in")
        (self.folder / "out/model.safetensors").mkdir(parents=True)
        failed = self.run_tool(
            "import_command", self.folder / "in", self.folder / "out", "--force", expect=2
        )
        self.assertIn("out/model.safetensors: is a folder", failed.stderr)
        self.assertEqual(
            [path.name for path in (self.folder / "out").iterdir()], ["model.safetensors"]
        )


if __name__ == "__main__":
    unittest.main()
