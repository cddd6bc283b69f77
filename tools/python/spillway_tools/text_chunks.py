# SPDX-License-Identifier: Apache-2.0
"""Cuts text into chunks that give exactly the tokens of the whole text.

A cut is tried after a line's end, where byte-level BPE and similar tokenisers never join tokens.
Then it is checked: the text around the cut, tokenised whole, must give the tokens of its two sides.
If cuts keep failing (for example, because the tokeniser marks the start of every text), the rest of
the text is one chunk. That is slower and gives the same tokens.
"""

import codecs

from spillway_tools.command import InputError, os_errors

# Characters on each side of a cut that are tokenised to check it, far more than affect a token.
_CONTEXT = 256
# After this many failed cuts in a row, no further cuts are tried.
_MAX_FAILURES = 64
_READ_BYTES = 1 << 20


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
    for piece in pieces:
        pending += piece
        while len(pending) >= 2 * chunk_characters and finder.has_cuts:
            cut = finder.find(pending, chunk_characters)
            if cut is None:
                break  # no good cut so far; read more
            yield pending[:cut]
            pending = pending[cut:]
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
        """Returns the first good cut from `start` on that has enough text after it, or None."""
        while self.has_cuts:
            newline = text.find("\n", start, len(text) - _CONTEXT)
            if newline < 0:
                return None
            start = newline + 1
            if _is_candidate(text, start):
                if self._is_good(text, start):
                    self._failures = 0
                    return start
                self._failures += 1
        return None

    def _is_good(self, text, cut):
        left = text[max(0, cut - _CONTEXT) : cut]
        right = text[cut : cut + _CONTEXT]
        return self._ids(left + right) == self._ids(left) + self._ids(right)

    def _ids(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def _is_candidate(text, cut):
    # White space next to the newline would be split differently at the end of a text, where GPT-2's
    # rule `\s+(?!\S)` takes all of it.
    return cut >= 2 and not text[cut - 2].isspace() and not text[cut].isspace()
