# SPDX-License-Identifier: Apache-2.0
"""Reads a Hugging Face folder as a source: validates it, and copies its tensors in blocks.

F32, F16 and BF16 are copied unchanged; F64 becomes F32. Other types are an error that names them.
tools/hf/model_folder.cc and tools/trainer/weight_source.cc judge folders alike, except that they do
not need a tokenizer; tests/python/same_folders_test.py compares the two.
"""

from pathlib import Path

import numpy
from safetensors import SafetensorError, safe_open

from spillway_tools.command import InputError, os_errors
from spillway_tools.memory import require_address_space
from spillway_tools.model_config import MAX_CONFIG_BYTES, check_config
from spillway_tools.model_tensors import is_skipped, select_tensors
from spillway_tools.source_file import open_regular, read_bytes, read_exactly, read_text
from spillway_tools.strict_json import excerpt, parse_json
from spillway_tools.tokenizer_file import MAX_TOKENIZER_BYTES, TOKENIZER_FILE, parse_tokenizer
from spillway_tools.weights import INDEX_FILE, MAX_HEADER_BYTES, WEIGHTS_FILE, TensorSource

CONFIG_FILE = "config.json"
# Copied if present, beside the required files: as in tools/trainer/export.cc.
OPTIONAL_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
TEMPLATES_FOLDER = "additional_chat_templates"
# Copied as they are, whatever they hold.
_COPIED_FILES = ("tokenizer.model", "vocab.json", "merges.txt")
_MAX_TEMPLATES = 100
_BLOCK_BYTES = 16 << 20
_STORED_DTYPES = {"F32": "F32", "F16": "F16", "BF16": "BF16", "F64": "F32"}
_MAX_OTHER_BYTES = 16 << 20
_MAX_COPIED_BYTES = 1 << 30  # as in export.cc


