# SPDX-License-Identifier: Apache-2.0
"""Compares bf16 with PyTorch's bf16 autocast. The limits derive from the distance of autocast from PyTorch in fp32.

Spillway's bf16 must not be much further from fp32 than autocast is. Its distance from autocast must be at most the root
of the sum of the squares of both distances from fp32. That is the distance of two bf16 computations whose rounding errors
are independent. Without AVX-512, PyTorch 1.13's autocast rounds sums of products more often than with it. It is then up
to five times as far from fp32 as Spillway is, and Spillway is 1.00 times as far from autocast as fp32 is.

Autocast keeps weights in fp32, and rounds the weights of products when it uses them. Spillway computes with the same
numbers in two cases: if bf16 holds the weights exactly, as in most published models, or if the other weights (norms and
embeddings) are kept in fp32. One loss is one sample of rounding errors. So distances are 2-norms over many: the losses
of many windows with unchanged weights, and all elements of all gradients.
"""

import contextlib
import math
import unittest

import torch

from models import SHAPE_NAMES, Windows, open_model, read_weights
from recipe import THREADS, Recipe, run_spillway
from reference_case import ReferenceCase, differences, gradients_of_first_step


def torch_loss(network, windows, recipe, is_autocast):
    """Returns the mean loss of the next windows, as a tensor that can be differentiated."""
    torch.set_num_threads(THREADS)
    inputs, targets = windows.take(recipe.batch)
    with torch.autocast("cpu", torch.bfloat16) if is_autocast else contextlib.nullcontext():
        logits = network(inputs).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@torch.no_grad()
def torch_losses(recipe, model, data, is_autocast):
    """Returns the loss of each step's windows, all with the initial weights."""
    network, windows = open_model(model), Windows(data, recipe.sequence)
    losses = [torch_loss(network, windows, recipe, is_autocast) for _ in range(recipe.steps)]
    return torch.stack(losses).double()


def torch_gradients(recipe, model, data, is_autocast):
    network = open_model(model)
    torch_loss(network, Windows(data, recipe.sequence), recipe, is_autocast).backward()
    return {name: parameter.grad for name, parameter in network.named_parameters()}


def round_weights(model):
    """Rounds the weights on disk to bf16. They are still stored as fp32."""
    open_model(model).bfloat16().float().save_pretrained(model)


def norm(tensors):
    """Returns the 2-norm over all tensors together."""
    return sum(tensor.double().norm().item() ** 2 for tensor in tensors.values()) ** 0.5


# Spillway rounds products with weights, their operands and saved values. Autocast rounds attention's scores and
# probabilities, the logits and the backward pass as well.
MORE_FROM_FP32 = 1.2


class AutocastCase(ReferenceCase):
    def assert_within_autocast(self, what, ours_to_fp32, ours_to_autocast, autocast_to_fp32):
        print(f"{what}: autocast to fp32 {autocast_to_fp32:.3g}; ours to fp32 {ours_to_fp32 / autocast_to_fp32:.3f} "
              f"of that, ours to autocast {ours_to_autocast / autocast_to_fp32:.3f}")
        self.assertGreater(ours_to_fp32, 0)
        self.assertLessEqual(ours_to_autocast, math.hypot(autocast_to_fp32, ours_to_fp32), f"{what}: ours to autocast")
        self.assertLessEqual(ours_to_fp32, MORE_FROM_FP32 * autocast_to_fp32, f"{what}: ours to fp32")

    def make_inputs(self, shape, is_rounded):
        model, data = self.make(shape)
        if is_rounded:
            round_weights(model)
        return model, data

    def losses(self, shape, is_rounded=True, **options):
        """Returns Spillway's losses, PyTorch's in fp32, and autocast's."""
        model, data = self.make_inputs(shape, is_rounded)
        recipe = Recipe(steps=60, lr=0, precision="bf16", **options)
        result = run_spillway(recipe, model, data, self.folder / shape / "out")
        ours = torch.tensor([line["loss"] for line in result.log], dtype=torch.float64)
        return ours, torch_losses(recipe, model, data, False), torch_losses(recipe, model, data, True)

    def assert_losses_within_autocast(self, ours, exact, autocast):
        self.assert_within_autocast("losses", (ours - exact).norm().item(), (ours - autocast).norm().item(),
                                    (autocast - exact).norm().item())

    def check_gradients(self, shape, is_rounded=True, **options):
        model, data = self.make_inputs(shape, is_rounded)
        recipe = Recipe(steps=1, betas=(0, 0), eps=1, lr=10, weight_decay=0, clip=0, precision="bf16", **options)
        result = run_spillway(recipe, model, data, self.folder / "out")
        ours = gradients_of_first_step(recipe, result, read_weights(model))
        exact = torch_gradients(recipe, model, data, False)
        autocast = torch_gradients(recipe, model, data, True)
        self.assert_within_autocast("gradients", norm(differences(ours, exact)), norm(differences(ours, autocast)),
                                    norm(differences(autocast, exact)))


class AgainstAutocast(AutocastCase):
    def test_losses(self):
        """Takes the losses of all shapes together, because sixty losses of one shape give such a distance only to a tenth."""
        of_shapes = [self.losses(shape) for shape in SHAPE_NAMES]
        self.assert_losses_within_autocast(*(torch.cat(losses) for losses in zip(*of_shapes)))

    def test_losses_of_weights_that_bf16_does_not_hold(self):
        self.assert_losses_within_autocast(
            *self.losses("untied_grouped", is_rounded=False, extra=("--fp32", "*norm*,*embed*")))

    def test_gradients_of_weights_that_bf16_does_not_hold(self):
        self.check_gradients("untied_grouped", is_rounded=False, extra=("--fp32", "*norm*,*embed*"))

    def test_gradients_without_checkpointing_in_fp32(self):
        self.check_gradients("many_tiles_tied", extra=("--grad-dtype", "fp32", "--checkpoint-activations", "off"))


def add_shape_tests():
    for shape in SHAPE_NAMES:
        setattr(AgainstAutocast, f"test_gradients_{shape}", lambda self, shape=shape: self.check_gradients(shape))


add_shape_tests()

if __name__ == "__main__":
    unittest.main()
