# SPDX-License-Identifier: Apache-2.0
"""Compares each row of the table of model types with transformers, in models of random odd sizes.

SPILLWAY_TEST_SEED repeats the sizes of a run that printed it. The installed transformers decides which families there are.
"""

import dataclasses
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import unittest

import torch
from safetensors.torch import save_file

from bf16_test import AutocastCase, norm
from models import FAMILY_NAMES, Windows, open_model, read_weights
from recipe import Recipe, backward, kill_spillway, run_spillway, run_torch
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
    """Tight budgets, a kill with a resume and the other order change no bit, in a precision that the seed draws."""

    def check(self, name):
        model, data = self.make(name)
        draw = random.Random(f"{self.seed} {name} killed")
        recipe = Recipe(steps=1_000_000, accumulate=2, precision=draw.choice(("fp32", "fp16-amp", "bf16")))
        tight = ("--store", self.folder / "store", "--device-bytes", "1MiB", "--pinned-bytes", "2MiB", "--page-bytes",
                 "64KiB")
        orders = [("--accumulation-order", "layer"), ("--checkpoint-activations", "off")]
        draw.shuffle(orders)
        killed = kill_spillway(dataclasses.replace(recipe, extra=(*tight, *orders[0], "--commit-every", 1)), model, data,
                               self.folder / "killed", lines=draw.choice((2, 3)))
        recipe = dataclasses.replace(recipe, steps=len(killed) + 3)
        resumed = run_spillway(dataclasses.replace(recipe, extra=(*tight, *orders[1], "--resume")), model, data,
                               self.folder / "resumed")
        whole = run_spillway(recipe, model, data, self.folder / "whole")
        # A step's line is written before its commit, and the next line after it.
        self.assertIn(resumed.log[0]["step"], (len(killed), len(killed) + 1))
        for line in killed + resumed.log:
            expected = whole.log[line["step"] - 1]
            for key in ("loss", "grad_norm", "loss_scale", "skipped"):
                self.assertEqual(line[key], expected[key], f"{key} of step {line['step']}, {recipe.precision}")
        for key, weight in whole.weights.items():
            self.assertTrue(torch.equal(resumed.weights[key], weight), f"{key}, {recipe.precision}")


LOSS_SCALE = 1024.0


def shaken(tensor):
    """Returns fp16 values near the fp32 ones: each element is moved by up to half a unit before it is rounded."""
    shift = torch.finfo(torch.float16).eps / 4 * (2 * torch.rand_like(tensor) - 1)
    return (tensor * (1 + shift)).half().float()


class InHalf(torch.autograd.Function):
    """Rounds a value, and its gradient times the loss scale, to fp16."""

    @staticmethod
    def forward(ctx, value):
        return shaken(value)

    @staticmethod
    def backward(ctx, gradient):
        return shaken(gradient * LOSS_SCALE) / LOSS_SCALE


def round_output(module, inputs, output):
    return InHalf.apply(output) if isinstance(output, torch.Tensor) else output


def train_in_half(recipe, model, data):
    """Trains with PyTorch, and rounds weights, their gradients and the results of modules to fp16, at random where values
    lie between two. Returns the weights, which are kept in fp32."""
    network, windows = open_model(model), Windows(data, recipe.sequence)
    for module in network.modules():
        if not list(module.children()):
            module.register_forward_hook(round_output)
    masters = {name: torch.nn.Parameter(weight.detach().clone()) for name, weight in network.named_parameters()}
    optimizer = torch.optim.AdamW(masters.values(), lr=recipe.lr, betas=recipe.betas, eps=recipe.eps,
                                  weight_decay=recipe.weight_decay)
    for _ in range(recipe.steps):
        for name, weight in network.named_parameters():
            weight.data.copy_(masters[name].detach().half())
        backward(network, windows, recipe)
        for name, weight in network.named_parameters():
            masters[name].grad = shaken(weight.grad * LOSS_SCALE) / LOSS_SCALE
        torch.nn.utils.clip_grad_norm_(masters.values(), recipe.clip)
        optimizer.step()
    return {name: weight.detach() for name, weight in masters.items()}


class Fp16(ReferenceCase):
    """The limits of fp16_amp_test.py: all tensors together, and each tensor, change as in fp32 to 0.03.

    Some gradients have fewer digits than that, because they are small differences of large terms. Such is that of a key's
    bias. It moves all scores of a query almost alike, and what moves them alike changes no probability; and AdamW moves an
    element whose gradient is nearly 0 as far as others. The limit of a tensor that is further than 0.03 from fp32 is four
    times the distance of PyTorch's own training with values in fp16, the root mean square of runs that round at random.
    Distances of a few elements differ by as much. All tensors together must not be much further than PyTorch's.
    """

    def train(self, name):
        """Returns the change of each tensor, that of PyTorch in fp32, and a function that returns PyTorch's in fp16."""
        model, data = self.make(name)
        recipe = Recipe(steps=4, batch=4, eps=1e-4, lr=1e-3, precision="fp16-amp", extra=("--loss-scale", LOSS_SCALE))
        result = run_spillway(recipe, model, data, self.folder / "out")
        expected = run_torch(recipe, model, data)
        self.assertFalse(any(line["skipped"] for line in result.log))
        self.assert_logs_agree(result.log, expected.log, 2e-3, 1e-2)
        before = read_weights(model)
        torch.manual_seed(self.seed % (1 << 63))
        return (differences(result.weights, before), differences(expected.weights, before),
                lambda: differences(train_in_half(recipe, model, data), before))

    def check(self, name):
        ours, theirs, in_half = self.train(name)
        self.assertEqual(sorted(ours), sorted(theirs))
        errors = differences(ours, theirs)
        self.assertLessEqual(norm(errors), 0.03 * norm(theirs))
        far = [key for key, wanted in theirs.items() if errors[key].norm() > 0.03 * wanted.norm()]
        samples = [differences(in_half(), theirs) for _ in range(4)] if far else []
        for key in far:
            limit = 4 * norm({number: sample[key] for number, sample in enumerate(samples)}) / len(samples) ** 0.5
            self.assertLessEqual(errors[key].norm().item(), limit, f"change of {key}: of {theirs[key].norm().item():.3g}")

    def test_all_tensors_are_as_near_as_those_of_pytorch_in_fp16(self):
        ours, theirs, in_half = self.train("qwen2-full-untied")
        distance = norm(differences(in_half(), theirs))
        self.assertGreater(distance, 0)
        self.assertLessEqual(norm(differences(ours, theirs)), 1.5 * distance)


class Bf16(AutocastCase):
    def check(self, name):
        self.check_gradients(name, batch=6)  # one sample of rounding errors is too few in so small models

    def test_losses(self):
        """Takes the losses of all families together, as bf16_test.py takes those of all shapes."""
        of_families = [self.losses(name) for name in FAMILY_NAMES]
        self.assert_losses_within_autocast(*(torch.cat(losses) for losses in zip(*of_families)))


def add_tests():
    for name in FAMILY_NAMES:
        for case in (Gradients, Steps, Budgets, Fp16, Bf16):
            setattr(case, f"test_{name}", lambda self, name=name: self.check(name))
        setattr(Steps, f"test_unchanged_{name}", lambda self, name=name: self.check_unchanged(name))


add_tests()

if __name__ == "__main__":
    ReferenceCase.seed = draw_seed()
    unittest.main()
