# SPDX-License-Identifier: Apache-2.0
"""Tests that a text read in chunks has the tokens of the whole text, whatever the tokenizer does."""

import io
import random
import unittest

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from spillway_tools import text_chunks
from spillway_tools.command import InputError
from spillway_tools.gguf_tokenizer import tokenizer_files
from spillway_tools.tokenizer_file import rust_errors
from tool_testing import MERGES, SPECIAL, draw_seed, seed_line, tokenizer_json, vocabulary

_PRE_TOKENIZERS = ("gpt-2", "smollm", "llama3")


def whole(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def in_chunks(tokenizer, text, size, piece=700):
    """Returns the ids, and the number of chunks that gave some."""
    pieces = [text[i : i + piece] for i in range(0, len(text), piece)]
    lists = [ids for ids in text_chunks.token_ids(pieces, tokenizer, "text", size) if ids]
    return [token for ids in lists for token in ids], len(lists)


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
    """Counts the characters that are encoded."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.num_characters = 0

    def get_vocab(self, with_added_tokens):
        return self._tokenizer.get_vocab(with_added_tokens)

    def encode_batch(self, texts, **options):
        self.num_characters += sum(map(len, texts))
        return self._tokenizer.encode_batch(texts, **options)


def marking_tokenizer():
    """Returns a tokeniser that marks the start of every text, so that no cut is good."""
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "\n": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def letters_tokenizer(*merges):
    """Returns a BPE over a few characters, without a pre-tokenizer."""
    tokens = [*"-\n ab", *("".join(merge) for merge in merges)]
    return Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, list(merges)))


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
                tokens, num_chunks = in_chunks(tokenizer, text, 1000)
                self.assertEqual(tokens, whole(tokenizer, text), seed_line(seed))
                self.assertGreater(num_chunks, 5)

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
                    tokens, num_chunks = in_chunks(tokenizer, text, 1000)
                    self.assertEqual(tokens, whole(tokenizer, text))
                    self.assertGreater(num_chunks, len(text) // 1100 - 3)

    def test_a_run_of_white_space_that_is_longer_than_the_context(self):
        for name in _PRE_TOKENIZERS:
            tokenizer = joining_tokenizer(name)
            for length in (253, 258, 1022, 1023, 1024, 1025, 5000):
                text = ("the an\n" * 400 + "\n" * length + "in") * 3
                tokens, num_chunks = in_chunks(tokenizer, text, 1000)
                self.assertEqual(tokens, whole(tokenizer, text), f"{name} {length}")
                self.assertGreater(num_chunks, 2)

    def test_a_token_over_line_ends_that_is_counted_from_the_start(self):
        """Around a cut, nothing shows whether the whole text has a token there."""
        tokenizer = letters_tokenizer()
        tokenizer.add_tokens([AddedToken("-\n-\n", normalized=False)])
        text = "-\n" * 70_000
        tokens, num_chunks = in_chunks(tokenizer, text, text_chunks.CHUNK_CHARACTERS)
        self.assertEqual(tokens, whole(tokenizer, text))
        self.assertEqual(len(tokens), 35_000)
        self.assertEqual(num_chunks, 3)

    def test_other_pieces_that_are_counted_from_the_start(self):
        def with_part(tokenizer, **part):
            for name, value in part.items():
                setattr(tokenizer, name, value)
            return tokenizer

        def with_token(content, **options):
            tokenizer = letters_tokenizer()
            tokenizer.add_tokens([AddedToken(content, **options)])
            return tokenizer

        split = pre_tokenizers.Split(Regex(r"(-\n){3}"), "isolated")
        pair = ("-", "\n")
        for name, tokenizer in (
            ("a token of 600 characters", with_token("-\n" * 300, normalized=False)),
            ("a token longer than the least context", with_token("-\n" * 600, normalized=False)),
            ("a token that is normalized", with_token("-\n-\n-\n", normalized=True)),
            ("a token that takes the line end after it", with_token("-\n-", rstrip=True)),
            ("a token that takes the line end before it", with_token("-\n-", lstrip=True)),
            ("merges", letters_tokenizer(pair, ("-\n", "-\n"), ("-\n-\n", "-\n"))),
            ("pieces of 7", with_part(
                letters_tokenizer(pair), pre_tokenizer=pre_tokenizers.FixedLength(7))),
            ("pieces of 3 lines", with_part(
                letters_tokenizer(pair, ("-\n", "-\n")), pre_tokenizer=split)),
            ("a normalizer", with_part(
                letters_tokenizer(), normalizer=normalizers.Replace("-\n-\n-\n", "a"))),
        ):
            for lines in ("-\n", "a b\n" + "-\n" * 1001):
                with self.subTest(f"{name} {lines[:4]!r}"):
                    text = (lines * 10_000)[:20_000]
                    tokens, num_chunks = in_chunks(tokenizer, text, 1001)
                    self.assertEqual(tokens, whole(tokenizer, text))
                    self.assertGreater(num_chunks, 4)

    def test_a_tokeniser_that_marks_every_start_gets_the_whole_text(self):
        tokenizer = marking_tokenizer()
        text = "a a\n" * 5000
        tokens, num_chunks = in_chunks(tokenizer, text, 1000)
        self.assertEqual(tokens, whole(tokenizer, text))
        self.assertEqual(num_chunks, 1)

    def test_text_without_a_good_cut_is_read_a_few_times_and_not_with_each_chunk(self):
        tokenizer = CountingTokenizer(marking_tokenizer())
        text = "a a\n" * 500_000
        tokens, _ = in_chunks(tokenizer, text, text_chunks.CHUNK_CHARACTERS, piece=1 << 20)
        self.assertEqual(len(tokens), 3 * 500_000)
        self.assertLess(tokenizer.num_characters, 6 * len(text))

    def test_text_without_a_newline_is_one_chunk(self):
        tokenizer = Tokenizer.from_str(tokenizer_json())
        text = "the an in or " * 2000
        tokens, num_chunks = in_chunks(tokenizer, text, 1000)
        self.assertEqual(tokens, whole(tokenizer, text))
        self.assertEqual(num_chunks, 1)

    def test_characters_across_reads_are_decoded(self):
        text = "é🙂" * 500_000
        read = []
        pieces = text_chunks.decode_text(io.BytesIO(text.encode()), "t", read.append)
        self.assertEqual("".join(pieces), text)
        self.assertEqual(sum(map(len, read)), len(text.encode()))


class RandomTokenizer:
    """Draws a tokenizer whose tokens, pieces and rules cross line ends, and a text that repeats."""

    _CHARACTERS = [*"-ab A1.\n\n\n\r\té\u0301▁\u200bĊĠ\u00a0"]
    _UNITS = ["-\n", "-", "\n", "a\n", "a b\n", "\n\n", " ", "\r\n", "\n ", "é\n", "e\u0301\n", "1\n"]
    _UNITS += ["-\n-\n", "ab", " a", "\t", "A.\n", "a-\n", "\u200b\n", "z\n", " \n"]
    _BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    _PATTERNS = ["\n", "-\n", "-\n-\n", " ", Regex(r"\n+"), Regex(r"-\n-"), Regex(r".\n")]
    _PATTERNS += [Regex(r"\s+(?!\S)|\s+"), Regex(r"(-\n){3}"), Regex(r"(?<=a)\n"), Regex(r"\b")]
    _PATTERNS += [Regex(r"^a"), Regex(r"\S+\s*"), Regex(r" ?[^\s\p{L}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)")]
    _REPLACED = [(" ", "▁"), ("\n", " "), ("-\n-\n", "a"), ("-\n-", "b"), (Regex(r"\n+"), " ")]
    _REPLACED += [(Regex(r"\s+"), " "), ("\n", ""), ("-", ""), ("a\n", "-\n-\n")]

    def __init__(self, seed):
        self._random = random.Random(seed)
        pre_tokenizer, normalizer = self._pre_tokenizer(), self._normalizer()
        is_byte_level = "ByteLevel" in f"{pre_tokenizer} {normalizer}"
        characters = pre_tokenizers.ByteLevel.alphabet() if is_byte_level else self._CHARACTERS
        self.tokenizer = Tokenizer(self._model(sorted(set(characters))))
        if pre_tokenizer:
            self.tokenizer.pre_tokenizer = pre_tokenizer
        if normalizer:
            self.tokenizer.normalizer = normalizer
        for add in (self.tokenizer.add_tokens, self.tokenizer.add_special_tokens):
            drawn = [self._added_token() for _ in range(self._random.choice([0, 0, 1, 1, 2, 4]))]
            # The package loops for ever on a token of which its normalizer leaves nothing.
            add([t for t in drawn if not normalizer or normalizer.normalize_str(t.content)])

    def text(self, length):
        unit = self._word()
        kind = self._random.randrange(4)
        if kind == 0:  # one unit, over and over
            return (unit * length)[:length]
        if kind == 1:  # with something else at a few places
            text = (unit * length)[:length]
            for _ in range(self._random.randint(1, 4)):
                at = self._random.randrange(length)
                text = text[:at] + self._word() + text[at:]
            return text
        units = [self._word() for _ in range(self._random.randint(2, 8))] + self._UNITS
        text = ""
        while len(text) < length:
            times = self._random.choice([1, 1, 2, 5, 300, 1000]) if kind == 2 else 1
            text += self._random.choice(units) * times
        return text[:length]

    def _is(self, share):
        return self._random.random() < share

    def _word(self):
        if self._is(0.5):
            return "".join(self._random.choices(self._UNITS, k=self._random.randint(1, 3)))
        return "".join(self._random.choices(self._CHARACTERS, k=self._random.randint(1, 6)))

    def _model(self, characters):
        kind = self._random.choice(["bpe", "bpe", "bpe", "level", "piece", "unigram"])
        if kind == "bpe":
            return self._bpe(characters)
        words = ["<u>", *filter(lambda _: self._is(0.8), characters)]
        words += [self._word() for _ in range(10)]
        if kind == "unigram":
            words = dict.fromkeys(words)
            return models.Unigram([(word, -5 * self._random.random()) for word in words], 0)
        if kind == "piece":
            words += ["##" + word for word in words]
        ids = {word: i for i, word in enumerate(dict.fromkeys(words))}
        return (models.WordLevel if kind == "level" else models.WordPiece)(ids, unk_token="<u>")

    def _bpe(self, characters):
        share = self._random.choice([1, 1, 0.9])
        tokens = [character for character in characters if self._is(share)] + ["a", "-"]
        tokens = list(dict.fromkeys(tokens))
        merges = []
        for _ in range(self._random.randint(0, 30)):
            first, second = self._random.choices(tokens, k=2)
            if first + second not in tokens and len(first + second) < 40:
                tokens.append(first + second)
                merges.append((first, second))
        options = {"ignore_merges": self._is(0.2)}
        if self._is(0.5):
            tokens.append("<u>")
            options.update(unk_token="<u>", fuse_unk=self._is(0.5))
        return models.BPE({token: i for i, token in enumerate(tokens)}, merges, **options)

    def _added_token(self):
        return AddedToken(
            self._word() * (self._random.randint(2, 60) if self._is(0.1) else 1),
            single_word=self._is(0.2),
            lstrip=self._is(0.2),
            rstrip=self._is(0.2),
            normalized=self._is(0.4),
        )

    def _pre_tokenizer(self, depth=0):
        p, choose, flag = pre_tokenizers, self._random.choice, self._is(0.5)
        make = choose(
            [
                lambda: None,
                lambda: None,
                lambda: p.ByteLevel(flag, True),
                lambda: p.ByteLevel(False, True),
                lambda: p.ByteLevel(flag, False),
                lambda: p.Metaspace(
                    prepend_scheme=choose(["always", "never", "first"]), split=flag
                ),
                p.Whitespace,
                p.WhitespaceSplit,
                lambda: p.Split(choose(self._PATTERNS), choose(self._BEHAVIORS), self._is(0.3)),
                lambda: p.Split(choose(self._PATTERNS), choose(self._BEHAVIORS), self._is(0.3)),
                lambda: p.FixedLength(self._random.randint(1, 7)),
                lambda: p.Digits(flag),
                lambda: p.Punctuation(choose(self._BEHAVIORS)),
                p.BertPreTokenizer,
                lambda: p.CharDelimiterSplit(choose("-\na")),
                lambda: self._sequence(p.Sequence, self._pre_tokenizer, depth),
            ]
        )
        return make()

    def _normalizer(self, depth=0):
        n, choose = normalizers, self._random.choice
        if self._is(0.4):
            return None
        make = choose(
            [
                n.Lowercase,
                n.NFC,
                n.NFD,
                n.NFKC,
                lambda: n.Replace(*choose(self._REPLACED)),
                lambda: n.Prepend("▁"),
                lambda: n.Strip(self._is(0.5), self._is(0.5)),
                n.StripAccents,
                n.BertNormalizer,
                n.Nmt,
                n.ByteLevel,
                lambda: self._sequence(n.Sequence, self._normalizer, depth),
            ]
        )
        return make()

    @staticmethod
    def _sequence(make, draw, depth):
        drawn = [draw(depth + 1) for _ in range(2)] if depth < 2 else []
        return make([part for part in drawn if part])


class RandomTokenizerTest(unittest.TestCase):
    def test_any_tokenizer_gives_the_tokens_of_the_whole_text(self):
        num_cut = 0
        first = draw_seed()
        for seed in range(first, first + 60):
            drawn = RandomTokenizer(seed)
            text = drawn.text(6000)
            try:
                with rust_errors("whole"):
                    expected = whole(drawn.tokenizer, text)
            except InputError:
                continue  # the package does not manage the rules that were drawn
            tokens, num_chunks = in_chunks(drawn.tokenizer, text, 50 + seed % 5 * 151)
            self.assertEqual(tokens, expected, seed_line(seed))
            num_cut += num_chunks > 1
        self.assertGreater(num_cut, 10)


if __name__ == "__main__":
    unittest.main()
