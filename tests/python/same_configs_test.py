# SPDX-License-Identifier: Apache-2.0
"""The command and the helpers say the same of a config.json that is wrong, and the command exits with 1.

The configs are drawn from SPILLWAY_TEST_SEED: good ones of every model type with keys missing, of wrong types, contradictory
or at their limits, and with faults in the JSON itself. SPILLWAY_COMMAND names the command `spillway`.
"""

import json
import os
import random
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy

from spillway_tools.command import InputError
from spillway_tools.model_config import check_config
from spillway_tools.source_file import read_text
from spillway_tools.strict_json import parse_json
from tool_testing import draw_seed, tool_environment

_CASES = 150
_HF = Path(__file__).resolve().parents[1] / "hf/config_cases.json"
_VALUES = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 0.5, 1.0, 1e-5, 1e15, 1e16, 1.25e22, 2**31, 2**31 - 1, 2**63, 2**64 - 1, 5e-324),
    *("", "silu", "gelu_new", "llama", "ä\n\"\\\x7f", "x" * 200, [], [0], [0, None], {}, {"b": 1, "a": 2.5}),
    *({"rope_type": "linear", "factor": 2}, {"rope_type": "linear", "factor": 0}, {"type": "yarn"}, {"factor": 2}),
    *({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
       "original_max_position_embeddings": 8},),
    *(["full_attention"], ["full_attention", "sliding_attention"], ["sliding_attention"] * 2, ["chunked_attention"] * 2),
)
_KEYS = ("rope_scaling", "rope_parameters", "layer_types", "head_dim", "sliding_window", "use_sliding_window",
         "max_window_layers", "quantization_config", "attention_bias", "original_max_position_embeddings")
_TEXTS = ("01", "1e999", "NaN", "-", "nul", "-0", "-0.0", "9" * 4300, '"\\ud800"', '"\\ud83d\\ude00"', "[1,]", "{1:2}",
          '{"a":1,"a":2}', "[" * 70, "", '"\t"', '"open', "//")


def draw_config(draw, goods):
    """Returns the bytes of a config with up to three faults."""
    config = dict(draw.choice(goods))
    for _ in range(draw.randrange(4)):
        key = draw.choice((*config, *_KEYS))
        if draw.random() < 0.3:
            config.pop(key, None)
        else:
            config[key] = draw.choice(_VALUES)
    members = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in config.items()]
    if draw.random() < 0.2:
        members.insert(draw.randrange(len(members)), f'"{draw.choice(list(config))}": {draw.choice(_TEXTS)}')
    data = ("{" + ", ".join(members) + "}").encode()
    if draw.random() < 0.2:
        at = draw.randrange(len(data))
        data = data[:at] + bytes([draw.randrange(256)]) + data[at + draw.randrange(3):]
    return data


class SameConfigsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spillway-configs-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        numpy.save(self.folder / "valid.npy", numpy.arange(60, dtype="u2"))
        (self.folder / "meta.json").write_text('{"vocab_size": 61}')
        self.config = self.folder / "config.json"

    def refusal(self):
        """Returns what the helpers say of the config, or None."""
        try:
            check_config(parse_json(read_text(self.config, 1 << 24), str(self.config)), str(self.config))
        except InputError as error:
            return str(error)
        return None

    def assert_same(self, data):
        self.config.write_bytes(data)
        finished = subprocess.run(
            [os.environ["SPILLWAY_COMMAND"], "eval", "--model", self.folder, "--data", self.folder, "--seq", "1"],
            env=tool_environment(), capture_output=True, text=True, check=False, timeout=120)
        expected = self.refusal()
        if expected is None:
            self.assertNotIn("config.json", finished.stderr)
        else:
            self.assertEqual(finished.returncode, 1, finished.stderr)
            self.assertEqual(finished.stderr, f"spillway: {expected}\n")

    def test_random_configs(self):
        draw = random.Random(draw_seed())
        cases = json.loads(_HF.read_text(encoding="utf-8"))
        goods = [{**good, "num_hidden_layers": 2} if "num_hidden_layers" in good else {**good, "n_layer": 2}
                 for good in (cases["good"], *cases["others"].values())]
        for number in range(_CASES):
            data = draw_config(draw, goods)
            with self.subTest(number, config=data):
                self.assert_same(data)

    def test_what_is_said_of_some(self):
        for data, words in (
            (b'{"a" 1}', "is not valid JSON at byte 5"),
            (b'{"a": "\xff"}', "is not UTF-8: byte 0xff at offset 7"),
            (b"[1e999]", "holds the number 1e999, which is too large for a 64-bit float"),
            (b'{"model_type": "bert"}', 'model_type is "bert"; only "gpt2", "llama", "mistral", "qwen2" and "qwen3" are'),
        ):
            with self.subTest(data):
                self.assert_same(data)
                self.assertIn(words, self.refusal())


if __name__ == "__main__":
    unittest.main()
