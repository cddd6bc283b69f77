# SPDX-License-Identifier: Apache-2.0
"""Tests spillway-import on GGUF models in parts, which the gguf package writes."""

import shutil
import struct
import unittest
import zipfile

import numpy
from safetensors.numpy import load_file

from import_gguf_test import write_gguf
from tool_testing import SPECIAL, ToolTest, model_tensors, write_folder


def set_number(path, key, value):
    """Changes a 16- or 32-bit number in a file's metadata."""
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key)
    (kind,) = struct.unpack_from("<I", data, at)
    struct.pack_into({2: "<H", 5: "<i"}[kind], data, at + 4, value)
    path.write_bytes(data)


class GgufPartsTest(ToolTest):
    def setUp(self):
        super().setUp()
        (self.folder / "in").mkdir()
        self.tensors = model_tensors()
        write_gguf(self.folder / "in/m.gguf", self.tensors, split_max_tensors=8)
        self.parts = sorted((self.folder / "in").iterdir())
        self.assertEqual(
            [part.name for part in self.parts], [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
        )

    def assert_imports(self, source, tensors=None):
        self.run_tool("import_command", source, self.folder / "out", "--force")
        found = load_file(self.folder / "out/model.safetensors")
        expected = self.tensors if tensors is None else tensors
        self.assertEqual(set(found), set(expected))
        for name, values in expected.items():
            numpy.testing.assert_array_equal(found[name], values, name)
        self.assertTrue((self.folder / "out/tokenizer.json").exists())
        shutil.rmtree(self.folder / "out")

    def assert_refused(self, source, *words):
        failed = self.run_tool("import_command", source, self.folder / "out", expect=1)
        message = failed.stderr.splitlines()[-1]
        for word in words:
            self.assertIn(str(word), message)
        self.assertFalse((self.folder / "out").exists())

    def pack(self, *files, folder="package"):
        with zipfile.ZipFile(self.folder / "p.whl", "w") as wheel:
            for file in files:
                wheel.write(file, f"{folder}/{file.name}")
        return self.folder / "p.whl"

    def test_each_part_stands_for_the_model(self):
        for part in self.parts:
            self.assert_imports(part)

    def test_a_folder_and_a_wheel_of_parts(self):
        self.assert_imports(self.folder / "in")
        self.assert_imports(self.pack(*reversed(self.parts)))

    def test_a_first_part_without_tensors(self):
        for part in self.parts:
            part.unlink()
        options = {"split_max_size": 20_000, "small_first_shard": True}
        write_gguf(self.folder / "in/m.gguf", self.tensors, **options)
        self.assertGreater(len(list((self.folder / "in").iterdir())), 3)
        self.assert_imports(self.folder / "in")

    def test_parts_that_are_links_to_files_of_other_names(self):
        for n, part in enumerate(self.parts):
            part.rename(self.folder / f"blob{n}")
            part.symlink_to(self.folder / f"blob{n}")
        self.assert_imports(self.parts[0])

    def test_a_file_that_parts_were_merged_into(self):
        def merged(writer):
            writer.add_uint16("split.count", 0)

        self.assert_imports(write_gguf(self.folder / "in/m.gguf", self.tensors, change=merged))

    def test_a_folder_with_one_whole_file_and_a_config(self):
        write_folder(self.folder / "other")
        (self.folder / "other/model.safetensors").unlink()
        write_gguf(self.folder / "other/m.gguf", self.tensors)
        self.assert_imports(self.folder / "other")

    def test_missing_parts_are_named(self):
        self.parts[1].unlink()
        self.assert_refused(self.parts[0], f"{self.parts[1]}: missing; {self.parts[0]} is part 1 of 3")
        self.assert_refused(self.folder / "in", f"{self.parts[1]}: missing")
        wheel = self.pack(self.parts[0], self.parts[2])
        self.assert_refused(wheel, f"{wheel}: package/{self.parts[1].name}: missing")
        self.parts[0].unlink()
        self.assert_refused(self.parts[2], f"{self.parts[0]}, {self.parts[1]}: missing")
        self.assert_refused(self.folder / "in", f"{self.parts[0]}, {self.parts[1]}: missing")

    def test_a_part_under_another_name(self):
        other = self.folder / "in/model.gguf"
        self.parts[0].rename(other)
        self.assert_refused(other, other, "part 1 of 3", "must end in -00001-of-00003.gguf")
        other.rename(self.parts[0])
        shutil.copy(self.parts[2], self.parts[1])
        self.assert_refused(self.parts[0], self.parts[1], "is part 3 of 3", "named as part 2")

    def test_parts_of_other_models_are_refused_by_name(self):
        def rename(writer):
            writer.add_name("other")

        other = self.folder / "other"
        other.mkdir()
        for name, split, change, words in (
            ("m-00002-of-00003.gguf", 9, None, ("holds tensor", "and so does", "one model")),
            ("m-00002-of-00002.gguf", 11, None, ("its split.count is 2", "is 3")),
            ("m-00001-of-00003.gguf", 8, rename, ()),
        ):
            with self.subTest(name):
                for file in other.iterdir():
                    file.unlink()
                write_gguf(other / "m.gguf", self.tensors, change=change, split_max_tensors=split)
                target = self.parts[int(name[6]) - 1]
                whole = target.read_bytes()
                shutil.copy(other / name, target)
                if words:
                    self.assert_refused(self.folder / "in", target, *words)
                else:  # the first part alone has the metadata, so this one fits
                    self.assert_imports(self.folder / "in")
                target.write_bytes(whole)

    def test_keys_that_contradict_each_other_or_the_name(self):
        for part, key, value, words in (
            (1, "split.no", 0, ("is part 1 of 3", "named as part 2")),
            (1, "split.no", 3, ("split.no is 3; a whole number below split.count, 3, is expected",)),
            (2, "split.count", 4, ("its split.count is 4", "is 3")),
            (0, "split.count", 2, ("must end in -00001-of-00002.gguf",)),
            (2, "split.tensors.count", 19, ("its split.tensors.count is 19", "is 20")),
        ):
            with self.subTest(f"{part} {key} {value}"):
                whole = self.parts[part].read_bytes()
                set_number(self.parts[part], key, value)
                self.assert_refused(self.parts[0], self.parts[part], *words)
                self.parts[part].write_bytes(whole)
        for part in self.parts:
            set_number(part, "split.tensors.count", 21)
        self.assert_refused(self.parts[0], "is 21, and the parts hold 20", "holds 8")

    def test_a_damaged_part_is_named(self):
        whole = self.parts[1].read_bytes()
        self.parts[1].write_bytes(whole[:-1])
        self.assert_refused(self.parts[0], f"{self.parts[1]}: not a valid GGUF file: tensor")

    def test_a_folder_with_several_models(self):
        write_gguf(self.folder / "in/n.gguf", self.tensors)
        self.assert_refused(
            self.folder / "in", "holds 2 models in .gguf files, m-00001-of-00003.gguf, n.gguf"
        )
        self.assert_imports(self.folder / "in/n.gguf")
        self.assert_refused(self.pack(*self.parts, self.folder / "in/n.gguf"), "should carry one")

    def test_the_tokenizer_comes_from_the_first_part(self):
        self.run_tool("import_command", self.parts[2], self.folder / "out")
        self.assertIn(SPECIAL[0], (self.folder / "out/tokenizer.json").read_text())


if __name__ == "__main__":
    unittest.main()
