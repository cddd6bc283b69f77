# SPDX-License-Identifier: Apache-2.0
"""Writes small random LLaMA models and token data to disk, as `spillway train` reads them."""

import json

import numpy
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

# The sizes are odd on purpose: a dimension that need not be a multiple of a vector, a tile or another dimension is not.
# (vocab, hidden, intermediate, layers, heads, key-value heads, head_dim, tied)
_SHAPES = {
    "tied_one_kv_head": (131, 48, 101, 2, 6, 1, 8, True),
    "tied_all_kv_heads": (97, 70, 33, 2, 5, 5, 14, True),
    "untied_grouped": (113, 66, 77, 3, 6, 2, 22, False),   # head_dim explicit: heads * head_dim is twice hidden
    "untied_narrow_heads": (59, 52, 131, 1, 9, 3, 2, False),
    "one_head": (11, 6, 5, 1, 1, 1, 6, True),
    "many_tiles": (1531, 136, 1003, 2, 8, 4, 18, False),   # matrices of several tiles, vocabulary included
    "many_tiles_tied": (2503, 72, 1201, 2, 6, 3, 12, True),
}
SHAPE_NAMES = tuple(_SHAPES)


def make_model(name, folder, seed=1):
    """Writes a Hugging Face folder with random weights. Those of matrices are large enough to matter,
    and those of norms differ from 1."""
    vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, tied = _SHAPES[name]
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, tie_word_embeddings=tied,
        max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=5000.0, bos_token_id=None, eos_token_id=None,
        pad_token_id=None, torch_dtype="float32")
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)


def open_model(folder):
    return LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager")


def vocab_size(folder):
    return json.loads((folder / "config.json").read_text())["vocab_size"]


def read_weights(folder):
    """Returns the fp32 tensors by name of a folder that make_model or `spillway train --save` wrote."""
    return load_file(folder / "model.safetensors")


def make_data(folder, vocab, tokens, seed=2):
    """Writes random tokens. Small ids are more frequent, so that there is something to learn."""
    folder.mkdir(parents=True)
    generator = numpy.random.default_rng(seed)
    ids = (vocab * generator.random(tokens) ** 2).astype(numpy.uint16)
    numpy.save(folder / "train.npy", ids)
    numpy.save(folder / "valid.npy", ids[: tokens // 4])
    (folder / "meta.json").write_text(json.dumps({"version": 1, "vocab_size": vocab, "dtype": "uint16"}))


class Windows:
    """Windows of train.npy in file order. At the end of the text they begin again at its start."""

    def __init__(self, folder, sequence):
        self._ids = torch.from_numpy(numpy.load(folder / "train.npy").astype(numpy.int64))
        self._sequence = sequence
        self._count = (len(self._ids) - 1) // sequence
        self._next = 0

    def take(self, count):
        """Returns inputs and targets, each of shape [count, sequence]."""
        starts = [((self._next + i) % self._count) * self._sequence for i in range(count)]
        self._next += count
        return (torch.stack([self._ids[s : s + self._sequence] for s in starts]),
                torch.stack([self._ids[s + 1 : s + 1 + self._sequence] for s in starts]))
