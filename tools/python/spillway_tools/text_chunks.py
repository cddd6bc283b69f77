# SPDX-License-Identifier: Apache-2.0
"""Cuts text into chunks that give exactly the tokens of the whole text.

A cut is tried after a run of white space that has a newline, and before the last character of the
run. Pre-tokenisers split there: Llama 3's takes the white space up to a newline as one piece, and
GPT-2's rule `\\s+(?!\\S)` leaves the last character of a run to what follows. Then the cut is
checked: the text around it, tokenised whole, must give the tokens of its two sides. If cuts keep
failing (for example, because the tokeniser marks the start of every text), the rest of the text is
one chunk. That is slower, takes more memory, and gives the same tokens.
"""

import codecs
import re

from spillway_tools.command import InputError, os_errors

# Characters on each side of a cut that are tokenised to check it, far more than affect a token.
_CONTEXT = 256
# After this many runs in a row without a good cut, no further cuts are tried.
_MAX_FAILURES = 64
_READ_BYTES = 1 << 20
_WHITE_SPACE = re.compile(r"\s+")


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


def split(pieces, tokenizer, chunk_characters):
    """Yields chunks of about `chunk_characters` from an iterable of text pieces."""
    finder = _CutFinder(tokenizer)
    pending = ""
    searched = chunk_characters  # up to here, `pending` has no good cut
    for piece in pieces:
        pending += piece
        while len(pending) >= 2 * chunk_characters and finder.has_cuts:
            cut, searched = finder.find(pending, searched)
            if cut is None:
                break  # no good cut so far; read more
            yield pending[:cut]
            pending = pending[cut:]
            searched = chunk_characters
    if pending:
        yield pending


class _CutFinder:
    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._failures = 0

    @property
    def has_cuts(self):
        return self._failures < _MAX_FAILURES

    def find(self, text, start):
        """Searches from `start` on for a good cut that has enough text after it.

        Returns the cut, or None, and where to start again when there is more text.
        """
        limit = len(text) - _CONTEXT
        while self.has_cuts:
            newline = text.find("\n", start, limit)
            if newline < 0:
                return None, max(start, limit)
            end = _WHITE_SPACE.match(text, newline).end()
            if end > limit:
                # The run may go on. It is not searched again from its start if it is a long one.
                return None, max(newline, limit - _CONTEXT)
            cut = self._cut_at(text, end)
            if cut is not None:
                return cut, cut
            start = end
        return None, start

    def _cut_at(self, text, end):
        """Returns the good cut at the run of white space that ends at `end`, or None."""
        if text[max(0, end - _CONTEXT) : end].isspace():
            return None  # the run begins outside the context, and its tokens depend on its length
        for cut in (end, end - 1):
            if self._is_good(text, cut):
                self._failures = 0
                return cut
        self._failures += 1
        return None

    def _is_good(self, text, cut):
        left = text[max(0, cut - _CONTEXT) : cut]
        right = text[cut : cut + _CONTEXT]
        return self._ids(left + right) == self._ids(left) + self._ids(right)

    def _ids(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids
