# SPDX-License-Identifier: Apache-2.0
"""Shared by the reference tests: a folder for each test, and comparisons whose messages tell the difference."""

import pathlib
import tempfile
import unittest

from models import SHAPE_NAMES, make_data, make_family_model, make_model, vocab_size


class ReferenceCase(unittest.TestCase):
    seed = 1  # of the families' shapes

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spillway-reference-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make(self, shape, tokens=4096):
        """Makes a model of that shape and tokens for it. Returns the model's folder and the data's folder."""
        model, data = self.folder / shape / "model", self.folder / shape / "data"
        if shape in SHAPE_NAMES:
            make_model(shape, model)
        else:
            make_family_model(shape, model, self.seed)
        make_data(data, vocab_size(model), tokens)
        return model, data

    def assert_near(self, actual, expected, tolerance, what):
        """`tolerance` is relative to `expected`."""
        self.assertLessEqual(abs(actual - expected), tolerance * abs(expected),
                             f"{what}: {actual!r}, PyTorch has {expected!r}")

    def assert_logs_agree(self, spillway, torch_log, loss_tolerance=1e-4, norm_tolerance=1e-4):
        self.assertEqual([line["step"] for line in spillway], [line["step"] for line in torch_log])
        for line, expected in zip(spillway, torch_log):
            self.assert_near(line["loss"], expected["loss"], loss_tolerance, f"loss of step {line['step']}")
            self.assert_near(line["lr"], expected["lr"], 1e-12, f"learning rate of step {line['step']}")
            if not line["skipped"]:
                self.assert_near(line["grad_norm"], expected["grad_norm"], norm_tolerance,
                                 f"grad_norm of step {line['step']}")

    def assert_tensors_agree(self, actual, expected, tolerance, what):
        """Both must have the same names. For each tensor, |actual - expected| in the 2-norm must be at most `tolerance`
        times |expected| plus a millionth of the norm of all tensors together. The latter is for tensors that are zero in
        exact arithmetic, such as a query's gradient if there is only one key."""
        self.assertEqual(sorted(actual), sorted(expected))
        norms = {name: wanted.double().norm().item() for name, wanted in expected.items()}
        rounding = 1e-6 * sum(norm**2 for norm in norms.values()) ** 0.5
        for name, wanted in expected.items():
            self.assertEqual(actual[name].shape, wanted.shape, name)
            error = (actual[name].double() - wanted.double()).norm().item()
            self.assertLessEqual(error, tolerance * norms[name] + rounding,
                                 f"{what} of {name}: differs by {error:.3g} of {norms[name]:.3g}")


def differences(after, before):
    return {name: after[name].double() - before[name].double() for name in after}


def gradients_of_first_step(recipe, result, before):
    """Returns the gradients g. AdamW without decay, with both betas 0 and an epsilon of 1, moves a weight by
    -lr * g / (|g| + 1), from which g follows."""
    gradients = {}
    for name, change in differences(result.weights, before).items():
        moved = -change / recipe.lr
        gradients[name] = moved / (1 - moved.abs())
    return gradients
