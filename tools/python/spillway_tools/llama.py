# SPDX-License-Identifier: Apache-2.0
"""What Spillway trains, the LLaMA family: rules of its `config.json`, and the tensors that follow.

The C++ side (tools/hf/config.h) has the last word; these checks say the same before gigabytes are
copied.
"""

import re

from spillway_tools.command import InputError

_IGNORED_TENSOR = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def check_config(config, origin):
    """Raises InputError when `config`, a parsed config.json, is no model that Spillway computes."""
    if not isinstance(config, dict):
        raise InputError(f"{origin}: holds no JSON object")
    architectures = config.get("architectures", ["LlamaForCausalLM"])
    if architectures != ["LlamaForCausalLM"]:
        raise InputError(
            f"{origin}: architectures is {architectures!r}; only ['LlamaForCausalLM'] is supported"
        )
    if config.get("model_type") != "llama":
        raise InputError(
            f"{origin}: model_type is {config.get('model_type')!r}; only 'llama' is supported"
        )
    _check_plain_rope(config, "rope_scaling", None, origin)
    _check_plain_rope(config, "rope_parameters", "default", origin)
    for key in ("attention_bias", "mlp_bias", "rope_interleaved"):
        if config.get(key):
            raise InputError(f"{origin}: {key} is {config[key]!r}; only false is supported")
    if config.get("quantization_config") is not None:
        raise InputError(
            f"{origin}: the weights are quantised (quantization_config); import the original model"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise InputError(
            f"{origin}: hidden_act is {config['hidden_act']!r}; only 'silu' is supported"
        )


def _check_plain_rope(config, key, default, origin):
    """`config[key]` may be absent, or an object whose type is "default"."""
    value = config.get(key)
    if value is None:
        return
    if not isinstance(value, dict):
        raise InputError(f"{origin}: {key} is {value!r}; null or an object is expected")
    kind = value.get("rope_type", value.get("type", default))
    if kind != "default":
        raise InputError(f"{origin}: {key} of type {kind!r} is not supported; only 'default' is")


def size(config, key, origin, default=None):
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise InputError(
            f"{origin}: {key} is {config.get(key)!r}; a whole number from 1 to 2^31 - 1 is expected"
        )
    return value


def expected_shapes(config, origin):
    """The name and shape of every tensor that the model needs."""
    hidden = size(config, "hidden_size", origin)
    intermediate = size(config, "intermediate_size", origin)
    vocabulary = size(config, "vocab_size", origin)
    heads = size(config, "num_attention_heads", origin)
    kv_heads = size(config, "num_key_value_heads", origin, heads)
    head_dim = size(config, "head_dim", origin, hidden // heads)
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(size(config, "num_hidden_layers", origin)):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.self_attn.q_proj.weight"] = (heads * head_dim, hidden)
        shapes[f"{prefix}.self_attn.k_proj.weight"] = (kv_heads * head_dim, hidden)
        shapes[f"{prefix}.self_attn.v_proj.weight"] = (kv_heads * head_dim, hidden)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, heads * head_dim)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (intermediate, hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (intermediate, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, intermediate)
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def select_tensors(config, tensors, origin):
    """Those of `tensors` that the model needs, in its order; InputError when one is missing.

    Two kinds that some folders carry and no model reads are dropped: rotary frequencies, which
    follow from the config, and a second copy of a tied embedding.
    """
    shapes = expected_shapes(config, origin)
    by_name = {tensor.name: tensor for tensor in tensors}
    for name, shape in shapes.items():
        if name not in by_name:
            raise InputError(f"{origin}: tensor {name} {list(shape)} is missing")
        if tuple(by_name[name].shape) != shape:
            raise InputError(
                f"{origin}: tensor {name} has shape {list(by_name[name].shape)}; the config implies"
                f" {list(shape)}"
            )
    for name in by_name:
        if name not in shapes and name != "lm_head.weight" and not _IGNORED_TENSOR.fullmatch(name):
            raise InputError(
                f"{origin}: tensor {name} {list(by_name[name].shape)} belongs to no LLaMA model"
            )
    return [by_name[name] for name in shapes]
