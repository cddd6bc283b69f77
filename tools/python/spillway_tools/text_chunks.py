# SPDX-License-Identifier: Apache-2.0
"""Tokenises a text in chunks, with exactly the tokens of the whole text.

A tokeniser reads from left to right, and what it does at one place may depend on all that is before
it: in "-\\n-\\n-\\n…" a token "-\\n-\\n" begins at every second line, counted from the first. So no
text around a cut can show that the cut is good. A chunk is therefore read from its own start with
the text that follows it. A cut is good if the reading gives, from the cut on, the tokens of the
following text read alone. By induction, the chunk's own start is one at which the reading of the
whole text can begin, too.

A cut is tried at the end of a run of white space that has a newline, and before the last character
of the run. Pre-tokenisers split there: Llama 3's takes the white space up to a newline as one piece,
and GPT-2's rule `\\s+(?!\\S)` leaves the last character of a run to what follows.

The chunks of a batch begin at cuts that are only plausible, and are read at the same time. If a
cut proves bad, the reading of its chunk is searched for another one, and the text after that is
read again with the next chunk. Text in which no cut is good is read at once, when there is twice as
much of it as at the last attempt. That is slower, takes more memory, and gives the same tokens.

This takes for granted that a tokeniser looks ahead by no more than `_Encoder.context` characters,
apart from a run of white space, whose end it may look for.
"""

import bisect
import codecs
import itertools
import os
import re

from spillway_tools.command import InputError, os_errors
from spillway_tools.tokenizer_file import rust_errors

CHUNK_CHARACTERS = 64 << 10
# The chunks of a batch are tokenised in parallel, on all cores. A chunk's reading takes some 6 MB.
_BATCH_CHUNKS = min(32, 2 * len(os.sched_getaffinity(0)))
# A chunk is read with at least this much of what follows it.
_MIN_CONTEXT = 1024
# Characters on each side of a cut that must allow it for the cut to be plausible.
_NEAR = 256
# Runs of white space at which a cut is tried, for a chunk and in a reading.
_MAX_RUNS = 8
_READ_BYTES = 1 << 20
_WHITE_SPACE = re.compile(r"\s+")
_LINE_END = re.compile(r"\n\s*")


