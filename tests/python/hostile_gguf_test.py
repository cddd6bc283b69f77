# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-import on GGUF files with false lengths, counts, types and values."""

import resource
import struct
import subprocess
import unittest

import gguf
import numpy

from import_gguf_test import gguf_name, write_gguf
from tool_testing import ToolTest, model_tensors, tool_command, tool_environment

_Value = gguf.GGUFValueType
_FORMS = {_Value.UINT32: "<I", _Value.UINT64: "<Q", _Value.FLOAT32: "<f", _Value.BOOL: "<?"}


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def scalar(kind, value):
    return struct.pack("<I", kind) + struct.pack(_FORMS[kind], value)


def array(kind, count, entries=b""):
    return struct.pack("<IIQ", _Value.ARRAY, kind, count) + entries


def header(keys=(), tensors=(), version=3, num_keys=None, num_tensors=None):
    """Returns a GGUF file without data. `keys` are pairs of a name and a typed value; `tensors` are
    descriptions of tensors."""
    num_keys = len(keys) if num_keys is None else num_keys
    num_tensors = len(tensors) if num_tensors is None else num_tensors
    text = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)
    return text + b"".join(string(name) + value for name, value in keys) + b"".join(tensors)


def tensor(name, shape, kind=0, offset=0, num_dimensions=None):
    num_dimensions = len(shape) if num_dimensions is None else num_dimensions
    text = string(name) + struct.pack("<I", num_dimensions)
    return text + struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)


class HostileLayoutTest(ToolTest):
    def assert_fails(self, data, *words):
        (self.folder / "m.gguf").write_bytes(data)
        self.assert_import_fails(self.folder / "m.gguf", "not a valid GGUF file", *words)

    def test_arrays_are_no_longer_than_the_file(self):
        for kind in (_Value.UINT8, _Value.UINT64, _Value.STRING, _Value.ARRAY):
            for count in (2**40, 2**63, 2**64 - 1):
                with self.subTest(f"{kind.name} {count}"):
                    self.assert_fails(header([("a", array(kind, count))]), "key a", str(count))
        self.assert_fails(header([("a", array(_Value.UINT8, 2**20))]), "key a: needs 1048576 bytes")
        entries = bytes(2**21 + 1)
        self.assert_fails(header([("a", array(_Value.UINT8, len(entries), entries))]), "at most")

    def test_arrays_of_arrays_end(self):
        nested = array(_Value.UINT8, 1, b"x")[4:]
        for _ in range(2000):
            nested = struct.pack("<IQ", _Value.ARRAY, 1) + nested
        self.assert_fails(header([("a", struct.pack("<I", _Value.ARRAY) + nested)]), "nested")

    def test_counts_are_no_larger_than_any_model_has(self):
        self.assert_fails(header(num_keys=2**60), "it says that it has 1152921504606846976 keys")
        self.assert_fails(header(num_tensors=2**60), "1152921504606846976 tensors")
        self.assert_fails(header(num_keys=60_000), "key 1 of 60000: needs 8 bytes")
        self.assert_fails(header(num_tensors=60_000), "tensor 1 of 60000: needs 8 bytes")

    def test_strings_are_no_longer_than_the_file(self):
        for length in (2**40, 2**64 - 1):
            value = struct.pack("<IQ", _Value.STRING, length)
            self.assert_fails(header([("a", value)]), "key a: needs")
            self.assert_fails(
                header(num_keys=1) + struct.pack("<Q", length), "key 1 of 1: its name"
            )

    def test_types_and_versions_must_be_known(self):
        self.assert_fails(header([("a", struct.pack("<I", 99))]), "key a: its type 99")
        self.assert_fails(header([("a", array(99, 1))]), "key a: its type 99")
        self.assert_fails(header(tensors=[tensor("t", [1], 99)]), "tensor t: its type 99")
        self.assert_fails(header(version=1), "its version is 1")
        self.assert_fails(header(version=4), "its version is 4")
        self.assert_fails(header(version=0x03000000), "big endian")

    def test_alignment_must_be_a_power_of_two(self):
        for value in (0, 3, 33):
            alignment = ("general.alignment", scalar(_Value.UINT32, value))
            self.assert_fails(header([alignment]), f"general.alignment is {value}")
        alignment = ("general.alignment", scalar(_Value.UINT64, 32))
        self.assert_fails(header([alignment]), "general.alignment is of type UINT64")

    def test_tensors_have_one_to_four_dimensions(self):
        self.assert_fails(header(tensors=[tensor("t", [])]), "tensor t: has 0 dimensions")
        self.assert_fails(header(tensors=[tensor("t", [1] * 5)]), "tensor t: has 5 dimensions")
        many = tensor("t", [], num_dimensions=2**32 - 1)
        self.assert_fails(header(tensors=[many]), "tensor t: has 4294967295 dimensions")

    def test_tensors_are_in_the_file_and_apart(self):
        self.assert_fails(header(tensors=[tensor("t", [2**62, 8])]), "tensor t: ends at data byte")
        self.assert_fails(header(tensors=[tensor("t", [2**32] * 2)]), "tensor t: ends at data byte")
        self.assert_fails(header(tensors=[tensor("t", [8], offset=2**63)]), "tensor t: ends at")
        self.assert_fails(header(tensors=[tensor("t", [8], offset=1)]), "no multiple of the align")
        self.assert_fails(
            header(tensors=[tensor("t", [33], 8)]), "no multiple of the 32 in a block"
        )
        pair = [tensor("t", [16]), tensor("u", [16], offset=32)]
        self.assert_fails(header(tensors=pair) + bytes(200), "tensor u", "inside the tensor before")

    def test_names_are_shown_on_one_line(self):
        name = b"\x1b[31m\n\xff" + b"x" * 200
        self.assert_fails(header([(name, struct.pack("<I", 99))]), "key \\x1b[31m\\n")
        self.assert_fails(header([("a", scalar(_Value.UINT32, 1))] * 2), "key a is there twice")