class HuggingFaceFolder:
    """Opens and checks a folder. `tensors` read their files when their pieces are requested.

    `files` holds the bytes of the tokenizer's files by name.
    """

    def __init__(self, folder, origin=None):
        """Messages name `origin` instead of `folder`, for a `folder` of temporary copies."""
        self._folder = Path(folder)
        self._origin = origin or str(folder)
        self.config = self._json(CONFIG_FILE, MAX_CONFIG_BYTES)
        sizes = check_config(self.config, self._shown(CONFIG_FILE))
        self.tensors = select_tensors(sizes, self._read_tensors(), self._origin)
        tokenizer = self._text(TOKENIZER_FILE, MAX_TOKENIZER_BYTES)
        self._check_tokenizer(tokenizer, sizes.vocab_size)
        self.files = {TOKENIZER_FILE: tokenizer.encode()}
        for name in (*OPTIONAL_FILES, *self._templates()):
            path = self._folder / name
            if not path.exists() or path.is_dir():
                continue
            if name in _COPIED_FILES:
                self.files[name] = read_bytes(path, _MAX_COPIED_BYTES, self._shown(name))
            else:
                self.files[name] = self._text(name, _MAX_OTHER_BYTES).encode()

    def _templates(self):
        """Returns the names of the further chat templates, which have a folder of their own."""
        files = sorted((self._folder / TEMPLATES_FOLDER).glob("*.jinja"))
        if len(files) > _MAX_TEMPLATES:
            raise InputError(
                f"{self._shown(TEMPLATES_FOLDER)}: holds {len(files)} templates; at most"
                f" {_MAX_TEMPLATES} are read: take out those that are not needed"
            )
        return [f"{TEMPLATES_FOLDER}/{file.name}" for file in files]

    def _check_tokenizer(self, text, vocab_size):
        shown = self._shown(TOKENIZER_FILE)
        vocabulary = parse_tokenizer(text, shown).get_vocab(True)
        token, number = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
        if number >= vocab_size:
            raise InputError(
                f"{shown}: gives {excerpt(token)} the id {number}; {CONFIG_FILE} has a vocab_size of"
                f" {vocab_size}: make the model's embeddings larger (in transformers:"
                f" model.resize_token_embeddings({number + 1}), then save_pretrained), or take the"
                f" token out of {TOKENIZER_FILE}"
            )

    def _shown(self, name):
        return f"{self._origin}/{name}"

    def _holds(self, name):
        return (self._folder / name).exists()

    def _text(self, name, max_bytes):
        return read_text(self._folder / name, max_bytes, self._shown(name))

    def _json(self, name, max_bytes):
        return parse_json(self._text(name, max_bytes), self._shown(name))

    def _read_tensors(self):
        if self._holds(WEIGHTS_FILE):
            return self._read_file(WEIGHTS_FILE)
        if not self._holds(INDEX_FILE):
            raise InputError(
                f"{self._origin}: holds neither {WEIGHTS_FILE} nor {INDEX_FILE} (other formats,"
                " such as pytorch_model.bin, are not read)"
            )
        shards = self._read_index()
        tensors = []
        for shard, placed in sorted(shards.items()):
            in_shard = self._read_file(shard)
            names = {tensor.name for tensor in in_shard}
            if names != placed:
                tensor = min(placed - names or names - placed)
                differs = (
                    f"holds tensor {excerpt(tensor)}, which {INDEX_FILE} does not place there"
                    if tensor in names
                    else f"holds no tensor {excerpt(tensor)}, which {INDEX_FILE} places there"
                )
                raise InputError(
                    f"{self._shown(shard)}: {differs}: they are of different models; copy both"
                    " again, or correct the index's weight_map"
                )
            tensors += in_shard
        return tensors

    def _read_index(self):
        """Returns the names of the tensors that the index places in each shard, by file name."""
        index = self._json(INDEX_FILE, MAX_HEADER_BYTES)
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise InputError(f"{self._shown(INDEX_FILE)}: holds no weight_map")
        shards = {}
        for tensor, shard in weight_map.items():
            if is_skipped(tensor):
                continue
            if not is_shard_name(shard):
                raise InputError(
                    f"{self._shown(INDEX_FILE)}: weight_map.{tensor}: {excerpt(shard)} is not the"
                    " name of a shard beside it"
                )
            shards.setdefault(shard, set()).add(tensor)
        return shards

    def _read_file(self, name):
        path = self._folder / name
        shown = self._shown(name)
        header, data_offset = self._read_header(name)
        require_address_space(path.stat().st_size, shown)
        try:
            # Opening the file runs the reference implementation's validation.
            with os_errors(f"{shown}: cannot be read"), safe_open(path, "numpy"):
                pass
        except SafetensorError as error:
            raise InputError(f"{shown}: not a valid safetensors file: {error}") from error
        return [
            _source(path, shown, data_offset, tensor, entry)
            for tensor, entry in header.items()
            if tensor != "__metadata__" and not is_skipped(tensor)
        ]

    def _read_header(self, name):
        """Returns the header, which is not validated yet, and the byte at which the data begins."""
        shown = self._shown(name)
        with (
            open_regular(self._folder / name, shown) as file,
            os_errors(f"{shown}: cannot be read"),
        ):
            num_bytes = int.from_bytes(file.read(8), "little")
            if num_bytes > MAX_HEADER_BYTES:
                raise InputError(
                    f"{shown}: not a valid safetensors file: its header has {num_bytes} bytes; at"
                    f" most {MAX_HEADER_BYTES} are expected"
                )
            text = file.read(num_bytes)
        if not text.startswith(b"{"):
            raise InputError(f"{shown}: not a valid safetensors file: its header is no JSON object")
        try:
            return parse_json(text.decode(), f"{shown}: header"), 8 + num_bytes
        except UnicodeDecodeError as error:
            raise InputError(f"{shown}: header: is not UTF-8: {error.reason}") from error


def is_shard_name(name):
    """Whether `name`, a value from JSON, can name a safetensors file in the same folder."""
    return is_file_name(name, ".safetensors")


def is_file_name(name, suffix):
    """Whether `name`, a value from a file, can name a file of that suffix in one folder."""
    return (
        isinstance(name, str)
        and name == Path(name).name
        and name.endswith(suffix)
        and "\0" not in name
        and len(name.encode()) <= 255
    )


def _source(path, shown, data_offset, name, entry):
    dtype = entry["dtype"]
    if dtype not in _STORED_DTYPES:
        raise InputError(
            f"{shown}: tensor {name} has type {dtype}; F32, F16, BF16 and F64 are supported"
        )
    begin, end = (data_offset + offset for offset in entry["data_offsets"])
    return TensorSource(
        name,
        _STORED_DTYPES[dtype],
        tuple(entry["shape"]),
        lambda: _copy(path, shown, begin, end, dtype == "F64"),
        f"{shown}: tensor {name}",
    )


def _copy(path, shown, begin, end, narrow):
    with open_regular(path, shown) as file:
        while begin < end:
            block = read_exactly(file, begin, min(_BLOCK_BYTES, end - begin), shown)
            begin += len(block)
            yield _to_single(block) if narrow else block


def _to_single(block):
    """Converts fp64 to fp32. Values too large for fp32 become infinite; the writer refuses them."""
    with numpy.errstate(over="ignore"):
        return numpy.frombuffer(block, "<f8").astype("<f4")
