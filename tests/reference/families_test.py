# SPDX-License-Identifier: Apache-2.0
"""Compares each row of the table of model types with transformers, in models of random odd sizes.

SPILLWAY_TEST_SEED repeats the sizes of a run that printed it. The installed transformers decides which families there are.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import torch
from safetensors.torch import save_file

from bf16_test import AutocastCase, norm
from models import FAMILY_NAMES, Windows, open_model, read_weights
from recipe import Recipe, backward, run_spillway, run_torch
from reference_case import ReferenceCase, differences, gradients_of_first_step

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from seed import draw_seed  # noqa: E402

SEQUENCE = 33
FIRST_GRADIENTS = {"steps": 1, "betas": (0, 0), "eps": 1, "lr": 10, "weight_decay": 0, "clip": 0}


@torch.no_grad()
def logits(folder, data):
    return open_model(folder)(Windows(data, SEQUENCE).take(2)[0]).logits


class Gradients(ReferenceCase):
    def check(self, name, **options):
        model, data = self.make(name)
        recipe = Recipe(**FIRST_GRADIENTS, **options)
        result = run_spillway(recipe, model, data, self.folder / "out")
        network = open_model(model)
        loss = backward(network, Windows(data, recipe.sequence), recipe)
        self.assert_near(result.log[0]["loss"], loss, 1e-4, "loss")
        expected = {name: parameter.grad for name, parameter in network.named_parameters()}
        self.assert_tensors_agree(gradients_of_first_step(recipe, result, read_weights(model)), expected, 1e-4,
                                  "gradient")

    def test_in_layer_order_without_checkpointing(self):
        self.check(FAMILY_NAMES[-1], accumulate=3, extra=("--accumulation-order", "layer", "--checkpoint-activations", "off"))

    def test_one_token(self):
        self.check(FAMILY_NAMES[-1], sequence=1, batch=1)


class Steps(ReferenceCase):
    """Four steps of AdamW, and an export with which transformers computes the same."""

    def check(self, name):
        model, data = self.make(name)
        recipe = Recipe(steps=4, eps=1e-4)
        result = run_spillway(recipe, model, data, self.folder / "out")
        expected = run_torch(recipe, model, data)
        self.assert_logs_agree(result.log, expected.log)
        before = read_weights(model)
        self.assert_tensors_agree(differences(result.weights, before), differences(expected.weights, before), 1e-3,
                                  "change")
        exported = self.folder / "out" / "model"
        evaluated = json.loads(self.spillway("eval", "--model", exported, "--data", data, "--seq", SEQUENCE,
                                             "--batches", 2, "--json"))
        inputs, targets = Windows(data, SEQUENCE).take(2)
        with torch.no_grad():
            outputs = open_model(exported)(inputs).logits
        loss = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten()).item()
        self.assert_near(evaluated["loss"], loss, 1e-4, "loss of the exported model")

    def check_unchanged(self, name):
        """Without a learning rate, the exported model is the one that was read."""
        model, data = self.make(name)
        run_spillway(Recipe(steps=1, lr=0), model, data, self.folder / "out")
        self.assertTrue(torch.equal(logits(self.folder / "out" / "model", data), logits(model, data)))

    def spillway(self, *words):
        finished = subprocess.run([os.environ["SPILLWAY_COMMAND"], *map(str, words)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(finished.returncode, 0, finished.stderr)
        return finished.stdout

    def test_names_without_a_prefix_stay(self):
        """The published GPT-2 has such names, and masks that are no parameters."""
        model, data = self.make("gpt2-new-tied")
        weights = read_weights(model)
        bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
        size = json.loads((model / "config.json").read_text())["n_positions"]
        buffers = {f"h.{layer}.attn.bias": torch.ones(1, 1, size, size).tril() for layer in range(2)}
        without = self.folder / "without"
        shutil.copytree(model, without)
        save_file({**bare, **buffers}, without / "model.safetensors", metadata={"format": "pt"})
        recipe = Recipe(steps=2)
        with_prefix = run_spillway(recipe, model, data, self.folder / "with_out")
        result = run_spillway(recipe, without, data, self.folder / "without_out")
        self.assertEqual(sorted(result.weights), sorted(bare))
        for name, tensor in with_prefix.weights.items():
            self.assertTrue(torch.equal(result.weights[name.removeprefix("transformer.")], tensor), name)
        self.assertTrue(torch.equal(logits(self.folder / "without_out" / "model", data),
                                    logits(self.folder / "with_out" / "model", data)))


class Budgets(ReferenceCase):
    """The smallest budgets, a stop with a resume and the other order change no bit."""

    def check(self, name):
        model, data = self.make(name)
        recipe = Recipe(steps=4, accumulate=2, precision="bf16")
        whole = run_spillway(recipe, model, data, self.folder / "whole")
        tight = ("--store", self.folder / "store", "--device-bytes", "1MiB", "--pinned-bytes", "2MiB", "--page-bytes",
                 "64KiB")
        for number, extra in enumerate((("--stop-after", 2, "--accumulation-order", "layer"),
                                        ("--resume", "--checkpoint-activations", "off"))):
            recipe = dataclasses.replace(recipe, extra=(*tight, *extra))
            parts = run_spillway(recipe, model, data, self.folder / f"part{number}")
        for key, weight in whole.weights.items():
            self.assertTrue(torch.equal(parts.weights[key], weight), key)


class Fp16(ReferenceCase):
    """The limits of fp16_amp_test.py, that of the change for all tensors together. A tensor whose gradient is a small
    difference has fewer digits."""

    def check(self, name):
        model, data = self.make(name)
        recipe = Recipe(steps=4, batch=4, eps=1e-4, lr=1e-3, precision="fp16-amp", extra=("--loss-scale", 1024.0))
        result = run_spillway(recipe, model, data, self.folder / "out")
        expected = run_torch(recipe, model, data)
        self.assertFalse(any(line["skipped"] for line in result.log))
        self.assert_logs_agree(result.log, expected.log, 2e-3, 1e-2)
        before = read_weights(model)
        ours, theirs = differences(result.weights, before), differences(expected.weights, before)
        self.assert_tensors_agree(ours, theirs, 0.15, "change")
        self.assertLessEqual(norm(differences(ours, theirs)), 0.03 * norm(theirs))


class Bf16(AutocastCase):
    def check(self, name):
        self.check_gradients(name, batch=6)  # one sample of rounding errors is too few in so small models


def add_tests():
    for name in FAMILY_NAMES:
        for case in (Gradients, Steps, Fp16, Bf16):
            setattr(case, f"test_{name}", lambda self, name=name: self.check(name))
        if name.endswith("-untied"):
            setattr(Budgets, f"test_{name}", lambda self, name=name: self.check(name))
        setattr(Steps, f"test_unchanged_{name}", lambda self, name=name: self.check_unchanged(name))


add_tests()

if __name__ == "__main__":
    ReferenceCase.seed = draw_seed()
    unittest.main()
