# SPDX-License-Identifier: Apache-2.0
"""Runs tools/checks/readme on texts with known and unknown commands, and on commands that fail."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOADER = importlib.machinery.SourceFileLoader("readme", str(ROOT / "tools" / "checks" / "readme"))
readme = importlib.util.module_from_spec(importlib.util.spec_from_loader("readme", LOADER))
LOADER.exec_module(readme)

TRAIN = "build/release/bin/spillway train --model m --data d --store run --steps 400 --save tuned"


def block(*lines, language=""):
    return "\n".join([f"```{language}", *lines, "```", ""])


def texts(text):
    return [command for _, command in readme.texts_of(text)]


def runs(text):
    return [command.run for command in readme.commands_of(text)]


class CommandsTest(unittest.TestCase):
    def test_all_of_this_repository_are_known(self):
        self.assertGreater(len(runs((ROOT / "README.md").read_text(encoding="utf-8"))), 25)

    def test_a_block_without_a_language_has_commands(self):
        self.assertEqual(texts(block("tools/test  # the suite", "", "# words", "fsck run \\", "    --json")),
                         ["tools/test", "fsck run --json"])
        self.assertEqual(texts(block("int main() {}", language="cpp")), [])

    def test_prose_has_commands_in_backticks(self):
        self.assertEqual(texts("See `tools/test`, or `ctest -L gpu` and `make\ninstall`."),
                         ["tools/test", "ctest -L gpu", "make install"])

    def test_flags_calls_files_and_names_are_no_commands(self):
        self.assertEqual(texts("`--policy demand`, `find_package(a b)`, `README.md`, `tests/`, `auto`"), [])

    def test_each_has_its_line_and_comes_once(self):
        text = "first\n`tools/test`\n" + block("tools/quickstart", "tools/test")
        self.assertEqual(readme.texts_of(text), [(2, "tools/test"), (4, "tools/quickstart")])

    def test_what_no_row_matches_is_unknown(self):
        for command in ("make install", "tools/test --fast", "build/release/bin/spillway dance", "rm -r run"):
            with self.assertRaisesRegex(readme.Unknown, f"README.md:2: {command}\n"):
                readme.commands_of(block(command))
        with self.assertRaisesRegex(readme.Unknown, "README.md:1: bench/ladder.py -x"):
            readme.commands_of("`bench/ladder.py -x`")

    def test_dots_without_a_training_before_are_unknown(self):
        with self.assertRaises(readme.Unknown):
            readme.commands_of(block("build/release/bin/spillway train ... --resume"))

    def test_dots_stand_for_the_arguments_before(self):
        known = runs(block(TRAIN, "build/release/bin/spillway train ... --steps 500 --save more --resume",
                           "build/release/bin/spillway train ... --trace t.json"))
        self.assertEqual(known, [
            "build/release/bin/spillway train --model m --data d --store run --steps 4 --save tuned",
            "build/release/bin/spillway train --model m --data d --store run --steps 5 --save more --resume",
            "build/release/bin/spillway train --model m --data d --steps 4 --store another --save another-model "
            "--trace t.json"])


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.scratch = pathlib.Path(folder.name)

    def run_all(self, *rows):
        commands = [readme.Command(number, row.pattern, row.run, row) for number, row in enumerate(rows, start=1)]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            readme.run_all(commands, self.scratch, self.scratch, [("Q", "q")])
        return output.getvalue()

    def test_they_run_in_order_in_the_folder(self):
        output = self.run_all(readme.Row("a", "echo one >{scratch}/Q"), readme.Row("b", "grep one q"))
        self.assertIn("2 commands of README.md", output)
        self.assertEqual((self.scratch / "q").read_text(), "one\n")

    def test_another_exit_status_fails_and_ends_the_check(self):
        with self.assertRaisesRegex(SystemExit, "README.md:1: a\n.*\n.*exited with 1, not 0"):
            self.run_all(readme.Row("a", "false"), readme.Row("b", "touch {scratch}/b"))
        self.assertFalse((self.scratch / "b").exists())

    def test_a_command_that_should_fail_and_does_not_fails(self):
        self.run_all(readme.Row("a", "exit 3", status=3))
        with self.assertRaisesRegex(SystemExit, "exited with 0, not 3"):
            self.run_all(readme.Row("a", "true", status=3))


if __name__ == "__main__":
    unittest.main()
