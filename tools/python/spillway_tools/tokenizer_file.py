# SPDX-License-Identifier: Apache-2.0
"""Reads tokenizer.json with the `tokenizers` package, with errors that name the file."""

import contextlib
import os
import sys

from tokenizers import Tokenizer

from spillway_tools.command import InputError, UsageError
from spillway_tools.source_file import read_text

TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER_BYTES = 256 << 20


@contextlib.contextmanager
def rust_errors(what):
    """Turns the package's errors into InputErrors that say "`what`: the package's message".

    Its errors are plain `Exception`s. If its Rust code panics, the error is of a class that is not
    an Exception and cannot be imported. A panic also prints a backtrace, so stderr goes to
    /dev/null meanwhile.
    """
    try:
        with _shut_stderr():
            yield
    except (InputError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {error}") from error


@contextlib.contextmanager
def _shut_stderr():
    sys.stderr.flush()
    kept = os.dup(2)
    shut = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(shut, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(shut)


def parse_tokenizer(text, origin):
    with rust_errors(f"{origin}: not a valid tokeniser"):
        return Tokenizer.from_str(text)


def read_tokenizer(path):
    return parse_tokenizer(read_text(path, MAX_TOKENIZER_BYTES), str(path))


def load_tokenizer(folder):
    path = folder / TOKENIZER_FILE
    if not path.exists():
        raise UsageError(f"{path}: is missing; --model names a folder made by spillway-import")
    tokenizer = read_tokenizer(path)
    tokenizer.no_truncation()  # some folders carry the limits of the model's training
    tokenizer.no_padding()
    return tokenizer
