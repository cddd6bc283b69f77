# SPDX-License-Identifier: Apache-2.0
"""`spillway eval` and spillway-import accept and refuse the same Hugging Face folders.

Each case is a folder that both commands read: they must agree, and a refusal must say the same
words. SPILLWAY_COMMAND names the command `spillway`.
"""

import json
import os
import shutil
import subprocess
import unittest

import numpy
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from tool_testing import CONFIG, GPT2_CONFIG, ToolTest, gpt2_tensors, model_tensors, tool_command
from tool_testing import tool_environment, write_folder

_FREQUENCIES = numpy.arange(4, dtype="f4")
_NORM = "model.norm.weight"
_EMBEDDING = "model.embed_tokens.weight"
_INDEX_CURE = "they are of different models; copy both again, or correct the index's weight_map"


class SameFoldersTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.spillway = os.environ["SPILLWAY_COMMAND"]
        self.model = self.folder / "in"
        data = self.folder / "data"
        data.mkdir()
        numpy.save(data / "valid.npy", numpy.arange(200, dtype="u2"))
        (data / "meta.json").write_text('{"vocab_size": 268}')

    def judge(self):
        """Returns the last line of each command that refuses the folder."""
        evaluated = subprocess.run(
            [
                *(self.spillway, "eval", "--model", self.model, "--data", self.folder / "data"),
                *("--seq", "16", "--batches", "1", "--threads", "1"),
            ],
            env=tool_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        imported = subprocess.run(
            tool_command("import_command", self.model, self.folder / "out", "--force"),
            env=tool_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        for finished in (evaluated, imported):
            self.assertIn(finished.returncode, (0, 1), finished.stderr)
        return [
            finished.stderr.splitlines()[-1] if finished.returncode else None
            for finished in (evaluated, imported)
        ]

    def assert_both_accept(self):
        self.assertEqual(self.judge(), [None, None])

    def assert_both_refuse(self, *words):
        for message in self.judge():
            self.assertIsNotNone(message)
            for word in words:
                self.assertIn(word, message)

    def write(self, tensors=None, config=None, shards=None, index=None):
        """Writes the folder: one file, or `shards` by name with `index`, a weight_map. By default
        the index is right."""
        shutil.rmtree(self.model, ignore_errors=True)
        write_folder(self.model, tensors, config)
        if shards is None:
            return
        (self.model / "model.safetensors").unlink()
        for name, shard in shards.items():
            save_file(shard, self.model / name)
        right = {tensor: name for name, shard in shards.items() for tensor in shard}
        index = json.dumps({"weight_map": {**right, **(index or {})}})
        (self.model / "model.safetensors.index.json").write_text(index)

    def shards(self):
        tensors = model_tensors()
        norm = {_NORM: tensors.pop(_NORM)}
        return {"model-1.safetensors": tensors, "model-2.safetensors": norm}

    def remove_from_index(self, tensor):
        path = self.model / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        del index["weight_map"][tensor]
        path.write_text(json.dumps(index))

    def test_good_folders(self):
        self.write()
        self.assert_both_accept()
        self.write(model_tensors(tied=False), {**CONFIG, "tie_word_embeddings": False})
        self.assert_both_accept()
        self.write(shards=self.shards())
        self.assert_both_accept()

    def test_rotary_frequencies_are_skipped_anywhere(self):
        for name in (
            "model.rotary_emb.inv_freq",
            "rotary_emb.inv_freq",
            "model.layers.1.self_attn.rotary_emb.inv_freq",
            "model.layers.77.self_attn.rotary_emb.inv_freq",
        ):
            for values in (_FREQUENCIES, _FREQUENCIES.astype("i8"), _FREQUENCIES[:0]):
                with self.subTest(f"{name} {values.dtype} {len(values)}"):
                    self.write({**model_tensors(), name: values})
                    self.assert_both_accept()

    def test_rotary_frequencies_that_the_index_and_the_shards_disagree_about(self):
        name = "model.rotary_emb.inv_freq"
        shards = self.shards()
        shards["model-1.safetensors"][name] = _FREQUENCIES
        self.write(shards=shards)
        self.remove_from_index(name)
        self.assert_both_accept()
        shards["model-2.safetensors"][name] = _FREQUENCIES
        self.write(shards=shards)
        self.assert_both_accept()
        self.write(shards=self.shards(), index={name: "model-1.safetensors"})
        self.assert_both_accept()
        self.write(shards=self.shards(), index={name: "missing.safetensors"})
        self.assert_both_accept()

    def test_other_tensors_that_the_model_does_not_have(self):
        for name in (
            "model.rotary_emb.inv_freqs",
            "model.rotary_emb.inv_freq.weight",
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.2.input_layernorm.weight",
            "x",
        ):
            with self.subTest(name):
                self.write({**model_tensors(), name: _FREQUENCIES})
                self.assert_both_refuse(name)
        tensors = model_tensors()
        del tensors[_NORM]
        self.write(tensors)
        self.assert_both_refuse(_NORM)

    def test_an_index_that_disagrees_with_its_shards(self):
        self.write(shards=self.shards())
        self.remove_from_index(_NORM)
        self.assert_both_refuse(_NORM)  # its shard is not read
        shards = self.shards()
        shards["model-2.safetensors"]["x"] = _FREQUENCIES
        self.write(shards=shards)
        self.remove_from_index("x")
        self.assert_both_refuse('model-2.safetensors: holds tensor "x"', _INDEX_CURE)
        self.write(shards=self.shards(), index={"x": "model-2.safetensors"})
        self.assert_both_refuse('model-2.safetensors: holds no tensor "x"', _INDEX_CURE)
        self.write(shards=self.shards(), index={_NORM: "model-1.safetensors"})
        self.assert_both_refuse(f'model-1.safetensors: holds no tensor "{_NORM}"', _INDEX_CURE)
        for name in ("../in/model-2.safetensors", "model-2", "", ".safetensors/"):
            with self.subTest(name):
                self.write(shards=self.shards(), index={_NORM: name})
                self.assert_both_refuse("index.json", _NORM)
        self.write(shards=self.shards(), index={_NORM: "other.safetensors"})
        self.assert_both_refuse("other.safetensors")

    def test_a_head_beside_tied_embeddings(self):
        tensors = model_tensors()
        head = tensors[_EMBEDDING].copy()
        self.write({**tensors, "lm_head.weight": head})
        self.assert_both_accept()
        head[3, 4] += 1
        self.write({**tensors, "lm_head.weight": head})
        self.assert_both_refuse("lm_head.weight")
        self.write({**tensors, "lm_head.weight": head[:-1].copy()})
        self.assert_both_refuse("lm_head.weight")

    def test_types_shapes_and_values(self):
        for values, accepted in (
            (numpy.ones(32, "f2"), True),
            (numpy.ones(32, "f8"), True),
            (numpy.ones(32, "i4"), False),
            (numpy.full(32, 1e39, "f8"), False),
            (numpy.ones(31, "f4"), False),
            (numpy.ones((32, 1), "f4"), False),
            (numpy.full(32, numpy.inf, "f4"), False),
        ):
            with self.subTest(f"{values.dtype} {values.shape} {values.flat[0]}"):
                self.write({**model_tensors(), _NORM: values})
                if accepted:
                    self.assert_both_accept()
                else:
                    self.assert_both_refuse(_NORM)

    def test_gpt2_with_and_without_its_prefix(self):
        for prefix in ("transformer.", ""):
            with self.subTest(prefix):
                tensors = gpt2_tensors(prefix)
                self.write(tensors, GPT2_CONFIG)
                self.assert_both_accept()
                imported = load_file(self.folder / "out/model.safetensors")
                self.assertEqual(sorted(imported), sorted(tensors))  # the names stay
                for missing in ("h.1.attn.c_attn.bias", "wpe.weight"):
                    rest = {**tensors}
                    del rest[prefix + missing]
                    self.write(rest, GPT2_CONFIG)
                    self.assert_both_refuse(prefix + missing)
                head = tensors[f"{prefix}wte.weight"].copy()  # has no prefix in either
                self.write({**tensors, "lm_head.weight": head}, GPT2_CONFIG)
                self.assert_both_accept()
        mixed = {**gpt2_tensors(), "ln_f.bias": numpy.ones(32, "f4")}
        self.write(mixed, GPT2_CONFIG)
        self.assert_both_refuse("ln_f.bias")
        untied = {**gpt2_tensors(""), "lm_head.weight": numpy.ones((268, 32), "f4")}
        self.write(untied, {**GPT2_CONFIG, "tie_word_embeddings": False})
        self.assert_both_accept()

    def test_gpt2s_masks_are_skipped_and_matrices_are_inputs_by_outputs(self):
        mask = numpy.tril(numpy.ones((1, 1, 128, 128), "f4"))
        for prefix in ("transformer.", ""):
            for name, values in (
                ("h.0.attn.bias", mask),
                ("h.77.attn.bias", mask.astype("u1")),
                ("h.1.attn.masked_bias", numpy.array(-1e4, "f4")),
            ):
                with self.subTest(prefix + name):
                    self.write({**gpt2_tensors(prefix), prefix + name: values}, GPT2_CONFIG)
                    self.assert_both_accept()
            name = f"{prefix}h.0.attn.c_attn.weight"
            tensors = gpt2_tensors(prefix)
            tensors[name] = tensors[name].T.copy()
            self.write(tensors, GPT2_CONFIG)
            self.assert_both_refuse(name)

    def test_qwen2s_biases(self):
        config = {**CONFIG, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
        biases = {
            f"model.layers.{layer}.self_attn.{part}_proj.bias": numpy.ones(width, "f4")
            for layer in range(2)
            for part, width in (("q", 32), ("k", 16), ("v", 16))
        }
        self.write({**model_tensors(), **biases}, config)
        self.assert_both_accept()
        for part in ("q", "k", "v"):
            name = f"model.layers.1.self_attn.{part}_proj.bias"
            rest = {**model_tensors(), **biases}
            del rest[name]
            self.write(rest, config)
            self.assert_both_refuse(name)
        other = "model.layers.0.self_attn.o_proj.bias"
        self.write({**model_tensors(), **biases, other: numpy.ones(32, "f4")}, config)
        self.assert_both_refuse(other)

    def change_tokenizer(self, change):
        self.write()
        path = self.model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        change(tokenizer)
        path.write_text(json.dumps(tokenizer))

    def add_tokens(self, *contents, number=None):
        options = dict.fromkeys(("special", "normalized", "lstrip", "rstrip", "single_word"), False)

        def change(tokenizer):
            for content in contents:
                token = {"id": 268 if number is None else number, "content": content, **options}
                tokenizer["added_tokens"].append(token)

        self.change_tokenizer(change)

    def test_an_added_token_at_vocab_size(self):
        self.write()
        path = str(self.model / "tokenizer.json")
        tokenizer = Tokenizer.from_file(path)
        tokenizer.add_tokens([AddedToken("<new>")])
        tokenizer.save(path)
        self.assert_both_refuse(
            'in/tokenizer.json: gives "<new>" the id 268; config.json has a vocab_size of 268: make'
            " the model's embeddings larger (in transformers: model.resize_token_embeddings(269),"
            " then save_pretrained), or take the token out of tokenizer.json"
        )

    def test_other_tokens_at_vocab_size_and_beyond(self):
        self.add_tokens("<a>", "<b>", "<a>", "", "<c>")
        self.assert_both_refuse('gives "<c>" the id 270', "resize_token_embeddings(271)")
        self.add_tokens("<a>", number=3)  # tokenizers gives it the next id, whatever the file says
        self.assert_both_refuse('gives "<a>" the id 268')
        self.add_tokens("a", number=9999)  # that of the vocabulary
        self.assert_both_accept()
        self.change_tokenizer(lambda t: t["model"]["vocab"].update({"zz": 268}))
        self.assert_both_refuse('gives "zz" the id 268')

        def unigram(tokenizer):
            tokenizer["added_tokens"] = []
            tokenizer["model"] = {"type": "Unigram", "unk_id": 0, "byte_fallback": False}
            tokenizer["model"]["vocab"] = [[f"t{number}", -1.0] for number in range(269)]

        self.change_tokenizer(unigram)
        self.assert_both_refuse('gives "t268" the id 268')

    def test_files_that_are_no_tokenizer(self):
        for text in ("", "{", "[]", "{}", '{"model": {"vocab": {"a": -1}}}', '"model"'):
            with self.subTest(text):
                self.write()
                (self.model / "tokenizer.json").write_text(text)
                self.assert_both_refuse("in/tokenizer.json: ")

    def test_a_model_with_room_for_more_tokens(self):
        tensors = model_tensors()
        tensors[_EMBEDDING] = numpy.concatenate([tensors[_EMBEDDING], numpy.ones((1, 32), "f4")])
        self.write(tensors, {**CONFIG, "vocab_size": 269})
        self.assert_both_accept()


if __name__ == "__main__":
    unittest.main()
