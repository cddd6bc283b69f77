# SPDX-License-Identifier: Apache-2.0
"""Makes a new model of any size, and tokens for it, without a download or a library."""

import json


def make(folder, sizes):
    """Writes a model's config.json alone (for --init random), and tokens made of powers of 7 modulo a prime. Returns the
    folders of both."""
    model, data = folder / "model", folder / "data"
    model.mkdir(exist_ok=True)
    data.mkdir(exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
              "tie_word_embeddings": True, **sizes}
    (model / "config.json").write_text(json.dumps(config))
    (data / "meta.json").write_text(json.dumps({"vocab_size": sizes["vocab_size"]}))
    tokens = [pow(7, i, 65537) % sizes["vocab_size"] for i in range(4096)]
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({len(tokens)},), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    (data / "train.npy").write_bytes(npy + b"".join(token.to_bytes(2, "little") for token in tokens))
    return model, data
