# SPDX-License-Identifier: Apache-2.0
"""Python and C++ accept the same config.json files: both tests read tests/hf/config_cases.json."""

import json
import unittest
from pathlib import Path

from spillway_tools.command import InputError
from spillway_tools.model_config import check_config
from spillway_tools.strict_json import parse_json

_CASES = json.loads(
    (Path(__file__).resolve().parents[1] / "hf/config_cases.json").read_text(encoding="utf-8")
)


def case_text(case):
    """Returns the file that a case describes, with the values as the case spells them."""
    if "text" in case:
        return case["text"]
    good = _CASES["others"][case["of"]] if "of" in case else _CASES["good"]
    config = {key: json.dumps(value) for key, value in good.items()}
    config.update(case["set"])
    return "{" + ",".join(f'"{key}":{text}' for key, text in config.items() if text) + "}"


def refusal(text):
    """Returns what is wrong with the config, or None."""
    try:
        check_config(parse_json(text, "config.json"), "config.json")
    except InputError as error:
        return str(error)
    return None


class ModelConfigTest(unittest.TestCase):
    def test_every_case_is_judged_as_in_cpp(self):
        self.assertGreater(len(_CASES["cases"]), 400)
        for case in _CASES["cases"]:
            with self.subTest(str(case)[:200]):
                message = refusal(case_text(case))
                self.assertEqual(message is None, case["accepted"], message)

    def test_a_refusal_names_the_file_the_key_and_the_value(self):
        for case in _CASES["cases"]:
            message = refusal(case_text(case))
            if message is None:
                continue
            with self.subTest(str(case)[:200]):
                self.assertTrue(message.startswith("config.json: "), message)
                self.assertLess(len(message), 400)

    def test_what_a_refusal_says(self):
        good = {key: json.dumps(value) for key, value in _CASES["good"].items()}
        for key, text, words in (
            ("rms_norm_eps", "0", "rms_norm_eps is 0; a positive number is expected"),
            ("rms_norm_eps", "NaN", "is not valid JSON at byte"),
            ("tie_word_embeddings", '"no"', 'tie_word_embeddings is "no"; true or false'),
            ("vocab_size", "", "vocab_size is missing; a whole number from 1 to 2147483647"),
            ("head_dim", "9" * 4300, "999…, which is too large for a 64-bit float"),
            ("num_hidden_layers", "2147483647", "a whole number from 1 to 100000 is expected"),
            ("vocab_size", '1,"vocab_size":1', 'holds the name "vocab_size" twice'),
        ):
            with self.subTest(key + text[:20]):
                self.assertIn(words, refusal(case_text({"set": {**good, key: text}})))


if __name__ == "__main__":
    unittest.main()
