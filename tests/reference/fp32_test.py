# SPDX-License-Identifier: Apache-2.0
"""Compares training in fp32 with PyTorch: losses, gradients, clipping, AdamW and the schedule, step for step."""

import unittest

import torch

from models import SHAPE_NAMES, Windows, open_model, read_weights
from recipe import Recipe, backward, run_spillway, run_torch
from reference_case import ReferenceCase, differences, gradients_of_first_step


class Gradients(ReferenceCase):
    def check(self, shape, **options):
        model, data = self.make(shape)
        recipe = Recipe(steps=1, betas=(0, 0), eps=1, lr=10, weight_decay=0, clip=0, **options)
        result = run_spillway(recipe, model, data, self.folder / "out")
        network = open_model(model)
        loss = backward(network, Windows(data, recipe.sequence), recipe)
        self.assert_near(result.log[0]["loss"], loss, 1e-4, "loss")
        expected = {name: parameter.grad for name, parameter in network.named_parameters()}
        self.assert_tensors_agree(gradients_of_first_step(recipe, result, read_weights(model)), expected, 1e-4,
                                  "gradient")

    def test_one_token(self):
        self.check("untied_grouped", sequence=1, batch=1)

    def test_long_window(self):
        self.check("tied_one_kv_head", sequence=200, batch=1)

    def test_without_checkpointing(self):
        self.check("untied_grouped", extra=("--checkpoint-activations", "off"))

    def test_through_the_tiers(self):
        self.check("many_tiles", extra=("--device-bytes", "4MiB", "--pinned-bytes", "8MiB", "--page-bytes", "64KiB",
                                        "--store", self.folder / "store"))


class Steps(ReferenceCase):
    def check(self, shape, recipe, tolerance=1e-4):
        model, data = self.make(shape)
        result = run_spillway(recipe, model, data, self.folder / "out")
        expected = run_torch(recipe, model, data)
        self.assert_logs_agree(result.log, expected.log)
        before = read_weights(model)
        self.assert_tensors_agree(differences(result.weights, before), differences(expected.weights, before),
                                  tolerance, "change")

    # With a small epsilon, AdamW updates an element whose gradient is only rounding error as much as any other. A larger
    # epsilon prevents that.
    def test_warm_up_and_cosine(self):
        self.check("untied_grouped", Recipe(steps=10, warmup_steps=3, schedule="cosine", eps=1e-4), 1e-3)

    def test_clipping_far_below_the_norm(self):
        self.check("tied_all_kv_heads", Recipe(clip=0.01, eps=1e-6), 1e-3)

    def test_no_clipping(self):
        self.check("tied_one_kv_head", Recipe(clip=0, eps=1e-4), 1e-3)

    def test_weight_decay_alone_shrinks_every_parameter(self):
        """With an epsilon far larger than the gradient, only the decay remains. It applies to norms and embeddings too."""
        recipe = Recipe(steps=3, lr=1e-2, weight_decay=1.0, clip=1e-6, eps=1.0)
        self.check("untied_narrow_heads", recipe, 1e-4)
        model = self.folder / "untied_narrow_heads" / "model"
        for name, weight in read_weights(model).items():
            shrunk = read_weights(self.folder / "out" / "model")[name]
            torch.testing.assert_close(shrunk, weight * 0.99**3, rtol=1e-5, atol=1e-7, msg=name)

    def test_text_shorter_than_the_run(self):
        """When the text ends, windows begin again at its start."""
        model, data = self.make("one_head", tokens=100)
        recipe = Recipe(steps=9, sequence=33, batch=1, eps=1e-4)
        result = run_spillway(recipe, model, data, self.folder / "out")
        self.assert_logs_agree(result.log, run_torch(recipe, model, data).log)

    def test_default_epsilon(self):
        self.check("tied_one_kv_head", Recipe(steps=4, lr=1e-4), 5e-3)


def add_shape_tests():
    for shape in SHAPE_NAMES:
        setattr(Gradients, f"test_{shape}", lambda self, shape=shape: self.check(shape))
        setattr(Steps, f"test_{shape}", lambda self, shape=shape: self.check(shape, Recipe(eps=1e-4), 1e-3))


add_shape_tests()

if __name__ == "__main__":
    unittest.main()
