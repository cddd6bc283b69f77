# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny model's configuration and tokens to train it on, for checks that run the command. Uses Python's
standard library only."""

import json
import random
import struct

VOCABULARY = 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": VOCABULARY,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "eos_token_id": 2,
}


def write_inputs(folder):
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(CONFIG))
    (folder / "data").mkdir()
    (folder / "data/meta.json").write_text(json.dumps({"vocab_size": VOCABULARY}))
    draw = random.Random(1)
    for split in ("train", "valid"):
        tokens = [1]
        while len(tokens) < 4000:
            # Most tokens follow from the one before, so that the model can learn.
            tokens.append(draw.randrange(VOCABULARY) if draw.random() < 0.125 else (tokens[-1] * 5 + 3) % VOCABULARY)
        write_npy(folder / f"data/{split}.npy", tokens)


def write_npy(path, tokens):
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({len(tokens)},), }}"
    header = header.ljust((len(header) + 11 + 63) // 64 * 64 - 11) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack(f"<{len(tokens)}H", *tokens))
