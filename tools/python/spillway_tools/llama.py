# SPDX-License-Identifier: Apache-2.0
"""Which tensors a model of the LLaMA family has, according to its config."""

import hashlib

import numpy

from spillway_tools.command import InputError
from spillway_tools.strict_json import excerpt

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


def expected_shapes(config):
    """Yields the name and shape of each tensor that the model needs; `config` is a LlamaConfig.

    This is a generator, because a config may claim 100,000 layers for a file that has two.
    """
    hidden = config.hidden_size
    intermediate = config.intermediate_size
    query_rows = config.num_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    yield _EMBEDDING, (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.self_attn.q_proj.weight", (query_rows, hidden)
        yield f"{prefix}.self_attn.k_proj.weight", (kv_rows, hidden)
        yield f"{prefix}.self_attn.v_proj.weight", (kv_rows, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, query_rows)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        yield f"{prefix}.mlp.gate_proj.weight", (intermediate, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (intermediate, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, intermediate)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield _HEAD, (config.vocab_size, hidden)


def select_tensors(config, tensors, origin):
    """Returns those of `tensors` that the model needs, in its order. InputError if one is missing.

    Drops a second copy of a tied embedding, which some folders carry. InputError if it is no copy.
    """
    by_name = {}
    for tensor in tensors:
        if by_name.setdefault(tensor.name, tensor) is not tensor:
            raise InputError(f"{origin}: holds tensor {tensor.name} twice")
    selected = {}
    for name, shape in expected_shapes(config):
        if name not in by_name:
            raise InputError(f"{origin}: tensor {name} {list(shape)} is missing")
        if tuple(by_name[name].shape) != shape:
            raise InputError(
                f"{origin}: tensor {name} has shape {excerpt(by_name[name].shape)}; the config implies"
                f" {list(shape)}"
            )
        selected[name] = by_name[name]
    for name in sorted(by_name.keys() - selected.keys()):
        if name == _HEAD:
            _check_tied_head(by_name[name], by_name[_EMBEDDING], origin)
        else:
            raise InputError(
                f"{origin}: tensor {name} {excerpt(by_name[name].shape)} belongs to no LLaMA model"
            )
    return list(selected.values())


def _check_tied_head(head, embedding, origin):
    """InputError if the tensors differ. transformers would use this head, not the embedding."""
    if head.shape != embedding.shape or _digest(head) != _digest(embedding):
        raise InputError(
            f"{origin}: tie_word_embeddings is true but {_HEAD} differs from {_EMBEDDING}; set it"
            " to false in config.json"
        )


def _digest(tensor):
    """Returns a hash of the elements as fp32, whatever their type and the size of the pieces."""
    digest = hashlib.sha256()
    for piece in tensor.pieces():
        if tensor.dtype == "F16":
            piece = numpy.frombuffer(piece, "<f2").astype("<f4")
        elif tensor.dtype == "BF16":  # the upper half of an fp32
            piece = numpy.frombuffer(piece, "<u2").astype("<u4") << 16
        digest.update(piece)
    return digest.digest()
