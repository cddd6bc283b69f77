# SPDX-License-Identifier: Apache-2.0
"""Writes small random models and token data to disk, as `spillway train` reads them.

LLaMA's shapes are fixed. The other families' are drawn from a seed, with each choice that the family has: `FAMILY_NAMES`.
"""

import json
import random

import numpy
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

transformers.utils.logging.disable_progress_bar()

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

# Whether transformers has no layer types yet. Its eager attention then has no windows for Qwen2.
IS_OLD = int(transformers.__version__.split(".", maxsplit=1)[0]) < 5

# One name for each family and choice: "qwen2-window-tied". Qwen3 came with transformers 4.51.
FAMILY_NAMES = tuple(
    f"{family}-{tied}"
    for family in ("llama-linear", "llama-llama3", "mistral-window", "mistral-full", "qwen2-full", "qwen2-window",
                   "qwen3-full", "qwen3-window", "gpt2-new", "gpt2-wide")
    for tied in ("tied", "untied")
    if family.split("-", maxsplit=1)[0] in CONFIG_MAPPING_NAMES and not (IS_OLD and family == "qwen2-window")
)
# Of each name, a window is shorter than the tests' sequences of 33 tokens.
_WINDOWS = (1, 3, 5, 7, 11, 17, 31)


def family_config(name, draw):
    """Returns a configuration with odd sizes, where the family allows them; `draw` is a random.Random."""
    family, choice, tied = name.split("-")
    vocab = draw.randrange(61, 151, 2)
    layers = draw.choice((2, 3))
    heads, kv_heads = draw.choice(((3, 1), (5, 5), (6, 2), (6, 3), (9, 3)))
    tie = {"tie_word_embeddings": tied == "tied", "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if family == "gpt2":
        head_dim = draw.randrange(9, 23)
        return AutoConfig.for_model(
            "gpt2", vocab_size=vocab, n_positions=draw.randrange(33, 47), n_embd=heads * head_dim, n_layer=layers,
            n_head=heads, n_inner=draw.randrange(31, 131, 2) if choice == "wide" else None, layer_norm_epsilon=1e-4,
            activation_function="gelu_pytorch_tanh" if choice == "wide" else "gelu_new", **tie)
    head_dim = draw.randrange(10, 31, 2)  # a norm over fewer elements is badly conditioned
    sizes = {
        "vocab_size": vocab, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": draw.randrange(31, 131, 2), "rms_norm_eps": 1e-4,
        "max_position_embeddings": 256, "rope_theta": 5000.0, "hidden_size": heads * head_dim, **tie}
    if family in ("llama", "mistral", "qwen3"):  # heads need not be as wide as the model together
        sizes |= {"head_dim": head_dim, "hidden_size": heads * draw.randrange(9, 23)}
    if choice == "linear":
        sizes["rope_scaling"] = {"rope_type": "linear", "factor": draw.choice((2.0, 3.7))}
    if choice == "llama3":
        sizes["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": draw.choice((16, 50))}
    if family == "mistral":
        sizes["sliding_window"] = draw.choice(_WINDOWS) if choice == "window" else None
    if family in ("qwen2", "qwen3"):
        sizes |= {"use_sliding_window": choice == "window", "sliding_window": draw.choice(_WINDOWS),
                  "max_window_layers": draw.choice((0, 1))}
    return AutoConfig.for_model(family, **sizes)


def make_family_model(name, folder, seed):
    """Writes a Hugging Face folder of a random model, whose norms and biases are far from their first values."""
    draw = random.Random(f"{seed} {name}")
    torch.manual_seed(seed % (1 << 63))
    model = AutoModelForCausalLM.from_config(family_config(name, draw))
    with torch.no_grad():
        for name_of, parameter in model.named_parameters():
            if parameter.dim() == 1 and name_of.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, max(parameter.shape) ** -0.5)
    model.float().save_pretrained(folder)


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
    """Opens a folder in fp32, without dropout."""
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float().eval()


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
