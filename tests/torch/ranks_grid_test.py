# SPDX-License-Identifier: Apache-2.0
"""Every way of sharding parameters, and what else a step may have, against torch.optim, on 2 and 4 ranks that gloo joins."""

import unittest

import ranks
import torch
from ranks_case import CLIP, RanksTest, adapters, bf16_shards, compact, scaled

ACCUMULATED = {"train": {"clip": 0.5, "accumulate": 2}}
ENGINE, BACKWARD = {"ours": {"gradients": "engine"}}, {"ours": {"update": "backward"}}
WAYS = ("fsdp", "kept", "mixed", "cpu", "hsdp")  # in which clip_grad_norm_ takes all parameters together


class GridTest(RanksTest):
    def test_every_way_of_sharding(self):
        for count in (2, 4):
            self.check(count, [(way, "AdamW", CLIP) for way in ("ddp", *WAYS)] + [("tp", "AdamW", {}), ("both", "AdamW", {})])

    def test_what_else_a_step_may_have(self):
        for count in (2, 4):
            cases = [(way, "AdamW", {**ACCUMULATED, **more}) for way in WAYS for more in ({"frozen": True}, ENGINE)]
            cases += [(way, "AdamW", more) for way in ("tp", "both") for more in (ENGINE, BACKWARD, {"frozen": True})]
            cases += [(way, "AdamW", {**BACKWARD, "train": {"clip": torch.inf}}) for way in WAYS]
            self.check(count, cases)

    def test_every_rule_that_updates_each_element_by_itself(self):
        rules = [("Adam", {}), ("AdamW", {"amsgrad": True, "maximize": True, "lr": 1e-3}), ("SGD", {}),
                 ("SGD", {"momentum": 0.9, "dampening": 0.1}), ("SGD", {"momentum": 0.9, "nesterov": True}),
                 ("RMSprop", {"momentum": 0.5, "lr": 1e-3}), ("RMSprop", {"centered": True, "lr": 1e-3})]
        for count in (2, 4):
            self.check(count, [("fsdp", rule, {**CLIP, "both": both}) for rule, both in rules])

    def test_state_formats(self):
        for count in (2, 4):
            cases = [("fsdp", "AdamW", {**CLIP, **more, "ours": {"state_format": name}, "most": most})
                     for name, most in (("bf16", 1e-2), ("8bit", 5e-2)) for more in ({}, {"frozen": True})]
            cases += [(way, "AdamW", {**more, "ours": {"state_format": "8bit"}, "most": 5e-2})
                      for way, more in (("hsdp", CLIP), ("tp", {}), ("both", {}))]
            self.check(count, cases)

    def test_compact_state(self):
        for count in (2, 4):
            for way in ("fsdp", "hsdp"):
                for theirs, ours in ranks.run(count, compact, self.store(), way):
                    for (a, _), (b, _) in zip(theirs, ours, strict=True):
                        self.assertLess(abs(a - b), 5e-2, (count, way, theirs, ours))

    def test_bf16_shards_with_gradients_in_fp32_train_as_fp32_shards_do(self):
        for count in (2, 4):
            for way, more in (("fsdp", {}), ("fsdp", {"gradients": "engine"}), ("fsdp", {"update": "backward"}),
                              ("fsdp", {"state_format": "bf16"}), ("hsdp", {}), ("hsdp", {"gradients": "engine"})):
                for lower, whole in ranks.run(count, bf16_shards, self.store(), more, way):
                    self.assertEqual(lower[:-1], whole[:-1])
                    for a, b in zip(lower[-1], whole[-1], strict=True):
                        self.assertTrue(torch.equal(a, b))

    def test_a_scaler_skips_the_same_steps_on_all_ranks(self):
        for count in (2, 4):
            for theirs, ours, in_fp16 in ranks.run(count, scaled, self.store()):
                for a, b, c in zip(theirs, ours, in_fp16, strict=True):
                    self.assertLess(abs(a - b), 1e-6)
                    self.assertLess(abs(a - c), 1e-2)

    def test_adapters_of_peft(self):
        for count in (2, 4):
            for expected, losses in ranks.run(count, adapters, self.store()):
                for a, b in zip(expected, losses, strict=True):
                    self.assertLess(abs(a - b), 1e-6)


if __name__ == "__main__":
    unittest.main()
