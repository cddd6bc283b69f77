# SPDX-License-Identifier: Apache-2.0
"""spillway-generate: generates text from text through `spillway generate`, which uses ids."""

import sys

from spillway_tools import __version__, signals

_PROGRAM = "spillway-generate"
_EXAMPLES = """\
examples:
  spillway-generate --model models/smollm2 --prompt "In the beginning"
  spillway-generate --model out --prompt "And it came to pass" --max-tokens 40 --temperature 0
  spillway-generate --model out --prompt "Verily" -- --device-bytes 48MiB

Prints the prompt and what follows it. What stands after -- goes to `spillway generate` as it is.
The prompt begins with the special tokens that the model's tokenizer.json adds to a text, such as
Llama 3's <|begin_of_text|>; they are not printed.
"""


def main():
    signals.end_at_once(_PROGRAM)  # before anything that takes time
    from spillway_tools.command import run

    sys.exit(run(_PROGRAM, _parse, "spillway_tools.generator"))


def _parse():
    from pathlib import Path

    from spillway_tools.command import Parser

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
        metavar="PATH",
        help="the command (default: the release build beside these tools, else on PATH)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one object on stdout: prompt, text and tokens"
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    own, further = _cut_at_dashes(sys.argv[1:])
    arguments = parser.parse_args(own)
    arguments.further = further
    if arguments.max_tokens < 1:
        parser.error("--max-tokens must be at least 1")
    if not arguments.temperature >= 0 or arguments.temperature == float("inf"):
        parser.error("--temperature must be a number from 0")
    return arguments


def _cut_at_dashes(words):
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]
