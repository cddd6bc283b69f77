# SPDX-License-Identifier: Apache-2.0
"""The work of spillway-generate. generate_command.py loads it after parsing the arguments."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from spillway_tools.command import InputError, UsageError, os_errors
from spillway_tools.strict_json import parse_json
from spillway_tools.tokenizer_file import load_tokenizer, rust_errors


def run(arguments):
    if sys.stdout is None:
        raise UsageError("stdout is closed; what is generated goes there")
    _check_prompt(arguments.prompt)
    tokenizer = load_tokenizer(arguments.model)
    with rust_errors("--prompt: the tokeniser fails on it"):
        prompt = tokenizer.encode(arguments.prompt).ids
    if not prompt:
        raise UsageError("--prompt gives no token; write at least a character")
    tokens = _run(arguments, prompt)
    # Prompt and answer are decoded together. A character may span both, and a decoder may drop the
    # space before the first word of a text.
    with rust_errors("the tokeniser cannot decode what was generated"):
        text = tokenizer.decode(prompt + tokens, skip_special_tokens=True)
    if arguments.json:
        print(
            json.dumps(
                {"v": 1, "prompt_tokens": prompt, "tokens": tokens, "text": text},
                ensure_ascii=False,
            )
        )
    else:
        print(text)


def _check_prompt(prompt):
    """UsageError if the prompt is not UTF-8. Python decodes each such byte to a lone surrogate."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        byte = ord(prompt[error.start]) & 0xFF
        raise UsageError(
            f"--prompt is not UTF-8: byte 0x{byte:02x} after {error.start} characters; write it in"
            " UTF-8"
        ) from error


def _run(arguments, prompt):
    # An argument has at most 128 KiB, so the prompt's ids are passed in a file. The file has no
    # name, and the command opens it by its descriptor: nothing is left behind, whatever ends this
    # process.
    with os_errors("the prompt's temporary file"), tempfile.TemporaryFile() as tokens:
        tokens.write(",".join(map(str, prompt)).encode())
        tokens.flush()
        return _run_on(arguments, tokens.fileno())


def _run_on(arguments, tokens):
    """Runs the command on the prompt in the file `tokens`, a descriptor; returns the new ids."""
    command = [
        str(arguments.spillway or _find_spillway()),
        "generate",
        "--model",
        str(arguments.model),
        "--tokens-file",
        f"/proc/self/fd/{tokens}",
        "--max-tokens",
        str(arguments.max_tokens),
        "--temperature",
        repr(arguments.temperature),
        "--seed",
        str(arguments.seed),
        "--json",
        *arguments.further,
    ]
    # These give `spillway generate` another prompt.
    others = ("SPILLWAY_TOKENS", "SPILLWAY_TOKENS_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    try:
        finished = subprocess.run(
            command, stdout=subprocess.PIPE, check=False, pass_fds=(tokens,), env=environment
        )  # its messages go to the user
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be run: {error.strerror}") from error
    if finished.returncode < 0:
        raise InputError(f"{command[0]}: {_killed_by(-finished.returncode)}")
    if finished.returncode > 0:
        # The command has printed why it failed. tools/spillway/README.md lists its exit codes.
        sys.exit(finished.returncode)
    return _parse_tokens(finished.stdout, command[0])


def _killed_by(number):
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    if number != signal.SIGKILL:
        return f"was ended by {name}"
    return (
        f"was ended by {name}: memory may have run out. With a store the weights need less of it:"
        " -- --store DIR --pinned-bytes 1GiB"
    )


def _parse_tokens(output, origin):
    try:
        answer = parse_json(output.decode(), origin)
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(f"{origin}: printed no JSON object: {output[:200]!r}") from error
    tokens = answer.get("tokens") if isinstance(answer, dict) and answer.get("v") == 1 else None
    if not isinstance(tokens, list) or not all(
        type(token) is int and 0 <= token < 2**31 for token in tokens
    ):
        raise InputError(f'{origin}: expected {{"v":1,"tokens":[...]}}, found {output[:200]!r}')
    return tokens


def _find_spillway():
    """Finds the release build of the tree that holds these tools or their venv, else on PATH."""
    candidates = [
        Path(__file__).resolve().parents[3] / "build/release/bin/spillway",
        Path(sys.prefix).parent / "release/bin/spillway",
    ]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    found = shutil.which("spillway")
    if found:
        return Path(found)
    raise UsageError(
        f"no spillway command at {candidates[0]} nor on PATH; build it with tools/setup, or name it"
        " with --spillway"
    )
