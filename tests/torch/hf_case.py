# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of spillway.torch with Hugging Face's libraries: a small LLaMA, its batches, and files of weights."""

import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch_case import DEVICE, TorchTest  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.disable_progress_bar()


def tiny_llama(tie=True, layers=1, seed=11, **more):
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=layers,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                        tie_word_embeddings=tie, **more)).to(DEVICE)


def tokens(number):
    return torch.randint(0, 128, (2, 16), generator=torch.Generator().manual_seed(number)).to(DEVICE)


def loss_of(model, number=0):
    batch = tokens(number)
    return model(input_ids=batch, labels=batch).loss


class HfTest(TorchTest):
    makes_tensors_there = False  # the libraries make theirs on the CPU

    def weights_in(self, folder, name="model.safetensors"):
        return load_file(pathlib.Path(folder) / name)

    def assert_same_weights(self, first, second):
        self.assertEqual(first.keys(), second.keys())
        for name, value in first.items():
            self.assertEqual(value.dtype, second[name].dtype, name)
            self.assertTrue(torch.equal(value.detach().cpu(), second[name].detach().cpu()), name)

    def assert_same_model(self, first, second):
        self.assert_same_weights(first.state_dict(), second.state_dict())
