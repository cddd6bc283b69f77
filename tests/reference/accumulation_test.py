# SPDX-License-Identifier: Apache-2.0
"""Sixteen micro-batches of four windows give the same results as one batch of 64, except for rounding."""

import dataclasses
import unittest

from models import read_weights
from recipe import Recipe, run_spillway, run_torch
from reference_case import ReferenceCase, differences

WHOLE = Recipe(steps=3, sequence=17, batch=64, accumulate=1, eps=1e-4)


class Accumulation(ReferenceCase):
    def check(self, recipe, loss_tolerance, tolerance):
        model, data = self.make("untied_grouped")
        whole = run_spillway(recipe, model, data, self.folder / "whole")
        parts = run_spillway(dataclasses.replace(recipe, batch=4, accumulate=16), model, data, self.folder / "parts")
        expected = run_torch(WHOLE, model, data)
        before = read_weights(model)
        self.assert_logs_agree(parts.log, whole.log, loss_tolerance, tolerance)
        for result in (whole, parts):
            self.assert_logs_agree(result.log, expected.log, loss_tolerance, tolerance)
            self.assert_tensors_agree(differences(result.weights, before), differences(expected.weights, before),
                                      10 * tolerance, "change")

    def test_fp32(self):
        self.check(WHOLE, 1e-5, 1e-4)

    def test_fp16_amp_with_fp32_gradients(self):
        self.check(dataclasses.replace(WHOLE, precision="fp16-amp", extra=("--grad-dtype", "fp32")), 1e-3, 1e-2)

    def test_fp16_amp_with_fp16_gradients(self):
        self.check(dataclasses.replace(WHOLE, precision="fp16-amp"), 1e-3, 1e-2)


if __name__ == "__main__":
    unittest.main()
