# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder as a source: validated, its tensors copied in blocks as they are.

F32, F16 and BF16 stay as they are; F64 becomes F32. Other types are refused by name.
"""

import json
from pathlib import Path

import numpy
from safetensors import SafetensorError, safe_open

from spillway_tools import llama
from spillway_tools.command import InputError
from spillway_tools.weights import INDEX_FILE, WEIGHTS_FILE, TensorSource

_BLOCK_BYTES = 16 << 20
_STORED_DTYPES = {"F32": "F32", "F16": "F16", "BF16": "BF16", "F64": "F32"}
# Copied when present, beside what must be there.
_OPTIONAL_FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
_MAX_TEXT_BYTES = 256 << 20


class HuggingFaceFolder:
    """Opens and checks a folder; `tensors` read it when their pieces are asked for."""

    def __init__(self, folder):
        self._folder = Path(folder)
        self.config = self._json("config.json")
        origin = str(self._folder / "config.json")
        llama.check_config(self.config, origin)
        self.tensors = llama.select_tensors(self.config, self._read_tensors(), str(self._folder))
        self.text_files = {"tokenizer.json": self._text("tokenizer.json")}
        for name in _OPTIONAL_FILES:
            if (self._folder / name).exists():
                self.text_files[name] = self._text(name)

    def _text(self, name):
        path = self._folder / name
        if not path.is_file():
            raise InputError(f"{path}: is missing")
        if path.stat().st_size > _MAX_TEXT_BYTES:
            raise InputError(f"{path}: has {path.stat().st_size} bytes, more than any such file")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: is not UTF-8: {error}") from error

    def _json(self, name):
        text = self._text(name)
        try:
            return json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{self._folder / name}: is not valid JSON: {error}") from error

    def _read_tensors(self):
        if (self._folder / WEIGHTS_FILE).exists():
            return self._read_file(WEIGHTS_FILE)
        if not (self._folder / INDEX_FILE).exists():
            raise InputError(
                f"{self._folder}: holds neither {WEIGHTS_FILE} nor {INDEX_FILE} (other formats,"
                " such as pytorch_model.bin, are not read)"
            )
        index = self._json(INDEX_FILE)
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise InputError(f"{self._folder / INDEX_FILE}: holds no weight_map")
        tensors = []
        for shard in sorted(set(map(str, weight_map.values()))):
            if shard != Path(shard).name or not shard.endswith(".safetensors"):
                raise InputError(
                    f"{self._folder / INDEX_FILE}: {shard!r} is not the name of a shard beside it"
                )
            in_shard = self._read_file(shard)
            placed = {name for name, file in weight_map.items() if file == shard}
            different = placed ^ {tensor.name for tensor in in_shard}
            if different:
                raise InputError(
                    f"{self._folder / shard}: disagrees with {INDEX_FILE} about tensor "
                    f"{sorted(different)[0]}"
                )
            tensors += in_shard
        return tensors

    def _read_file(self, name):
        path = self._folder / name
        if not path.is_file():
            raise InputError(f"{path}: is missing")
        try:
            with safe_open(path, "numpy"):  # the reference implementation's validation
                pass
        except SafetensorError as error:
            raise InputError(f"{path}: not a valid safetensors file: {error}") from error
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes))
        return [
            self._source(path, 8 + header_bytes, name, entry)
            for name, entry in header.items()
            if name != "__metadata__"
        ]

    @staticmethod
    def _source(path, data_offset, name, entry):
        dtype = entry["dtype"]
        if dtype not in _STORED_DTYPES:
            raise InputError(
                f"{path}: tensor {name} has type {dtype}; F32, F16, BF16 and F64 are supported"
            )
        begin, end = (data_offset + offset for offset in entry["data_offsets"])
        return TensorSource(
            name,
            _STORED_DTYPES[dtype],
            tuple(entry["shape"]),
            lambda: _copy(path, begin, end, dtype == "F64"),
        )


def _copy(path, begin, end, narrow):
    with open(path, "rb") as file:
        file.seek(begin)
        while begin < end:
            block = file.read(min(_BLOCK_BYTES, end - begin))
            if not block:
                raise InputError(f"{path}: ended while it was read")
            begin += len(block)
            yield numpy.frombuffer(block, "<f8").astype("<f4") if narrow else block
