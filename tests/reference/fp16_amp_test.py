# SPDX-License-Identifier: Apache-2.0
"""Compares fp16-amp with PyTorch in fp32, and its loss scale with the rule of torch.cuda.amp.GradScaler.

GradScaler itself runs on a GPU only, so its documented rule is implemented here. An overflow skips the step, multiplies
the scale by the backoff factor and restarts the count of good steps. After `interval` good steps in a row, the scale is
multiplied by the growth factor, unless that would overflow.
"""

import math
import unittest

import torch

from models import Windows, open_model, read_weights
from recipe import Recipe, backward, run_spillway, run_torch
from reference_case import ReferenceCase, differences

LARGEST_HALF = 65504.0


class GradScalerRule:
    def __init__(self, scale=65536.0, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self._growth, self._backoff, self._interval = scale, growth, backoff, interval
        self._good_steps = 0

    def update(self, overflow):
        if overflow:
            self.scale *= self._backoff
            self._good_steps = 0
            return
        self._good_steps += 1
        if self._good_steps == self._interval:
            self._good_steps = 0
            if torch.tensor(self.scale * self._growth, dtype=torch.float32).isfinite():
                self.scale *= self._growth


def scaler_flags(scale, growth=2.0, backoff=0.5, interval=2000):
    return ("--loss-scale", scale, "--loss-scale-growth", growth, "--loss-scale-backoff", backoff,
            "--loss-scale-interval", interval)


class LossScale(ReferenceCase):
    def check(self, scale, steps, growth=2.0, backoff=0.5, interval=2000):
        """Trains, and checks the scale of every step against the rule. Returns the inputs and the result."""
        model, data = self.make("tied_one_kv_head")
        recipe = Recipe(steps=steps, batch=1, lr=1e-4, precision="fp16-amp",
                        extra=scaler_flags(scale, growth, backoff, interval))
        result = run_spillway(recipe, model, data, self.folder / "out")
        rule = GradScalerRule(scale, growth, backoff, interval)
        for line in result.log:
            self.assertEqual(line["loss_scale"], rule.scale, f"step {line['step']}")
            self.assertEqual(line["skipped"], line["grad_norm"] is None, f"step {line['step']}")
            rule.update(line["skipped"])
        return model, data, recipe, result

    def test_default_scale_does_not_overflow(self):
        result = self.check(65536.0, steps=4)[-1]
        self.assertFalse(any(line["skipped"] for line in result.log))

    def test_grows_after_good_steps_only(self):
        result = self.check(256.0, steps=10, growth=4.0, interval=3)[-1]
        scales = [line["loss_scale"] for line in result.log]
        self.assertEqual(scales, [256.0] * 3 + [1024.0] * 3 + [4096.0] * 3 + [16384.0])

    def test_halves_until_the_gradient_fits_and_grows_into_the_next_overflow(self):
        model, data, recipe, result = self.check(2.0**40, steps=60, interval=2)
        skipped = [line["skipped"] for line in result.log]
        first_good = skipped.index(False)
        self.assertTrue(all(skipped[:first_good]))
        self.assertGreater(first_good, 10)
        self.assertTrue(any(skipped[first_good:]), "the scale grew every other step and never overflowed again")
        self.check_overflow_is_the_gradients(model, data, recipe, result.log[: first_good + 1])

    def check_overflow_is_the_gradients(self, model, data, recipe, log):
        """No weight is updated before the first good step, so PyTorch computes the same gradients. Values inside the
        backward pass are larger than the largest gradient by a few powers of two at most."""
        network, windows = open_model(model), Windows(data, recipe.sequence)
        for line in log:
            backward(network, windows, recipe)
            largest = max(parameter.grad.abs().max().item() for parameter in network.parameters())
            scaled = largest * line["loss_scale"]
            if scaled > 1.01 * LARGEST_HALF:
                self.assertTrue(line["skipped"], f"step {line['step']}: a gradient of {scaled:g} fits no fp16")
            if scaled < LARGEST_HALF / 256:
                self.assertFalse(line["skipped"], f"step {line['step']}: no gradient exceeds {scaled:g}")

    def test_skipped_steps_change_nothing(self):
        model, _, _, result = self.check(2.0**100, steps=3)
        self.assertTrue(all(line["skipped"] for line in result.log))
        for name, weight in read_weights(model).items():
            self.assertTrue(torch.equal(result.weights[name], weight), name)

    def test_skipped_steps_do_not_count_as_updates(self):
        """AdamW's bias correction counts only updates. The windows and the schedule advance in skipped steps too."""
        model, data = self.make("untied_grouped")
        recipe = Recipe(steps=30, lr=1e-4, warmup_steps=40, eps=1e-5, precision="fp16-amp",
                        extra=scaler_flags(2.0**38, interval=1000))
        result = run_spillway(recipe, model, data, self.folder / "out")
        skip = {line["step"] - 1 for line in result.log if line["skipped"]}
        self.assertTrue(5 < len(skip) < 28, f"{len(skip)} of 30 steps were skipped")
        expected = run_torch(recipe, model, data, skip=skip)
        self.assert_logs_agree(result.log, expected.log, 2e-3, 1e-2)
        before = read_weights(model)
        self.assert_tensors_agree(differences(result.weights, before), differences(expected.weights, before), 0.05,
                                  "change")


class Numbers(ReferenceCase):
    def check(self, shape, tolerance=0.03, **options):
        model, data = self.make(shape)
        recipe = Recipe(steps=8, eps=1e-4, lr=1e-3, precision="fp16-amp", **options)
        result = run_spillway(recipe, model, data, self.folder / "out")
        expected = run_torch(recipe, model, data)
        self.assertFalse(any(line["skipped"] for line in result.log))
        self.assert_logs_agree(result.log, expected.log, 2e-3, 1e-2)
        before = read_weights(model)
        self.assert_tensors_agree(differences(result.weights, before), differences(expected.weights, before),
                                  tolerance, "change")

    def test_fp16_gradients(self):
        self.check("untied_grouped", extra=scaler_flags(1024.0))

    def test_fp32_gradients(self):
        self.check("untied_grouped", extra=(*scaler_flags(1024.0), "--grad-dtype", "fp32"))

    def test_tied(self):
        self.check("tied_one_kv_head", extra=scaler_flags(1024.0))

    def test_many_tiles(self):
        self.check("many_tiles_tied", extra=scaler_flags(1024.0))

    def test_without_checkpointing(self):
        self.check("tied_all_kv_heads", extra=(*scaler_flags(1024.0), "--checkpoint-activations", "off"))

    def test_the_norm_is_unscaled_before_clipping(self):
        self.check("tied_all_kv_heads", clip=0.05, extra=scaler_flags(4096.0))

    def test_master_weights_keep_what_fp16_would_round_away(self):
        """Updates of a millionth of the weight are rounded away in fp16 and add up in fp32."""
        model, data = self.make("tied_one_kv_head")
        recipe = Recipe(steps=8, lr=1e-7, weight_decay=0, clip=0, precision="fp16-amp", extra=scaler_flags(1024.0))
        result = run_spillway(recipe, model, data, self.folder / "out")
        changes = differences(result.weights, read_weights(model))
        largest = max(change.abs().max().item() for change in changes.values())
        self.assertTrue(math.isclose(largest, 8e-7, rel_tol=0.5), largest)


if __name__ == "__main__":
    unittest.main()
