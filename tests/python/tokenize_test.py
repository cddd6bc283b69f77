# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-tokenize: its files, and what it refuses. text_chunks_test.py tests the tokens."""

import json
import unittest

import numpy
from tokenizers import Tokenizer

from text_chunks_test import random_text, whole
from tool_testing import ToolTest, add_bos, tokenizer_json, write_folder


class TokenizeTest(ToolTest):
    def setUp(self):
        super().setUp()
        write_folder(self.folder / "model")

    def run_tokenize(self, *options, expect=0):
        return self.run_tool(
            "tokenize_command",
            *("--model", self.folder / "model", "--text", self.folder / "text.txt"),
            *("--out", self.folder / "data"),
            *options,
            expect=expect,
        )

    def load(self):
        return [numpy.load(self.folder / f"data/{name}.npy") for name in ("train", "valid")]

    def test_the_end_of_the_text_is_for_validation(self):
        text = random_text(1, 300_000)
        (self.folder / "text.txt").write_bytes(text.encode())
        self.run_tokenize()
        train, valid = self.load()
        expected = whole(Tokenizer.from_str(tokenizer_json()), text)
        self.assertEqual(train.tolist() + valid.tolist(), expected)
        self.assertEqual(len(valid), round(0.05 * len(expected)))
        self.assertEqual((train.dtype, train.ndim), (numpy.dtype("<u2"), 1))
        meta = json.loads((self.folder / "data/meta.json").read_text())
        self.assertEqual(meta["vocab_size"], 268)
        self.assertEqual(
            (meta["train_tokens"], meta["validation_tokens"]), (len(train), len(valid))
        )
        self.assert_nothing_left("data", "model", "text.txt")

    def test_a_large_vocabulary_takes_four_bytes(self):
        config = json.loads((self.folder / "model/config.json").read_text())
        config["vocab_size"] = 65537
        (self.folder / "model/config.json").write_text(json.dumps(config))
        (self.folder / "text.txt").write_text("the an\n")
        self.run_tokenize("--validation-fraction", 0)
        train, valid = self.load()
        self.assertEqual(train.dtype, numpy.dtype("<u4"))
        self.assertEqual((len(train), len(valid)), (5, 0))

    def test_no_token_is_added_to_the_text(self):
        add_bos(self.folder / "model")
        (self.folder / "text.txt").write_text("the an\n<|im_start|>the")
        self.run_tokenize("--validation-fraction", 0)
        expected = whole(Tokenizer.from_str(tokenizer_json()), "the an\n<|im_start|>the")
        self.assertEqual(self.load()[0].tolist(), expected)
        self.assertEqual(expected.count(1), 1)

    def test_nothing_is_overwritten_without_force(self):
        (self.folder / "text.txt").write_text("the an\n")
        self.run_tokenize()
        self.assertIn("add --force", self.run_tokenize(expect=2).stderr)
        (self.folder / "text.txt").write_text("an an an the\n")
        self.run_tokenize("--force", "--validation-fraction", 0.5)
        self.assertEqual(len(self.load()[1]), 4)

    def test_bad_text_is_named_with_its_place(self):
        (self.folder / "text.txt").write_bytes(b"x" * (1 << 20) + b"\xc3")
        self.assertIn("0xc3 at offset 1048576", self.run_tokenize(expect=1).stderr)
        (self.folder / "text.txt").write_bytes(b"")
        self.assertIn("holds no text", self.run_tokenize(expect=1).stderr)
        self.assert_nothing_left("model", "text.txt")

    def test_tokens_beyond_the_model_are_an_error(self):
        config = json.loads((self.folder / "model/config.json").read_text())
        config["vocab_size"] = 100
        (self.folder / "model/config.json").write_text(json.dumps(config))
        (self.folder / "text.txt").write_text("the an\n")
        self.assertIn("do not belong together", self.run_tokenize(expect=1).stderr)

    def test_a_split_that_leaves_a_file_empty_is_refused(self):
        for text, fraction, words in (
            ("tx", 0.99, "0.99 of its 2 tokens is 2, which leaves train.npy empty: give a fraction"
             " above 0.25 and below 0.75"),
            ("a", 0.99, "0.99 of its only token is 1, which leaves train.npy empty: give a longer"),
            ("a", 0.5, "0.5 of its only token is 0, which leaves valid.npy empty: give a longer"),
            ("the an\n", 0.1, "0.1 of its 5 tokens is 0, which leaves valid.npy empty: give a"
             " fraction above 0.1 and below 0.9, or a longer text, or 0"),
            ("the an\n", 1e-300, "1e-300 of its 5 tokens is 0, which leaves valid.npy empty"),
        ):
            with self.subTest(f"{text!r} {fraction}"):
                (self.folder / "text.txt").write_text(text)
                failed = self.run_tokenize("--validation-fraction", fraction, expect=2)
                self.assertIn(f"text.txt: --validation-fraction {words}", failed.stderr)
                self.assert_nothing_left("model", "text.txt")

    def test_a_split_that_leaves_a_token_for_each_file(self):
        for text, fraction, expected in (
            ("tx", 0.3, (1, 1)),
            ("tx", 0.74, (1, 1)),
            ("the an\n", 0.89, (1, 4)),
            ("the an\n", 0, (5, 0)),
            ("the an\n", None, (5, 0)),  # nobody asked for a share of so short a text
        ):
            with self.subTest(f"{text!r} {fraction}"):
                (self.folder / "text.txt").write_text(text)
                asked = () if fraction is None else ("--validation-fraction", fraction)
                self.run_tokenize("--force", *asked)
                self.assertEqual(tuple(map(len, self.load())), expected)

    def test_wrong_usage_is_two(self):
        (self.folder / "text.txt").write_text("the an\n")
        self.run_tokenize("--validation-fraction", 1, expect=2)
        self.run_tokenize("--validation-fraction", "nan", expect=2)
        (self.folder / "text.txt").unlink()
        self.assertIn("no such file", self.run_tokenize(expect=2).stderr)
        (self.folder / "model/tokenizer.json").unlink()
        self.assertIn("spillway-import", self.run_tokenize(expect=2).stderr)


if __name__ == "__main__":
    unittest.main()
