# SPDX-License-Identifier: Apache-2.0
"""spillway-tokenize: makes train.npy, valid.npy and meta.json with a model's tokeniser."""

import sys

from spillway_tools import __version__, signals

DEFAULT_VALIDATION_FRACTION = 0.05
_PROGRAM = "spillway-tokenize"
_EXAMPLES = """\
examples:
  spillway-tokenize --model models/smollm2 --text bible.txt --out data/bible
  spillway-tokenize --model models/smollm2 --text notes.txt --out notes --validation-fraction 0.1

Writes train.npy and valid.npy (token ids in the text's order, the end of the text for validation)
and meta.json. The text is UTF-8 and is streamed. The tokens are those of the whole text: it is cut
at line ends where no token changes. If there are none, it takes memory for all of it.

The tokens are the text's alone: none is added at its start or end, whatever the model's tokenizer
adds. A special token that the text spells out, such as <|endoftext|>, becomes that token.
"""


def main():
    signals.end_at_once(_PROGRAM)  # before anything that takes time
    from spillway_tools.command import run

    sys.exit(run(_PROGRAM, _parse, "spillway_tools.text_tokenizer"))


def _parse():
    from pathlib import Path

    from spillway_tools.command import Parser

    parser = Parser(_EXAMPLES, prog=_PROGRAM)
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="folder with tokenizer.json"
    )
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--validation-fraction",
        type=float,
        metavar="F",
        help="share of the tokens kept for validation, from 0 below 1; unless it is 0, at least one"
        f" token is kept (default: {DEFAULT_VALIDATION_FRACTION}, or none of a short text)",
    )
    parser.add_argument("--force", action="store_true", help="replace the files of an earlier run")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    arguments = parser.parse_args()
    if arguments.validation_fraction is not None and not 0 <= arguments.validation_fraction < 1:
        parser.error(
            f"--validation-fraction is {arguments.validation_fraction}; it must be from 0 below 1"
        )
    return arguments
