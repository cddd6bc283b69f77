# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-generate with a stand-in for the command `spillway`."""

import json
import subprocess
import sys
import unittest

from tokenizers import Tokenizer

from tool_testing import ToolTest, add_bos, tokenizer_json, tool_command, tool_environment
from tool_testing import write_folder

# Writes its arguments to a file, and answers with the prompt's tokens in reverse order.
_STAND_IN = """#!{python}
import json, pathlib, sys
pathlib.Path({record!r}).write_text(json.dumps(sys.argv[1:]))
prompt = pathlib.Path(sys.argv[sys.argv.index("--tokens-file") + 1])
tokens = [int(t) for t in prompt.read_text().split(",")]
print(json.dumps({{"v": 1, "tokens": tokens[::-1]}}))
"""


class GenerateTest(ToolTest):
    def setUp(self):
        super().setUp()
        write_folder(self.folder / "model")
        self.record = self.folder / "record"
        self.stand_in(_STAND_IN.format(python=sys.executable, record=str(self.record)))

    def stand_in(self, text):
        (self.folder / "spillway").write_text(text)
        (self.folder / "spillway").chmod(0o755)

    def run_generate(self, *options, expect=0, **environment):
        return self.run_tool(
            "generate_command",
            *("--model", self.folder / "model", "--spillway", self.folder / "spillway"),
            *options,
            expect=expect,
            **environment,
        )

    def test_ids_go_out_and_text_comes_back(self):
        finished = self.run_generate("--prompt", "the an", "--max-tokens", 5, "--temperature", 0)
        tokenizer = Tokenizer.from_str(tokenizer_json())
        ids = tokenizer.encode("the an").ids
        self.assertEqual(finished.stdout, tokenizer.decode(ids + ids[::-1]) + "\n")
        arguments = json.loads(self.record.read_text())
        self.assertRegex(arguments.pop(4), r"/proc/self/fd/[0-9]+")
        expected = ["generate", "--model", str(self.folder / "model")]
        expected += ["--tokens-file", "--max-tokens", "5"]
        expected += ["--temperature", "0.0", "--seed", "0", "--json"]
        self.assertEqual(arguments, expected)

    def test_a_prompt_begins_with_bos_if_the_tokeniser_adds_it(self):
        add_bos(self.folder / "model")
        answer = json.loads(self.run_generate("--prompt", "the an", "--json").stdout)
        ids = Tokenizer.from_str(tokenizer_json()).encode("the an").ids
        self.assertEqual(answer["prompt_tokens"], [1, *ids])
        self.assertNotIn("<|im_start|>", answer["text"])

    def test_a_prompt_may_have_more_ids_than_an_argument_holds(self):
        finished = self.run_generate("--prompt", "~ " * 60_000, "--json")
        answer = json.loads(finished.stdout)
        self.assertGreater(len(",".join(map(str, answer["prompt_tokens"]))), 128 << 10)
        self.assertEqual(answer["tokens"], answer["prompt_tokens"][::-1])

    def test_json_and_further_arguments(self):
        finished = self.run_generate("--prompt", "é", "--json", "--", "--device-bytes", "48MiB")
        answer = json.loads(finished.stdout)
        self.assertEqual(answer["v"], 1)
        self.assertEqual(answer["tokens"], answer["prompt_tokens"][::-1])
        self.assertEqual(json.loads(self.record.read_text())[-2:], ["--device-bytes", "48MiB"])

    def test_a_command_beside_the_user_is_not_looked_for_on_path(self):
        finished = subprocess.run(
            tool_command(
                *("generate_command", "--model", "model", "--prompt", "the"),
                *("--spillway", "./spillway"),
            ),
            env=tool_environment(),
            cwd=self.folder,
            capture_output=True,
            check=False,
        )
        self.assertEqual(finished.returncode, 0, finished.stderr)

    def test_the_commands_exit_code_is_passed_on(self):
        self.stand_in("#!/bin/sh\necho 'spillway: a page is corrupt' >&2\nexit 4\n")
        failed = self.run_generate("--prompt", "the", expect=4)
        self.assertEqual(failed.stderr, "spillway: a page is corrupt\n")

    def test_a_command_that_a_signal_ends_is_told(self):
        for name, words in (("KILL", "memory may have run out"), ("SEGV", "SIGSEGV"), ("40", "40")):
            self.stand_in(f"#!/bin/sh\nkill -{name} $$\n")
            failed = self.run_generate("--prompt", "the", expect=1)
            self.assertIn(f"{self.folder}/spillway: was ended by", failed.stderr)
            self.assertIn(words, failed.stderr)
            self.assertEqual("--store DIR --pinned-bytes" in failed.stderr, name == "KILL")

    def test_the_environments_prompt_is_not_passed_on(self):
        tokens = "${SPILLWAY_TOKENS-}${SPILLWAY_TOKENS_FILE-}$SPILLWAY_SEED"
        self.stand_in(f'#!/bin/sh\necho "{{\\"v\\": 1, \\"tokens\\": [{tokens}]}}"\n')
        finished = self.run_generate(
            *("--prompt", "the", "--json"),
            SPILLWAY_TOKENS="1,2,",
            SPILLWAY_TOKENS_FILE="3,",
            SPILLWAY_SEED="4",
        )
        self.assertEqual(json.loads(finished.stdout)["tokens"], [4])

    def test_an_answer_that_makes_no_sense_is_an_error(self):
        for answer in ("", "[]", '{"v": 2, "tokens": []}', '{"v": 1, "tokens": [1.5]}'):
            self.stand_in(f"#!/bin/sh\necho '{answer}'\n")
            self.run_generate("--prompt", "the", expect=1)

    def test_wrong_usage_is_two(self):
        self.run_generate(expect=2)
        self.run_generate("--prompt", "", expect=2)
        self.run_generate("--prompt", "a", "--max-tokens", 0, expect=2)
        self.run_generate("--prompt", "a", "--temperature", -1, expect=2)
        self.run_generate("--prompt", "a", "--temperature", "nan", expect=2)
        (self.folder / "spillway").unlink()
        self.assertIn("cannot be run", self.run_generate("--prompt", "a", expect=2).stderr)


if __name__ == "__main__":
    unittest.main()
