# SPDX-License-Identifier: Apache-2.0
"""spillway-generate: text in, text out, around `spillway generate`, whose tokens are ids."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from spillway_tools import __version__
from spillway_tools.command import InputError, Parser, UsageError, run
from spillway_tools.strict_json import parse_json
from spillway_tools.tokenize_command import load_tokenizer
from spillway_tools.tokenizer_file import rust_errors

_PROGRAM = "spillway-generate"
_EXAMPLES = """\
examples:
  spillway-generate --model models/smollm2 --prompt "In the beginning"
  spillway-generate --model out --prompt "And it came to pass" --max-tokens 40 --temperature 0
  spillway-generate --model out --prompt "Verily" -- --device-bytes 48MiB

Prints the prompt and what follows it. What stands after -- goes to `spillway generate` as it is.
"""


def main():
    sys.exit(run(_PROGRAM, lambda: _generate(*_parse())))


def _parse():
    parser = Parser(_EXAMPLES, prog=_PROGRAM)
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="a Hugging Face folder"
    )
    parser.add_argument("--prompt", required=True, metavar="TEXT")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=64,
        metavar="N",
        help="new tokens at most (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="0 takes the likeliest token (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the sampling (default: %(default)s)"
    )
    parser.add_argument(
        "--spillway",
        type=Path,
        metavar="PATH",
        help="the command (default: the release build beside these tools, else on PATH)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one object on stdout: prompt, text and tokens"
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    own, further = _cut_at_dashes(sys.argv[1:])
    arguments = parser.parse_args(own)
    if arguments.max_tokens < 1:
        parser.error("--max-tokens must be at least 1")
    if not arguments.temperature >= 0 or arguments.temperature == float("inf"):
        parser.error("--temperature must be a number from 0")
    return arguments, further


def _cut_at_dashes(words):
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def _generate(arguments, further):
    if sys.stdout is None:
        raise UsageError("stdout is closed; what is generated goes there")
    _check_prompt(arguments.prompt)
    tokenizer = load_tokenizer(arguments.model)
    with rust_errors("--prompt: the tokeniser fails on it"):
        prompt = tokenizer.encode(arguments.prompt).ids
    if not prompt:
        raise UsageError("--prompt gives no token; write at least a character")
    tokens = _run(arguments, prompt, further)
    # Decoded together: a character may span prompt and answer, and a first word its space.
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
    """Python keeps a byte of an argument that is not UTF-8 as half of a surrogate pair."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        byte = ord(prompt[error.start]) & 0xFF
        raise UsageError(
            f"--prompt is not UTF-8: byte 0x{byte:02x} after {error.start} characters; write it in"
            " UTF-8"
        ) from error


def _run(arguments, prompt, further):
    command = [
        str(arguments.spillway or _find_spillway()),
        "generate",
        "--model",
        str(arguments.model),
        "--tokens",
        ",".join(map(str, prompt)),
        "--max-tokens",
        str(arguments.max_tokens),
        "--temperature",
        repr(arguments.temperature),
        "--seed",
        str(arguments.seed),
        "--json",
        *further,
    ]
    try:
        finished = subprocess.run(
            command, stdout=subprocess.PIPE, check=False
        )  # its stderr is the user's
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be run: {error.strerror}") from error
    if finished.returncode != 0:
        # It has said why; its exit code is the one that users.md lists.
        sys.exit(finished.returncode if finished.returncode > 0 else 1)
    return _parse_tokens(finished.stdout, command[0])


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
    """The release build of the tree around these tools or around their build/venv, else PATH."""
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
