# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-import on sources and folders that are inconsistent, truncated or endless."""

import json
import os
import struct
import subprocess
import unittest

import numpy

from tool_testing import CONFIG, ToolTest, model_tensors, tool_command, tool_environment
from tool_testing import write_folder


class HostileSourceTest(ToolTest):
    def test_what_is_no_file_is_refused_and_not_waited_for(self):
        os.mkfifo(self.folder / "fifo")
        self.assert_import_fails("/dev/zero", "is a character device")
        self.assert_import_fails("/dev/null", "is a character device")
        self.assert_import_fails(self.folder / "fifo", "is a fifo")
        (self.folder / "link").symlink_to("/dev/zero")
        self.assert_import_fails(self.folder / "link", "is a character device")

    def test_an_empty_file_is_no_model(self):
        (self.folder / "empty").touch()
        self.assert_import_fails(self.folder / "empty", "is neither a GGUF file")

    def test_a_file_that_may_not_be_read_is_named(self):
        (self.folder / "secret").write_bytes(b"GGUF")
        (self.folder / "secret").chmod(0)
        if os.access(self.folder / "secret", os.R_OK):
            self.skipTest("this user may read every file")
        self.assert_import_fails(self.folder / "secret", "Permission denied")


class HostileFolderTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.source = self.folder / "in"
        write_folder(self.source)

    def assert_config_fails(self, text, *words):
        (self.source / "config.json").write_text(text, encoding="utf-8")
        self.assert_import_fails(self.source, "in/config.json", *words)

    def test_what_eval_refuses_in_a_config_is_refused(self):
        for key, value in (
            ("rms_norm_eps", float("nan")),
            ("rms_norm_eps", 0),
            ("rms_norm_eps", -1),
            ("rms_norm_eps", "1e-5"),
            ("rope_theta", 0),
            ("rope_theta", -10000.0),
            ("max_position_embeddings", 0),
            ("partial_rotary_factor", 0.5),
            ("tie_word_embeddings", "no"),
        ):
            with self.subTest(f"{key} {value}"):
                word = "is not valid JSON" if value != value else key
                self.assert_config_fails(json.dumps({**CONFIG, key: value}), word)

    def test_json_that_python_takes_and_the_standard_does_not(self):
        text = json.dumps(CONFIG)
        for change, words in (
            ('"x": ' + "9" * 4300, "too large"),
            ('"x": 1e999', "too large"),
            ('"x": Infinity', "is not valid JSON"),
            ('"vocab_size": 268', 'holds the name "vocab_size" twice'),
            ('"x": {"a": 1, "a": 2}', 'holds the name "a" twice'),
            ('"x": "\\ud800"', "is not valid JSON"),
            ('"x": ' + "[" * 64 + "]" * 64, "nested more than 64 deep"),
            ('"x": ' + "[" * 100_000, "nested more than 64 deep"),
            ('"x": [' + "[]," * 4_000_000 + "[]]", "holds more than 4000000 JSON values"),
        ):
            with self.subTest(change[:40]):
                self.assert_config_fails(f"{text[:-1]}, {change}}}", words)

    def test_text_files_end_somewhere(self):
        (self.source / "config.json").write_bytes(b" " * (17 << 20))
        self.assert_import_fails(self.source, "in/config.json", "has more than 16777216 bytes")
        (self.source / "config.json").write_bytes(b"{\xff}")
        self.assert_import_fails(self.source, "in/config.json: is not UTF-8: byte 0xff at offset 1")
        for name in ("config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json"):
            with self.subTest(name):
                write_folder(self.source)
                (self.source / name).unlink(missing_ok=True)
                os.mkfifo(self.source / name)
                self.assert_import_fails(self.source, f"in/{name}: is a fifo")
                (self.source / name).unlink()
                (self.source / name).symlink_to("/dev/zero")
                self.assert_import_fails(self.source, f"in/{name}: is a character device")
                (self.source / name).unlink()

    def test_the_tokeniser_must_be_one(self):
        for text in ("", "{}", "[]", '{"version": "1.0", "model": {"type": "BPE"}}'):
            (self.source / "tokenizer.json").write_text(text)
            self.assert_import_fails(self.source, "in/tokenizer.json: not a valid tokeniser")

    def test_a_panic_of_the_tokeniser_package_is_one_line(self):
        model = {"type": "BPE", "vocab": {"": 0, "a": 1}, "merges": [["", "a"], ["a", ""]]}
        model["continuing_subword_prefix"] = "#"
        (self.source / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
        failed = self.run_tool("import_command", self.source, self.folder / "out", expect=1)
        self.assertEqual(len(failed.stderr.splitlines()), 2, failed.stderr)

    def test_many_layers_are_told_by_the_first_that_is_missing(self):
        self.assert_config_fails(
            json.dumps({**CONFIG, "num_hidden_layers": 2**31 - 1}),
            "num_hidden_layers is 2147483647; a whole number from 1 to 100000",
        )
        (self.source / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 99999}))
        self.assert_import_fails(self.source, "tensor model.layers.2.input_layernorm.weight")

    def test_weights_that_are_not_finite_are_refused(self):
        for dtype in ("f4", "f2", "f8"):
            for value in (numpy.nan, numpy.inf, -numpy.inf):
                tensors = model_tensors()
                name = "model.layers.1.mlp.up_proj.weight"
                tensors[name] = tensors[name].astype(dtype)
                tensors[name][63, 31] = value
                write_folder(self.source, tensors)
                with self.subTest(f"{dtype} {value}"):
                    self.assert_import_fails(self.source, name, "element 2047", "infinite or NaN")
        tensors = model_tensors()
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype("f8")
        tensors["model.norm.weight"][3] = 1e39  # finite, and too large for fp32
        write_folder(self.source, tensors)
        self.assert_import_fails(self.source, "model.norm.weight: element 3 is infinite or NaN")

    def test_bfloat16_that_is_not_finite_is_refused(self):
        tensors = model_tensors()
        header, data, offset = {}, b"", 0
        for name, values in tensors.items():
            bits = (values.view("u4") >> 16).astype("u2")
            if name == "model.norm.weight":
                bits[5] = 0x7F80
            end = offset + bits.nbytes
            header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [offset, end]}
            data += bits.tobytes()
            offset = end
        self.write_safetensors(json.dumps(header).encode(), data)
        self.assert_import_fails(self.source, "model.norm.weight: element 5 is infinite", "BF16")

    def test_commas_in_strings_are_no_values_and_take_little_memory(self):
        text = json.dumps({**CONFIG, "x": ",[{" * 5_000_000, "y": '\\"' * 100})
        (self.source / "config.json").write_text(text)
        self.run_tool("import_command", self.source, self.folder / "taken")
        strings = '"",' * 4_000_000
        self.assert_config_fails(f'{{"x":[{strings}""]}}', "holds more than 4000000 JSON values")

    def test_a_config_that_would_be_too_long_as_it_is_written(self):
        for value in ("é" * 3_000_000, [0] * 3_000_000):
            text = json.dumps({**CONFIG, "x": value}, ensure_ascii=False)
            (self.source / "config.json").write_text(text)
            self.assert_import_fails(self.source, "config.json would be written with")

    def test_tokens_that_the_model_lacks_are_refused(self):
        config = {**CONFIG, "vocab_size": 267}
        tensors = model_tensors()
        name = "model.embed_tokens.weight"
        tensors[name] = tensors[name][:267].copy()
        write_folder(self.source, tensors, config)
        self.assert_import_fails(self.source, "in/tokenizer.json: gives", "the id 267", "of 267")

    def test_a_file_that_shrinks_while_it_is_read(self):
        for dtype, cut in (("f4", 3), ("f8", 5), ("f2", 1)):
            tensors = {name: values.astype(dtype) for name, values in model_tensors().items()}
            write_folder(self.source, tensors)
            size_bytes = (self.source / "model.safetensors").stat().st_size - cut
            command = tool_command("import_command", self.source, self.folder / "out")
            command[2] = (
                "import os, sys\n"
                "from spillway_tools import import_command, importer\n"
                "importer._check_room = lambda *_:"
                f" os.truncate(sys.argv[1] + '/model.safetensors', {size_bytes})\n"
                "import_command.main()"
            )
            failed = subprocess.run(
                command, env=tool_environment(), capture_output=True, text=True, check=False
            )
            with self.subTest(dtype):
                self.assertEqual(failed.returncode, 1, failed.stderr)
                self.assertIn("model.safetensors: has become shorter", failed.stderr)
                self.assert_nothing_left("in")

    def write_safetensors(self, header, data=b""):
        (self.source / "model.safetensors").write_bytes(
            struct.pack("<Q", len(header)) + header + data
        )

    def test_a_tensor_that_a_header_names_twice_is_refused(self):
        entry = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
        self.write_safetensors(b"{" + entry + b"," + entry + b"}", bytes(4))
        self.assert_import_fails(self.source, "model.safetensors: header", '"a" twice')

    def test_headers_that_lie_are_refused(self):
        for header, words in (
            (b"", "its header is no JSON object"),
            (b" {}", "its header is no JSON object"),
            (b'{"\xff":1}', "is not UTF-8"),
            (b'{"a":' + b"9" * 5000 + b"}", "too large"),
            (b'{"a":' + b"[" * 5000 + b"}", "nested more than 64 deep"),
            (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "not a valid safetensors"),
            (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', "not a valid safetensors"),
            (b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}', "not a valid safetensors"),
        ):
            with self.subTest(header[:60]):
                self.write_safetensors(header, bytes(4))
                self.assert_import_fails(self.source, "in/model.safetensors", words)
        (self.source / "model.safetensors").write_bytes(b"\xff" * 8)
        self.assert_import_fails(self.source, "its header has 18446744073709551615 bytes")
        (self.source / "model.safetensors").write_bytes(b"\1")
        self.assert_import_fails(self.source, "not a valid safetensors file")

    def test_a_long_shape_and_a_long_name_make_a_short_message(self):
        shape = ",".join(["1"] * 100_000)
        name = "x" * 100_000 + "\x1b[31m"
        header = {name: {"dtype": "F32", "shape": "SHAPE", "data_offsets": [0, 4]}}
        text = json.dumps(header).replace('"SHAPE"', f"[{shape}]")
        self.write_safetensors(text.encode(), bytes(4))
        self.assert_import_fails(self.source)

    def test_an_index_of_odd_shards_is_refused(self):
        (self.source / "model.safetensors").unlink()
        for shard in (
            "../x.safetensors",
            "/x.safetensors",
            "a\0b.safetensors",
            "x" * 300 + ".safetensors",
            7,
            None,
            ["x.safetensors"],
        ):
            index = {"weight_map": {"model.norm.weight": shard}}
            (self.source / "model.safetensors.index.json").write_text(json.dumps(index))
            with self.subTest(str(shard)[:40]):
                self.assert_import_fails(self.source, "is not the name of a shard")


if __name__ == "__main__":
    unittest.main()
