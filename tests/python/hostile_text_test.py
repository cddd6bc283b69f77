# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-tokenize and spillway-generate on text, names and terminals that are not UTF-8."""

import json
import os
import subprocess
import unittest

from tool_testing import ToolTest, tool_command, tool_environment, write_folder


class HostileTokenizeTest(ToolTest):
    def setUp(self):
        super().setUp()
        write_folder(self.folder / "model")
        (self.folder / "text.txt").write_text("the an\n")

    def run_tokenize(self, text="text.txt", expect=0):
        return self.run_tool(
            *("tokenize_command", "--model", self.folder / "model"),
            *("--text", os.path.join(self.folder, text), "--out", self.folder / "data"),
            expect=expect,
        )

    def test_a_text_has_an_end(self):
        self.assertIn("is neither a file nor a pipe", self.run_tokenize("/dev/zero", 1).stderr)
        self.assertIn("is neither a file nor a pipe", self.run_tokenize("model", 1).stderr)
        self.assert_nothing_left("model", "text.txt")

    def test_a_name_that_is_no_utf8_makes_a_meta_json_that_can_be_read(self):
        name = os.fsdecode(b"t\xff.txt")
        os.rename(self.folder / "text.txt", self.folder / name)
        self.run_tokenize(name)
        meta = json.loads((self.folder / "data/meta.json").read_bytes().decode())
        self.assertEqual(meta["text"], "t\ufffd.txt")

    def test_a_folder_whose_name_is_no_utf8(self):
        folder = self.folder / os.fsdecode(b"\xff")
        folder.mkdir()
        os.rename(self.folder / "model", folder / "model")
        self.run_tool(
            *("tokenize_command", "--model", folder / "model"),
            *("--text", self.folder / "text.txt", "--out", folder / "data"),
        )
        self.run_tool("import_command", folder / "model", folder / "out")

    def test_the_models_vocabulary_must_be_a_number(self):
        for text, words in (
            ('{"vocab_size": 0}', "a whole number from 1 to"),
            ('{"vocab_size": true}', "a whole number from 1 to"),
            ('{"vocab_size": 268.0}', "a whole number from 1 to"),
            ('{"vocab_size": 268, "vocab_size": 269}', '"vocab_size" twice'),
            ('{"vocab_size": ' + "9" * 4300 + "}", "too large"),
            ("[" * 100_000, "nested more than 64 deep"),
            ("[]", "a JSON object is expected"),
            ("{}", "vocab_size is missing"),
        ):
            with self.subTest(text[:40]):
                (self.folder / "model/config.json").write_text(text)
                stderr = self.run_tokenize(expect=1).stderr
                self.assertIn("model/config.json: ", stderr)
                self.assertIn(words, stderr)

    def test_a_tokeniser_that_never_ends_or_is_none(self):
        path = self.folder / "model/tokenizer.json"
        path.write_bytes(b"\xff")
        self.assertIn("tokenizer.json: is not UTF-8", self.run_tokenize(expect=1).stderr)
        path.unlink()
        path.symlink_to("/dev/zero")
        self.assertIn("is a character device", self.run_tokenize(expect=1).stderr)
        path.unlink()
        os.mkfifo(path)
        self.assertIn("is a fifo", self.run_tokenize(expect=1).stderr)


class HostileGenerateTest(ToolTest):
    def setUp(self):
        super().setUp()
        write_folder(self.folder / "model")
        self.answer('{"v": 1, "tokens": [3, 4]}')

    def answer(self, text):
        """Writes a stand-in for `spillway` that prints `text`."""
        (self.folder / "answer").write_text(text)
        (self.folder / "spillway").write_text(f"#!/bin/sh\ncat '{self.folder}/answer'\n")
        (self.folder / "spillway").chmod(0o755)

    def options(self, prompt="é"):
        return (
            *("generate_command", "--model", self.folder / "model"),
            *("--spillway", self.folder / "spillway", "--prompt", prompt),
        )

    def test_a_prompt_that_is_no_utf8_is_wrong_usage(self):
        failed = self.run_tool(*self.options(b"ab\xff\xfe"), expect=2)
        self.assertIn("--prompt is not UTF-8: byte 0xff after 2 characters", failed.stderr)

    def test_text_that_the_terminal_cannot_show_is_escaped(self):
        finished = self.run_tool(*self.options(), PYTHONIOENCODING="ascii")
        self.assertIn("\\xe9", finished.stdout)

    def test_tokens_that_are_none_are_an_error(self):
        for tokens in ("[4294967296]", "[2147483648]", "[-1]", "[true]", "[1e3]", "[" * 5000):
            self.answer('{"v": 1, "tokens": ' + tokens + "}")
            with self.subTest(tokens[:20]):
                self.run_tool(*self.options(), expect=1)
        self.answer('{"v": 1, "tokens": [' + "9" * 5000 + "]}")
        self.run_tool(*self.options(), expect=1)

    def test_a_full_disk_at_stdout_is_an_error(self):
        for json_option in ((), ("--json",)):
            with open("/dev/full", "wb") as full:
                finished = subprocess.run(
                    tool_command(*self.options(), *json_option),
                    env=tool_environment(),
                    stdout=full,
                    stderr=subprocess.PIPE,
                    check=False,
                )
            self.assertEqual(finished.returncode, 1, finished.stderr)
            self.assertEqual(finished.stderr, b"spillway-generate: No space left on device\n")

    def test_closed_streams(self):
        def run(command, closed):
            text = " ".join(f"'{word}'" for word in command) + closed
            environment = tool_environment()
            return subprocess.run(
                ["bash", "-c", text], env=environment, capture_output=True, check=False
            )

        finished = run(tool_command(*self.options()), " >&-")
        self.assertEqual((finished.returncode, finished.stdout), (2, b""))
        self.assertIn(b"stdout is closed", finished.stderr)
        finished = run(tool_command(*self.options()), " 2>&-")
        self.assertEqual((finished.returncode, finished.stderr), (0, b""))
        paths = (self.folder / "model", self.folder / "out")
        finished = run(tool_command("import_command", *paths), " <&- >&- 2>&-")
        self.assertEqual((finished.returncode, finished.stdout), (0, b""))

    def test_a_closed_pipe_at_stdout_is_quiet(self):
        command = " ".join(f"'{word}'" for word in tool_command(*self.options()))
        finished = subprocess.run(
            ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"],
            env=tool_environment(),
            stderr=subprocess.PIPE,
            check=False,
        )
        self.assertNotIn(b"Traceback", finished.stderr)
        self.assertNotIn(b"Exception ignored", finished.stderr)


if __name__ == "__main__":
    unittest.main()
