# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts of transformers gives the same bits from the engine as in memory, with the product of experts that
transformers chooses. Up to PyTorch 2.10 that asks whether the weights are aligned."""

import os
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import spillway.torch as st  # noqa: E402
import torch  # noqa: E402
from torch_case import DEVICE, TorchTest  # noqa: E402
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: E402

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "max_position_embeddings": 64}


def mixtral():
    return MixtralForCausalLM(MixtralConfig(**SMALL, intermediate_size=48, num_local_experts=4))


def qwen():
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL, head_dim=16, moe_intermediate_size=24, num_experts=3,
                                              num_experts_per_tok=2))


class ExpertsTest(TorchTest):
    def trained(self, make, run=None, product=None, dtype=torch.float32):
        torch.manual_seed(1)
        model = make().to(dtype)
        if product is not None:
            model.set_experts_implementation(product)
        if run is not None:
            st.offload(model, run)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator(DEVICE).manual_seed(5))
        losses = []
        for _ in range(3):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, [param.detach().clone() for param in model.parameters()]

    def assert_as_in_memory(self, make, **how):
        expected = self.trained(make, **how)
        run = st.open(self.store(), pinned="1MiB", device=DEVICE, report=False)
        self.addCleanup(run.close)
        got = self.trained(make, run, **how)
        self.assertEqual(got[0], expected[0])
        self.assertLess(got[0][-1], got[0][0])
        self.assert_same(got[1], expected[1])

    def test_the_loss_is_that_of_the_model_in_memory(self):
        self.assert_as_in_memory(mixtral)
        self.assert_as_in_memory(mixtral, dtype=torch.bfloat16)
        self.assert_as_in_memory(qwen)

    def test_the_loop_over_experts_gives_the_same_bits_too(self):
        if hasattr(MixtralForCausalLM, "set_experts_implementation"):  # of transformers 5
            self.assert_as_in_memory(mixtral, product="eager")


if __name__ == "__main__":
    unittest.main()
