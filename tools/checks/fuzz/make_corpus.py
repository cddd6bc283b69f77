#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the valid files of tests/python/corpus, of a few kilobytes each. Run it with build/venv/bin/python."""

import json
import pathlib
import sys
import tempfile
import zipfile

import gguf
import numpy

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT / "tests/python"), str(_ROOT / "tools/python")]
_CORPUS = _ROOT / "tests/python/corpus"
_TOKENS = ["<|endoftext|>", "a", "b", "Ġ", "ab", "Ġa", "c", "d"]
_MERGES = ["a b", "Ġ a"]
_DATE = (2026, 1, 1, 0, 0, 0)
_Type = gguf.GGMLQuantizationType


def tensors(width, tied):
    """Returns the tensors of a random model with one layer and one head, by GGUF's names and in its order of rows."""
    shapes = {"token_embd": (len(_TOKENS), width), "output_norm": (width,)}
    if not tied:
        shapes["output"] = (len(_TOKENS), width)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = (width, width)
    for name in ("attn_norm", "ffn_norm"):
        shapes[f"blk.0.{name}"] = (width,)
    chooser = numpy.random.default_rng(1)
    return {f"{name}.weight": chooser.standard_normal(shape).astype("f4") for name, shape in shapes.items()}


def write_gguf(path, kind, width=4, tied=True, change=None):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(_TOKENS)
    writer.add_token_types([3] + [1] * (len(_TOKENS) - 1))
    writer.add_token_merges(_MERGES)
    writer.add_eos_token_id(0)
    if change:
        change(writer)
    for name, values in tensors(width, tied).items():
        stored = kind if values.ndim == 2 else _Type.F32
        writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_every_type(writer):
    writer.add_key_length(4)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(4)
    writer.add_bool("x.bool", True)
    writer.add_int8("x.int8", -1)
    writer.add_uint8("x.uint8", 1)
    writer.add_int16("x.int16", -1)
    writer.add_uint16("x.uint16", 1)
    writer.add_int32("x.int32", -1)
    writer.add_int64("x.int64", -1)
    writer.add_uint64("x.uint64", 1)
    writer.add_float64("x.float64", 0.5)
    writer.add_array("x.floats", [0.5, 1.5])
    writer.add_chat_template("{{ messages }}")
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)


def write_folder(folder, source, shards):
    """Writes the Hugging Face folder that the importer makes from a GGUF file."""
    from spillway_tools.gguf_model import GgufModel
    from spillway_tools.command import Progress
    from spillway_tools.weights import WeightsPlan

    model = GgufModel(source)
    folder.mkdir()
    weights = WeightsPlan(model.tensors, 300 if shards else 1 << 30, str(source))
    weights.write(folder, Progress("corpus", None))
    (folder / "config.json").write_text(json.dumps(model.config))
    for name, data in model.files.items():
        (folder / name).write_bytes(data)


def write_wheel(path, members, method):
    with zipfile.ZipFile(path, "w", method) as wheel:
        for name, data in members:
            wheel.writestr(zipfile.ZipInfo(name, _DATE), data, method)


def main():
    for kind in ("gguf", "wheel"):
        (_CORPUS / kind).mkdir(parents=True, exist_ok=True)
    files = _CORPUS / "gguf"
    write_gguf(files / "f32.gguf", _Type.F32)
    write_gguf(files / "f16_untied.gguf", _Type.F16, tied=False)
    write_gguf(files / "bf16.gguf", _Type.BF16)
    write_gguf(files / "q8_0.gguf", _Type.Q8_0, width=32)
    write_gguf(files / "every_type.gguf", _Type.F32, change=add_every_type)
    wheels = _CORPUS / "wheel"
    package = [("package/__init__.py", b""), ("package-1.0.dist-info/METADATA", b"Name: package\n")]
    member = [("package/model.gguf", (files / "f32.gguf").read_bytes())]
    write_wheel(wheels / "gguf_deflated.whl", package + member, zipfile.ZIP_DEFLATED)
    write_wheel(wheels / "gguf_stored.whl", member, zipfile.ZIP_STORED)
    with tempfile.TemporaryDirectory() as temporary:
        for name, source, shards in (("folder", "f32", False), ("shards", "f16_untied", True), ("bf16", "bf16", False)):
            folder = pathlib.Path(temporary) / name
            write_folder(folder, files / f"{source}.gguf", shards)
            members = [(f"package/model/{file.name}", file.read_bytes()) for file in sorted(folder.iterdir())]
            write_wheel(wheels / f"{name}.whl", [("package/model/", b"")] + members, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
