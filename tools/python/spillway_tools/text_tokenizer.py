# SPDX-License-Identifier: Apache-2.0
"""The work of spillway-tokenize. tokenize_command.py loads it after parsing the arguments."""

import hashlib
import json
import os
import stat

import numpy

from spillway_tools.command import InputError, Progress, UsageError, os_errors
from spillway_tools.hugging_face_folder import CONFIG_FILE
from spillway_tools.model_config import MAX_CONFIG_BYTES, ConfigReader
from spillway_tools.source_file import WaitingFile, read_text
from spillway_tools.staging import StagedFolder
from spillway_tools.strict_json import excerpt, parse_json
from spillway_tools.text_chunks import decode_text, token_ids
from spillway_tools.tokenize_command import DEFAULT_VALIDATION_FRACTION
from spillway_tools.tokenizer_file import load_tokenizer
from spillway_tools.tokens_file import TokensFile

_PROGRAM = "spillway-tokenize"
_NAMES = ("train.npy", "valid.npy", "meta.json")


def _vocab_size(folder, tokenizer):
    """Returns the model's size if there is a model, as it may exceed the tokeniser's by padding."""
    path = folder / CONFIG_FILE
    if not path.exists():
        return tokenizer.get_vocab_size()
    config = parse_json(read_text(path, MAX_CONFIG_BYTES), str(path))
    if not isinstance(config, dict):
        raise InputError(f"{path}: is {excerpt(config)}; a JSON object is expected")
    return ConfigReader(config, str(path)).size("vocab_size")


def _open_text(path):
    """Opens a file or a pipe. A device may have no end, and a folder has no text."""
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise InputError(f"{path}: is neither a file nor a pipe: a text has an end")
    return WaitingFile(path)


def run(arguments):
    tokenizer = load_tokenizer(arguments.model)
    vocab_size = _vocab_size(arguments.model, tokenizer)
    dtype = numpy.uint16 if vocab_size <= 1 << 16 else numpy.uint32
    with (
        _open_text(arguments.text) as text,
        StagedFolder(arguments.out, _NAMES, arguments.force) as staged,
        os_errors(f"{arguments.out}: cannot be written"),
        TokensFile(staged.path / "train.npy", dtype) as train,
        TokensFile(staged.path / "valid.npy", dtype) as valid,
    ):
        total_bytes = arguments.text.stat().st_size if arguments.text.is_file() else None
        progress = Progress(_PROGRAM, total_bytes)
        digest = hashlib.sha256()
        text_bytes = _write_tokens(
            tokenizer, vocab_size, text, arguments.text, train, digest, progress
        )
        train.move_tail(valid, _validation_tokens(train.num_tokens, arguments))
        train.finish()
        valid.finish()
        meta = {
            "version": 1,
            "vocab_size": vocab_size,
            "dtype": numpy.dtype(dtype).name,
            "train_tokens": train.num_tokens,
            "validation_tokens": valid.num_tokens,
            "text": os.fsencode(arguments.text.name).decode("utf-8", "replace"),
            "text_bytes": text_bytes,
            "text_sha256": digest.hexdigest(),
        }
        (staged.path / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        staged.publish()
    progress.finish(
        f"{_PROGRAM}: {train.num_tokens:,} tokens for training, {valid.num_tokens:,} for validation"
        f" in {arguments.out}"
    )


def _validation_tokens(num_tokens, arguments):
    """Returns how many tokens are kept for validation. UsageError if a file would be empty.

    Only a fraction of 0, or the default one of a short text, may leave valid.npy empty.
    """
    fraction = arguments.validation_fraction
    if fraction is None:
        return round(num_tokens * DEFAULT_VALIDATION_FRACTION)
    count = round(num_tokens * fraction)
    if count < num_tokens and (count > 0 or fraction == 0):
        return count
    cure = "give a longer text, or 0, which keeps none for validation"
    if num_tokens > 1:
        least, most = 0.5 / num_tokens, 1 - 0.5 / num_tokens
        cure = f"give a fraction above {least:.10g} and below {most:.10g}, or a longer text, or 0"
    tokens = f"{num_tokens} tokens" if num_tokens > 1 else "only token"
    raise UsageError(
        f"{arguments.text}: --validation-fraction {fraction:g} of its {tokens} is {count}, which"
        f" leaves {'train.npy' if count else 'valid.npy'} empty: {cure}"
    )


def _write_tokens(tokenizer, vocab_size, file, origin, out, digest, progress):
    read_bytes = 0

    def on_bytes(block):
        nonlocal read_bytes
        read_bytes += len(block)
        digest.update(block)
        progress.add(len(block))

    for chunk in token_ids(decode_text(file, origin, on_bytes), tokenizer, origin):
        ids = numpy.asarray(chunk, numpy.uint32)
        if len(ids) and int(ids.max()) >= vocab_size:
            raise InputError(
                f"{origin}: gives token {int(ids.max())}, and the model has {vocab_size}: "
                "tokenizer.json and config.json do not belong together"
            )
        out.append(ids)
    if out.num_tokens == 0:
        raise InputError(f"{origin}: holds no text")
    return read_bytes