class HostileContentTest(ToolTest):
    """Files that are valid except for what a test changes."""

    def write(self, change=None):
        return write_gguf(self.folder / "m.gguf", model_tensors(), change=change)

    def test_what_nobody_asks_for_is_skipped_and_takes_no_memory(self):
        source = self.write(lambda writer: writer.add_array("x", [b"ab"] * (2**21 - 2000)))
        begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        self.run_tool("import_command", source, self.folder / "out")
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin, 10)
        # The most that any child has had so far. A list of the entries would have some 130 MiB.
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 200 << 10)

    def test_a_file_that_shrinks_while_it_is_read(self):
        source = self.write()
        for place, change in (
            ("metadata", "layout._Reader._tensor = shrink"),
            ("tensors", "importer._check_room = shrink"),
        ):
            whole = source.read_bytes()
            change = (
                "import os, sys\n"
                "from spillway_tools import gguf_layout as layout, import_command, importer\n"
                "read = layout._Reader._tensor\n"
                "def shrink(*arguments):\n"
                "  os.truncate(sys.argv[1], 9000)\n"
                f"  return read(*arguments) if {place!r} == 'metadata' else None\n"
                f"{change}\nimport_command.main()"
            )
            command = tool_command("import_command", source, self.folder / "out")
            command[2] = change
            failed = subprocess.run(
                command, env=tool_environment(), capture_output=True, text=True, check=False
            )
            with self.subTest(place):
                self.assertEqual(failed.returncode, 1, failed.stderr)
                self.assertIn(f"{source}: ", failed.stderr)
                self.assertIn("has become shorter while it was read", failed.stderr)
                self.assert_nothing_left("m.gguf")
            source.write_bytes(whole)

    def test_scaled_rope_is_refused_by_any_of_its_keys(self):
        for key, value in (
            ("rope.scaling.factor", 2.0),
            ("rope.scaling.factor", 0.5),
            ("rope.scaling.attn_factor", 0.5),
            ("rope.scale_linear", 2.0),
        ):
            with self.subTest(f"{key} {value}"):
                source = self.write(lambda writer: writer.add_float32(f"llama.{key}", value))
                self.assert_import_fails(source, f"llama.{key} is {value}; rope scaling")

    def test_a_scale_of_one_is_plain_rope(self):
        for key, value in (
            ("rope.scaling.factor", 1.0),
            ("rope.scaling.factor", 0.0),
            ("rope.scaling.attn_factor", 1.0),
            ("rope.scale_linear", 1.0),
        ):
            with self.subTest(f"{key} {value}"):
                source = self.write(lambda writer: writer.add_float32(f"llama.{key}", value))
                self.run_tool("import_command", source, self.folder / "out", "--force")

    def test_text_that_is_asked_for_is_utf8(self):
        whole = self.write(lambda writer: writer.add_chat_template("XYZ")).read_bytes()
        (self.folder / "m.gguf").write_bytes(whole.replace(b"XYZ", b"X\xffZ"))
        self.assert_import_fails(
            self.folder / "m.gguf", "tokenizer.chat_template: is not UTF-8: byte 0xff at byte 1"
        )


