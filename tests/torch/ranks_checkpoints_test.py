# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint saves state that stays in the store, and any number of ranks loads it."""

import unittest

import spillway.torch as st
import torch
from ranks_checkpoints import OPTIONS, ChainTest


class CheckpointsTest(ChainTest):
    def test_other_numbers_of_ranks_and_torchs_optimizer_go_on(self):
        expected = self.chain([1], [torch.optim.AdamW], steps=8)
        self.assert_close(expected, self.chain([4, 2, 1, 4], [st.AdamW] * 4))
        optimizers = [torch.optim.AdamW, st.AdamW, torch.optim.AdamW]
        self.assert_close(expected[:6], self.chain([2, 2, 1], optimizers, OPTIONS["flattened"]))


if __name__ == "__main__":
    unittest.main()
