# SPDX-License-Identifier: Apache-2.0
"""Sharded parameters train as with torch.optim, on ranks that gloo joins. ranks_grid_test.py has every way of sharding."""

import unittest

import ranks
import torch
from ranks_case import CLIP, RanksTest, bf16_shards, replaced


class NumbersTest(RanksTest):
    def test_losses_norms_and_weights_are_torchs(self):
        self.check(4, [("ddp", "AdamW", CLIP),
                       ("fsdp", "AdamW", {"train": {"clip": 0.5, "accumulate": 2}, "frozen": True}),  # some shards are empty
                       ("hsdp", "AdamW", {**CLIP, "ours": {"gradients": "engine"}}),
                       ("both", "AdamW", {"ours": {"update": "backward"}})])

    def test_bf16_shards_with_gradients_in_fp32_train_as_fp32_shards_do(self):
        for lower, whole in ranks.run(2, bf16_shards, self.store(), {}):
            self.assertEqual(lower[:-1], whole[:-1])
            for a, b in zip(lower[-1], whole[-1], strict=True):
                self.assertTrue(torch.equal(a, b))

    def test_parameters_that_are_replaced_before_the_first_step_are_taken_up(self):
        for more in ({}, {"update": "backward"}):
            for expected, losses, there in ranks.run(2, replaced, self.store(), more):
                self.assertEqual(there, [])
                for (a, _), (b, _) in zip(expected, losses, strict=True):
                    self.assertLess(abs(a - b), 1e-6)


if __name__ == "__main__":
    unittest.main()
