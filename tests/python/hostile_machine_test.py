# SPDX-License-Identifier: Apache-2.0
"""Runs the commands under resource limits and signals, and with a stderr that cannot be written."""

import contextlib
import itertools
import os
import pty
import signal
import subprocess
import sys
import termios
import time
import unittest
from unittest import mock

from import_gguf_test import write_gguf
from tool_testing import ToolTest, model_tensors, tool_command, tool_environment, write_folder
from spillway_tools.command import Progress

_DEADLINE_SECONDS = 60
_IMPORTS = """
import os, resource, signal, sys, tempfile
from spillway_tools import command, import_command, staging
kill = lambda number=signal.SIGINT: os.kill(os.getpid(), number)
"""


class MachineTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.source = self.folder / "in"
        self.out = self.folder / "out"
        write_folder(self.source)

    def run_changed(self, change, expect, *options):
        """Runs an import after the statements `change`, which put a fault into the tool. Its exit
        code must be `expect`. Returns the finished process."""
        finished = subprocess.run(
            self.changed(change, *options),
            env=tool_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=_DEADLINE_SECONDS,
        )
        self.assertEqual(finished.returncode, expect, finished.stderr)
        self.assertNotIn("Traceback", finished.stderr)
        return finished

    def changed(self, change, *options):
        command = tool_command("import_command", self.source, self.out, *options)
        command[2] = f"{_IMPORTS}{change}\nimport_command.main()"
        return command