class HostileModelTest(ToolTest):
    def assert_fails(self, change, *words, tensors=None):
        source = write_gguf(self.folder / "m.gguf", tensors or model_tensors(), change=change)
        self.assert_import_fails(source, *words)

    def override(self, key, value, kind, sub_type=None):
        def change(writer):
            self.without(key)(writer)
            writer.add_key_value(key, value, kind, sub_type)

        return change

    def without(self, key):
        def change(writer):
            for data in writer.kv_data:
                data.pop(key, None)

        return change

    def test_a_missing_pre_tokenizer_is_not_guessed(self):
        self.assert_fails(
            self.without("tokenizer.ggml.pre"),
            "tokenizer.ggml.pre is missing; supported are",
            "import the model's Hugging Face folder instead",
        )
        self.assert_fails(
            self.override("tokenizer.ggml.pre", "", _Value.STRING), "tokenizer.ggml.pre is"
        )

    def test_a_missing_epsilon_is_not_guessed(self):
        self.assert_fails(
            self.without("llama.attention.layer_norm_rms_epsilon"),
            "llama.attention.layer_norm_rms_epsilon is missing; a positive number is expected",
        )

    def test_a_bos_that_is_added_must_be_a_token(self):
        def change(writer):
            writer.add_add_bos_token(True)
            self.without("tokenizer.ggml.bos_token_id")(writer)

        self.assert_fails(change, "tokenizer.ggml.bos_token_id is missing; a token below 268")

        def change_to_a_row_without_token(writer):
            writer.add_add_bos_token(True)
            writer.add_bos_token_id(268)

        tensors = model_tensors()
        name = "model.embed_tokens.weight"
        tensors[name] = numpy.concatenate([tensors[name], tensors[name][:4]])
        self.assert_fails(
            change_to_a_row_without_token,
            "tokenizer.ggml.bos_token_id is 268; a token below 268",
            tensors=tensors,
        )

    def test_sizes_that_no_model_has(self):
        for key, value in (
            ("block_count", 2**31 - 1),
            ("block_count", 2**32 - 1),
            ("block_count", 0),
            ("context_length", 0),
            ("attention.head_count", 0),
            ("attention.head_count", 2**31 - 1),
            ("attention.head_count_kv", 3),
            ("attention.key_length", 7),
            ("embedding_length", 2**32 - 1),
        ):
            with self.subTest(f"{key} {value}"):
                self.assert_fails(self.override(f"llama.{key}", value, _Value.UINT32))
        self.assert_fails(
            self.override("llama.block_count", 2**31 - 1, _Value.UINT32),
            "a whole number from 1 to 100000 is expected",
        )
        self.assert_fails(
            self.override("llama.block_count", 100_000, _Value.UINT32),
            "model.layers.2.input_layernorm.weight [32] is missing",
        )

    def test_numbers_that_no_model_has(self):
        for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base"):
            for value in (float("nan"), float("inf"), 0.0, -1.0):
                with self.subTest(f"{key} {value}"):
                    self.assert_fails(
                        self.override(f"llama.{key}", value, _Value.FLOAT32),
                        f"llama.{key} is",
                        "a positive number is expected",
                    )
            for value in (1e300, 1e-300):
                with self.subTest(f"{key} {value}"):
                    self.assert_fails(
                        self.override(f"llama.{key}", value, _Value.FLOAT64),
                        f"llama.{key} is",
                        "F32",
                    )
            self.assert_fails(
                self.override(f"llama.{key}", True, _Value.BOOL), f"llama.{key} is true"
            )

    def test_metadata_of_another_type(self):
        strings = (["a", "b"], _Value.ARRAY, _Value.STRING)
        number = (7, _Value.UINT32)
        numbers = ([1, 2], _Value.ARRAY, _Value.UINT32)
        for key, value in (
            ("general.architecture", number),
            ("general.architecture", strings),
            ("llama.block_count", strings),
            ("llama.embedding_length", ("32", _Value.STRING)),
            ("llama.rope.freq_base", strings),
            ("llama.rope.scaling.type", strings),
            ("tokenizer.ggml.model", number),
            ("tokenizer.ggml.pre", strings),
            ("tokenizer.ggml.pre", number),
            ("tokenizer.ggml.tokens", number),
            ("tokenizer.ggml.tokens", numbers),
            ("tokenizer.ggml.merges", number),
            ("tokenizer.ggml.merges", numbers),
            ("tokenizer.ggml.merges", (["a b c"], _Value.ARRAY, _Value.STRING)),
            ("tokenizer.ggml.merges", (["no pair"], _Value.ARRAY, _Value.STRING)),
            ("tokenizer.ggml.token_type", number),
            ("tokenizer.ggml.token_type", numbers),
            ("tokenizer.ggml.eos_token_id", (True, _Value.BOOL)),
            ("tokenizer.ggml.eos_token_id", strings),
            ("tokenizer.ggml.bos_token_id", (1.5, _Value.FLOAT32)),
            ("tokenizer.ggml.add_bos_token", number),
            ("tokenizer.ggml.add_bos_token", strings),
        ):
            with self.subTest(f"{key} {value}"):
                self.assert_fails(self.override(key, *value))

    def test_more_tokens_than_rows_are_refused(self):
        tensors = model_tensors()
        name = "model.embed_tokens.weight"
        tensors[name] = tensors[name][:200]
        self.assert_fails(None, "268 tokens, and the embedding has 200 rows", tensors=tensors)

    def test_weights_that_are_not_finite_are_refused(self):
        tensors = model_tensors()
        name = "model.layers.1.mlp.up_proj.weight"
        tensors[name][3, 4] = numpy.nan
        self.assert_fails(None, gguf_name(name), "element 100 is infinite or NaN", tensors=tensors)

    def test_layers_are_numbered_in_one_way(self):
        def change(writer):
            writer.add_tensor("blk.01.attn_norm.weight", numpy.zeros(32, "f4"))

        self.assert_fails(change, "tensor blk.01.attn_norm.weight belongs to no LLaMA model")

        def change_much(writer):
            writer.add_tensor(f"blk.{'9' * 800}.attn_norm.weight", numpy.zeros(32, "f4"))

        self.assert_fails(change_much, "belongs to no LLaMA model")


if __name__ == "__main__":
    unittest.main()
