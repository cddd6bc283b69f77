# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-tokenize: the tokens must not depend on where a text is cut into chunks."""

import io
import json
import random
import unittest

import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from spillway_tools import text_chunks
from spillway_tools.gguf_tokenizer import tokenizer_files
from tool_testing import MERGES, SPECIAL, ToolTest, add_bos, draw_seed, seed_line
from tool_testing import tokenizer_json, vocabulary, write_folder

_PRE_TOKENIZERS = ("gpt-2", "smollm", "llama3")


def whole(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def in_chunks(tokenizer, text, size, pieces=7):
    parts = [text[i : i + pieces * 100] for i in range(0, len(text), pieces * 100)]
    chunks = list(text_chunks.split(parts, tokenizer, size))
    assert "".join(chunks) == text
    return [token for chunk in chunks for token in whole(tokenizer, chunk)], chunks


def joining_tokenizer(pre_tokenizer):
    """Returns a byte-level BPE that joins white space, so that many cuts change tokens."""
    merges = [*MERGES, "č Ċ", "Ċ Ġ", "Ċ Ġt", ". Ċ"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre_tokenizer,
        "tokenizer.ggml.tokens": vocabulary() + [m.replace(" ", "") for m in merges[len(MERGES) :]],
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(vocabulary()) + 1),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
    }
    return Tokenizer.from_str(tokenizer_files(fields, 300, "test")["tokenizer.json"])


class CountingTokenizer:
    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.num_encoded = 0

    def encode(self, text, **options):
        self.num_encoded += 1
        return self._tokenizer.encode(text, **options)


def marking_tokenizer():
    """Returns a tokeniser that marks the start of every text, so that no cut is good."""
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "\n": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def random_text(seed, length):
    """Returns text with much white space and many digits, where a cut could change tokens."""
    words = ["the", " the", "\n", "\n\n", " \n", "\n ", "\t", "in", " an", "or.", "12", "é", "🙂"]
    words += ["\r\n", "a\n", "b\n", "\u00a0", "\u2028", "'s", "<|im_end|>"]
    chooser = random.Random(seed)
    return "".join(chooser.choice(words) for _ in range(length))


class TextChunksTest(unittest.TestCase):
    def test_byte_level_bpe_is_cut_and_no_token_changes(self):
        tokenizers = [Tokenizer.from_str(tokenizer_json())]
        tokenizers += map(joining_tokenizer, _PRE_TOKENIZERS)
        first = draw_seed()
        for seed in range(first, first + 20):
            text = random_text(seed, 8000)
            for tokenizer in tokenizers:
                tokens, chunks = in_chunks(tokenizer, text, 1000)
                self.assertEqual(tokens, whole(tokenizer, text), seed_line(seed))
                self.assertGreater(len(chunks), 5)

    def test_lines_are_cut_whatever_white_space_is_between_them(self):
        for name in _PRE_TOKENIZERS:
            tokenizer = joining_tokenizer(name)
            for lines in (
                "the an in.\n",
                "the an in.\r\n",
                "the an\r\n\r\n",
                "the an\n\nin or.\n\n\n",
                "    the an\n        12 in.\n",
                "\tin:\n\n\t\tor. \n",
            ):
                with self.subTest(f"{name} {lines!r}"):
                    text = lines * 1000
                    tokens, chunks = in_chunks(tokenizer, text, 1000)
                    self.assertEqual(tokens, whole(tokenizer, text))
                    self.assertLessEqual(max(map(len, chunks)), 2000)

    def test_a_run_of_white_space_that_is_longer_than_the_context(self):
        for name in _PRE_TOKENIZERS:
            tokenizer = joining_tokenizer(name)
            for length in (253, 254, 255, 256, 257, 258, 5000):
                text = ("the an\n" * 200 + "\n" * length + "in") * 3
                tokens, chunks = in_chunks(tokenizer, text, 1000)
                self.assertEqual(tokens, whole(tokenizer, text), f"{name} {length}")
                self.assertGreater(len(chunks), 2)

    def test_a_tokeniser_that_marks_every_start_gets_the_whole_text(self):
        tokenizer = marking_tokenizer()
        text = "a a\n" * 5000
        tokens, chunks = in_chunks(tokenizer, text, 1000)
        self.assertEqual(tokens, whole(tokenizer, text))
        self.assertEqual(len(chunks), 1)

    def test_text_is_searched_once_and_not_with_each_read(self):
        tokenizer = CountingTokenizer(marking_tokenizer())
        reads = ["a " * 600, "a a\n" * 10, *["a " * 300] * 20]
        self.assertEqual(list(text_chunks.split(reads, tokenizer, 1000)), ["".join(reads)])
        self.assertLessEqual(tokenizer.num_encoded, 10 * 2 * 3)  # 2 cuts a line, 3 encodes a cut

    def test_text_without_a_newline_is_one_chunk(self):
        tokenizer = Tokenizer.from_str(tokenizer_json())
        text = "the an in or " * 2000
        tokens, chunks = in_chunks(tokenizer, text, 1000)
        self.assertEqual(tokens, whole(tokenizer, text))
        self.assertEqual(len(chunks), 1)

    def test_characters_across_reads_are_decoded(self):
        text = "é🙂" * 500_000
        read = []
        pieces = text_chunks.decode_text(io.BytesIO(text.encode()), "t", read.append)
        self.assertEqual("".join(pieces), text)
        self.assertEqual(sum(map(len, read)), len(text.encode()))


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
