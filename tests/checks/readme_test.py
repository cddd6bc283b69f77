# SPDX-License-Identifier: Apache-2.0
"""Runs tools/checks/readme on texts with known and unknown commands, on commands that fail, and on links."""

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
    return [command.run for command in readme.commands_of("README.md", text)]


class PagesTest(unittest.TestCase):
    def test_all_commands_of_this_repository_are_known(self):
        commands = readme.commands_of_pages()
        self.assertGreater(len(commands), 90)
        self.assertEqual({command.page for command in commands}, set(readme.PAGES))

    def test_a_command_that_is_run_once_is_not_run_for_a_later_page(self):
        ran = [command.run for command in readme.commands_of_pages()]
        self.assertEqual(ran.count("tools/checks/kills --rounds 3"), 1)
        self.assertGreater(ran.count("build/venv/bin/spillway-tokenize --model model --text build/quickstart/text.txt "
                                     "--out data"), 1)

    def test_no_link_of_this_repository_leads_nowhere(self):
        self.assertEqual(readme.check_links(), [])

    def test_the_pages_for_newcomers_are_short(self):
        for page, most_bytes in (("README.md", 9000), ("bench/README.md", 15000), ("CONTRIBUTING.md", 9000)):
            self.assertLessEqual((ROOT / page).stat().st_size, most_bytes, page)


class CommandsTest(unittest.TestCase):
    def test_a_block_without_a_language_has_commands(self):
        self.assertEqual(texts(block("tools/test  # the suite", "", "# words", "fsck run \\", "    --json")),
                         ["tools/test", "fsck run --json"])
        self.assertEqual(texts(block("int main() {}", language="cpp")), [])

    def test_prose_has_commands_in_backticks(self):
        self.assertEqual(texts("See `tools/test`, or `ctest -L gpu` and `make\ninstall`."),
                         ["tools/test", "ctest -L gpu", "make install"])

    def test_flags_calls_files_and_names_are_no_commands(self):
        self.assertEqual(texts("`--policy demand`, `find_package(a b)`, `README.md`, `tests/`, `auto`, `with f(x):`, "
                               "`{\"v\": 1}`"), [])

    def test_each_has_its_line_and_comes_once(self):
        text = "first\n`tools/test`\n" + block("tools/quickstart", "tools/test")
        self.assertEqual(readme.texts_of(text), [(2, "tools/test"), (4, "tools/quickstart")])

    def test_what_no_row_matches_is_unknown(self):
        for command in ("make install", "tools/test --fast", "build/release/bin/spillway dance", "rm -r run"):
            with self.assertRaisesRegex(readme.Unknown, f"README.md:2: {command}\n"):
                readme.commands_of("README.md", block(command))
        with self.assertRaisesRegex(readme.Unknown, "bench/README.md:1: bench/ladder.py -x"):
            readme.commands_of("bench/README.md", "`bench/ladder.py -x`")

    def test_dots_without_a_training_before_are_unknown(self):
        with self.assertRaises(readme.Unknown):
            readme.commands_of("README.md", block("build/release/bin/spillway train ... --resume"))

    def test_dots_stand_for_the_arguments_before(self):
        known = runs(block(TRAIN, "build/release/bin/spillway train ... --steps 500 --save more --resume",
                           "build/release/bin/spillway train ... --trace t.json"))
        self.assertEqual(known, [
            "build/release/bin/spillway train --model m --data d --store run --steps 4 --save tuned",
            "build/release/bin/spillway train --model m --data d --store run --steps 5 --save more --resume",
            "build/release/bin/spillway train --model m --data d --steps 4 --store another --save another-model "
            "--trace t.json"])


class LinksTest(unittest.TestCase):
    FILES = {"README.md": "",
             "tools/a/README.md": "# A page\n## `f.py`: what, _now_?\n```\n# no heading\n```\n## Twice\n## Twice\n"}

    def bad(self, text, page="README.md"):
        tracked = {*self.FILES, "tools/a", "tools", "."}
        return [line.split(": ", 1)[1] for line in readme.bad_links(page, text, tracked, self.FILES.__getitem__)]

    def test_files_folders_and_headings_are_found(self):
        self.assertEqual(self.bad("[a](tools/a/README.md) [b](tools/a) [c](https://x.org/y) ![d](README.md)\n"
                                  "[e](tools/a/README.md#a-page) [f](tools/a/README.md#fpy-what-_now_) "
                                  "[g](tools/a/README.md#twice-1)"), [])
        self.assertEqual(self.bad("[up](../../README.md), `[no](link)`", "tools/a/README.md"), [])

    def test_what_is_not_there_is_named(self):
        self.assertEqual(self.bad("[a](tools/b.md)"), ["tools/b.md: there is no tools/b.md"])
        self.assertEqual(self.bad("[a](tools/a/README.md#no-heading)"),
                         ["tools/a/README.md#no-heading: tools/a/README.md has no heading of this anchor"])
        self.assertEqual(self.bad('<img src="tools/b.svg" width="1">'), ["tools/b.svg: there is no tools/b.svg"])
        self.assertEqual(self.bad("[own](#missing)"), ["#missing: README.md has no heading of this anchor"])

    def test_paths_in_backticks_of_a_guide_are_looked_up(self):
        self.assertEqual(self.bad("`tools/a/`, `tools/gone.h`, `build/x`, `tools/*.h`"),
                         ["`tools/gone.h`: there is no such file or folder"])

    def test_links_in_blocks_are_no_links(self):
        self.assertEqual(self.bad("```\n[a](gone.md)\n```\n"), [])


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.scratch = pathlib.Path(folder.name)

    def run_all(self, *rows, page="README.md"):
        commands = [readme.Command(page, number, row.pattern, row.run, row) for number, row in enumerate(rows, start=1)]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            readme.run_all(commands, self.scratch / "clone", self.scratch)
        return output.getvalue()

    def test_they_run_in_order_in_the_folder_of_the_page(self):
        output = self.run_all(readme.Row("a", "echo one >{scratch}/q && touch here"),
                              readme.Row("b", "grep one ../../q && ls here"))
        self.assertIn("2 commands", output)
        self.assertEqual((self.scratch / "q").read_text(), "one\n")
        self.run_all(readme.Row("c", "ls here"), page="README.md")
        with self.assertRaises(SystemExit):
            self.run_all(readme.Row("c", "ls here"), page="tools/README.md")

    def test_paths_of_the_repository_lead_into_the_clone(self):
        self.run_all(readme.Row("a", "echo build/x {root}/y tests/z -C=bench/w >{scratch}/q"))
        clone = self.scratch / "clone"
        self.assertEqual((self.scratch / "q").read_text(),
                         f"{clone}/build/x {clone}/y {clone}/tests/z -C={clone}/bench/w\n")

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