class LimitsTest(MachineTest):
    def test_too_little_memory_is_told_before_anything_begins(self):
        for limit, option in (("AS", "-v"), ("DATA", "-d")):
            for mib in (100, 300):
                change = f"resource.setrlimit(resource.RLIMIT_{limit}, ({mib << 20},) * 2)"
                with self.subTest(f"{limit} {mib}"):
                    told = self.run_changed(change, 3).stderr
                    self.assertRegex(told, f"^spillway-import: needs about .* {mib} MiB: raise it")
                    self.assertIn(f"(ulimit {option})\n", told)
        self.assert_nothing_left("in")

    def test_what_is_mapped_to_be_checked_fits_the_limit(self):
        with open(self.source / "model.safetensors", "r+b") as file:
            file.truncate(2 << 30)
        change = "resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2)"
        told = self.run_changed(change, 3).stderr
        self.assertIn("in/model.safetensors: is mapped to be checked, which needs", told)
        self.assert_nothing_left("in")

    def test_the_libraries_threads_are_the_users_to_set(self):
        change = "from spillway_tools import memory; os.environ.pop('OPENBLAS_NUM_THREADS', None)\n"
        change += "with memory.one_blas_thread(): one = os.environ['OPENBLAS_NUM_THREADS']\n"
        change += "assert one == '1' and 'OPENBLAS_NUM_THREADS' not in os.environ"
        self.run_changed(change, 0)

    def test_few_descriptors_leave_no_folder(self):
        for number in range(4, 12):
            change = "from spillway_tools import importer\n"
            change += f"resource.setrlimit(resource.RLIMIT_NOFILE, ({number}, {number}))"
            finished = subprocess.run(
                self.changed(change, "--force"),
                env=tool_environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            with self.subTest(number):
                self.assertNotIn("Traceback", finished.stderr)
                self.assertEqual([*self.folder.glob(".out*")], [], finished.stderr)

    def test_a_file_that_grows_too_large_is_named(self):
        change = "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
        told = self.run_changed(change, 1).stderr
        self.assertIn(f"{self.out}: cannot be written: File too large", told)
        self.assert_nothing_left("in")


    def test_a_data_set_that_grows_too_large_is_named(self):
        (self.folder / "text.txt").write_text("the an " * 10_000)
        command = tool_command(
            *("tokenize_command", "--model", self.source, "--text", self.folder / "text.txt"),
            *("--out", self.out),
        )
        command[2] = "import resource\n" + command[2].replace(
            "main()", "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); main()"
        )
        failed = subprocess.run(
            command, env=tool_environment(), capture_output=True, text=True, check=False
        )
        self.assertEqual(failed.returncode, 1, failed.stderr)
        self.assertIn(f"{self.out}: cannot be written: File too large", failed.stderr)
        self.assert_nothing_left("in", "text.txt")


class SignalTest(MachineTest):
    def test_a_signal_while_packages_are_loaded(self):
        (self.folder / "slow").mkdir()
        (self.folder / "slow/safetensors.py").write_text(
            f"import time\nopen({str(self.folder / 'slow/begun')!r}, 'w')\ntime.sleep(60)\n"
        )
        for number, words in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")):
            begun = self.folder / "slow/begun"
            environment = tool_environment()
            environment["PYTHONPATH"] = f"{self.folder / 'slow'}:{environment['PYTHONPATH']}"
            run = subprocess.Popen(
                tool_command("import_command", self.source, self.out),
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            end = time.monotonic() + _DEADLINE_SECONDS
            while not begun.exists():
                self.assertLess(time.monotonic(), end, "the run did not begin")
                time.sleep(0.01)
            begun.unlink()
            run.send_signal(number)
            told = run.communicate()[1]
            self.assertEqual(told, f"spillway-import: {words}; nothing was left behind\n")
            self.assertEqual(run.returncode, 128 + number)

    def test_each_signal_says_that_it_ended_the_run(self):
        for name in ("SIGTERM", "SIGHUP"):
            change = "from spillway_tools import importer\n"
            change += f"importer._check_weights = lambda _: kill(signal.{name})"
            told = self.run_changed(change, 128 + getattr(signal, name)).stderr
            self.assertIn(f"spillway-import: ended by {name}; nothing was left behind\n", told)
            self.assert_nothing_left("in")

    def test_a_second_signal_while_the_first_one_is_cleaned_up_after(self):
        change = "from spillway_tools import importer\n"
        change += "importer._check_weights = lambda _: kill()\n"
        change += "remove = staging._remove_tree\n"
        change += "staging._remove_tree = lambda folder: (kill(), remove(folder), kill())"
        self.run_changed(change, 130)
        self.assert_nothing_left("in")

    def test_a_signal_while_the_hidden_folder_is_made(self):
        change = "make = tempfile.mkdtemp\n"
        change += "def made(**options):\n  folder = make(**options)\n  kill()\n  return folder\n"
        change += "tempfile.mkdtemp = made"
        self.run_changed(change, 130)
        self.assert_nothing_left("in")

    def test_a_signal_after_the_output_is_in_place_comes_too_late(self):
        for change in (
            "move = staging.StagedFolder._rename_whole\n"
            "staging.StagedFolder._rename_whole = lambda self: (kill(), move(self))[1]",
            "command.Progress.finish = lambda *_: kill()",
            "import atexit\natexit.register(kill)",
        ):
            with self.subTest(change):
                self.run_changed(change, 0)
                self.assert_nothing_left("in", "out")
                self.assertTrue((self.out / "config.json").exists())
                for file in self.out.iterdir():
                    file.unlink()
                self.out.rmdir()


class StderrTest(MachineTest):
    def test_a_stderr_that_cannot_be_written_ends_nothing(self):
        command = tool_command("import_command", self.source, self.out, "--force")
        with open("/dev/full", "wb") as full:
            for stderr in (full, self.closed_pipe()):
                finished = subprocess.run(
                    command, env=tool_environment(), stderr=stderr, check=False
                )
                self.assertEqual(finished.returncode, 0)
                self.assertTrue((self.out / "config.json").exists())
                failed = subprocess.run(command[:3], env=tool_environment(), stderr=stderr)
                self.assertEqual(failed.returncode, 2)

    def test_progress_does_not_wrap_in_a_narrow_terminal(self):
        for columns, width in ((20, 19), (200, 78), (0, 78)):
            master, slave = pty.openpty()
            self.addCleanup(os.close, master)
            termios.tcsetwinsize(slave, (24, columns))
            with (
                open(slave, "w", encoding="utf-8") as terminal,
                mock.patch.object(sys, "stderr", terminal),
                mock.patch.object(time, "monotonic", side_effect=itertools.count()),
            ):
                progress = Progress("spillway-import: writing", 4000)
                progress.add(1000)
                progress.add(2000)
                progress.finish("spillway-import: done")
            written = b""
            with contextlib.suppress(OSError):  # EIO: nothing is left, and no one can write
                while True:
                    written += os.read(master, 10000)
            lines = written.decode().split("\r")
            self.assertEqual([len(line) for line in lines[:4]], [0, width, width, width])
            self.assertTrue(lines[2].startswith("spillway-import: wr"))
            self.assertEqual(lines[3:], [" " * width, "spillway-import: done", "\n"])

    def closed_pipe(self):
        reading, writing = os.pipe()
        os.close(reading)
        self.addCleanup(os.close, writing)
        return writing

    def test_names_are_shown_without_control_characters(self):
        write_gguf(self.folder / "m.gguf", model_tensors())
        (self.folder / "no\x1b[31m\r").touch()
        for name, expect in (("\x1b[31m\r", 0), ("no\x1b[31m\r", 2)):
            told = self.run_tool(
                "import_command", self.folder / "m.gguf", self.folder / name, expect=expect
            ).stderr
            self.assertNotIn("\x1b", told)
            self.assertNotIn("\r", told)
        self.assertNotIn("\x1b", self.run_tool("import_command", "\x1b", "-\x1b", expect=2).stderr)


if __name__ == "__main__":
    unittest.main()