def decode_text(file, origin, on_bytes):
    """Yields the decoded text of a binary file in pieces. Calls `on_bytes` with each block read."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    while True:
        with os_errors(f"{origin}: cannot be read"):
            block = file.read(_READ_BYTES)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            at = done - (len(error.object) - len(block)) + error.start
            raise InputError(
                f"{origin}: is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {at}: "
                f"{error.reason}"
            ) from error
        done += len(block)
        on_bytes(block)
        if text:
            yield text
        if not block:
            return


def token_ids(pieces, tokenizer, origin, chunk_characters=CHUNK_CHARACTERS):
    """Yields the token ids of a text, which comes in pieces of any length, as lists.

    A list has the ids of about `chunk_characters`. No special tokens are added; the tokenizer's
    post-processor is removed. InputError names `origin` if the tokenizer fails.
    """
    encoder = _Encoder(tokenizer, origin)
    chunks = _plausible_chunks(pieces, encoder, chunk_characters)
    unread = ""  # what follows the last good cut, if that is before the chunk
    attempt = 0  # how much of it to wait for
    while batch := list(itertools.islice(chunks, _BATCH_CHUNKS)):
        readings = encoder.read([text + after for text, after in batch])
        rests = encoder.read([after for _, after in batch])
        for (text, after), reading, rest in zip(batch, readings, rests):
            if not unread and after and _ends_with(reading, rest, len(text)):
                yield reading.ids[: len(reading) - len(rest)]
                continue
            unread += text
            if after and len(unread) < attempt:
                continue
            if len(unread) > len(text):
                reading = encoder.read([unread + after])[0]
            cut, count = encoder.last_cut(reading, unread, after)
            yield reading.ids[:count]
            attempt = 0 if cut > 0 else 2 * len(unread)
            unread = unread[cut:]


def _ends_with(reading, rest, cut):
    """Whether a reading has, from the character `cut` on, what `rest` has, another reading.

    Equal ids alone do not show that: an id may stand for text of any length, and where the
    pre-tokenizer's pieces begin may matter only later.
    """
    first = len(reading) - len(rest)
    if first < 0 or reading.ids[first:] != rest.ids:
        return False
    tokens = range(first, len(reading))
    places = [(start + cut, end + cut) for start, end in rest.offsets]
    pieces = [reading.token_to_word(token) for token in tokens]
    return places == [reading.token_to_chars(token) for token in tokens] and rest.word_ids == [
        piece - pieces[0] for piece in pieces
    ]


def _plausible_chunks(pieces, encoder, chunk_characters):
    """Yields pairs of a chunk and the text after it, as far as the tokenizer looks ahead.

    After the last chunk, and only there, the text is "".
    """
    pending = ""
    start = chunk_characters  # where to look for a line end
    for piece in pieces:
        pending += piece
        while True:
            limit = len(pending) - encoder.context
            newline = pending.find("\n", start, limit)
            if newline < 0:
                start = max(start, limit)
                break
            end = _WHITE_SPACE.match(pending, newline).end()
            if end > limit:
                # The run may go on. It is not searched again from its start if it is a long one.
                start = max(newline, limit - _NEAR)
                break
            cut = encoder.plausible_cut(pending, end, limit)
            yield pending[:cut], pending[cut : cut + encoder.context]
            pending = pending[cut:]
            start = chunk_characters
    if pending:
        yield pending, ""


class _Encoder:
    """Reads text with a tokenizer. `context` is how far that looks ahead, in characters."""

    def __init__(self, tokenizer, origin):
        self._tokenizer = tokenizer
        self._tokenizer.post_processor = None  # it would add special tokens, and change offsets
        self._what = f"{origin}: the tokeniser fails on it"
        # A token in the vocabulary is rarely shorter than the text that it stands for.
        longest = max(map(len, tokenizer.get_vocab(True)), default=0)
        self.context = max(_MIN_CONTEXT, 4 * longest)

    def read(self, texts):
        with rust_errors(self._what):
            return self._tokenizer.encode_batch(texts, add_special_tokens=False)

    def plausible_cut(self, text, end, limit):
        """Returns a cut between two texts that may be read apart, as far as that shows nearby.

        It is at the run of white space that ends at `end`, or at one of the next before `limit`; at
        `end` if none is plausible.
        """
        runs = (run.end() for run in _LINE_END.finditer(text, end, limit) if run.end() < limit)
        for run_end in (end, *itertools.islice(runs, _MAX_RUNS - 1)):
            for cut in (run_end, run_end - 1):
                left, right = text[max(0, cut - _NEAR) : cut], text[cut : cut + _NEAR]
                both, rest = self.read([left + right, right])
                if _ends_with(both, rest, len(left)):
                    return cut
        return end

    def last_cut(self, reading, text, after):
        """Returns the last good cut of `text`, and the number of tokens before it.

        `reading` is of `text` and `after`, the text that follows, if any. 0, 0: no cut is found.
        """
        if not after:
            return len(text), len(reading)
        offsets = reading.offsets
        starts = [start for start, _ in offsets]
        ends = [run.end() for run in _LINE_END.finditer(text)]
        num_tries = 0
        for cut in (len(text), *(place for end in reversed(ends) for place in (end, end - 1))):
            count = bisect.bisect_left(starts, cut)
            if count > 0 and offsets[count - 1][1] > cut:
                continue  # a token lies across the cut
            if _ends_with(reading, self.read([text[cut:] + after])[0], cut):
                return cut, count
            num_tries += 1
            if num_tries == 2 * _MAX_RUNS:
                break
        return 0, 0
