# SPDX-License-Identifier: Apache-2.0
"""The rules for a LLaMA `config.json`. They are the same as in tools/hf/config.cc, key by key.

A config that `spillway eval` would refuse is refused before gigabytes are copied. The tests of both
sides read tests/hf/config_cases.json, so that a difference between the two is found.
"""

import math
from dataclasses import dataclass

from spillway_tools.command import InputError
from spillway_tools.strict_json import excerpt

MAX_CONFIG_BYTES = 16 << 20
_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 100_000
_ROPE_PARAMETERS = ("rope_theta", "rope_type", "type", "partial_rotary_factor")


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes that determine the shapes of the tensors."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tie_word_embeddings: bool


class ConfigReader:
    """Reads the keys of one object. A null value counts as an absent key."""

    def __init__(self, values, origin, prefix=""):
        self._values = values
        self._origin = origin
        self._prefix = prefix

    def find(self, key):
        """Returns the value, or None if the key is absent."""
        return self._values.get(key)

    def error(self, key, expected):
        value = self.find(key)
        found = "missing" if value is None else excerpt(value)
        return InputError(f"{self._origin}: {self._prefix}{key} is {found}; {expected}")

    def size(self, key, default=None, maximum=_MAX_SIZE):
        value = self.find(key)
        if value is None and default is not None:
            return default
        if not _is_whole(value) or not 0 < value <= maximum:
            raise self.error(key, f"a whole number from 1 to {maximum} is expected")
        return value

    def positive(self, key, default=None):
        value = self.find(key)
        if value is None and default is not None:
            return default
        if not _is_number(value) or not 0 < value < math.inf:
            raise self.error(key, "a positive number is expected")
        return float(value)

    def boolean(self, key, default):
        value = self.find(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "true or false is expected")
        return value

    def must_be_false(self, key):
        if self.boolean(key, False):
            raise self.error(key, "only false is supported")

    def must_be_true(self, key):
        if not self.boolean(key, True):
            raise self.error(key, "only true is supported")

    def must_be_number(self, key, only):
        value = self.find(key)
        if value is not None and not (_is_number(value) and value == only):
            raise self.error(key, f"only {only} is supported")

    def must_be_string(self, key, only):
        value = self.find(key)
        if value is not None and value != only:
            raise self.error(key, f'only "{only}" is supported')


def check_config(config, origin):
    """Returns the sizes in `config`, a parsed config.json. InputError names an unsupported key."""
    if not isinstance(config, dict):
        raise InputError(f"{origin}: is {excerpt(config)}; a JSON object is expected")
    reader = ConfigReader(config, origin)
    _check_architecture(reader)
    sizes = _read_sizes(reader)
    if reader.positive("rms_norm_eps", 1e-6) >= 1:
        raise reader.error("rms_norm_eps", "a number below 1 is expected")
    _check_rope_scaling(reader, origin, _rope_theta(reader, origin))
    _check_eos_token_ids(reader, sizes.vocab_size)
    return sizes


def _check_architecture(reader):
    architectures = reader.find("architectures")
    if architectures is not None and architectures != ["LlamaForCausalLM"]:
        raise reader.error("architectures", 'only ["LlamaForCausalLM"] is supported')
    if reader.find("model_type") is None:
        raise reader.error("model_type", '"llama" is expected')
    reader.must_be_string("model_type", "llama")
    reader.must_be_string("hidden_act", "silu")
    for key in ("attention_bias", "mlp_bias", "rope_interleaved"):
        reader.must_be_false(key)
    reader.must_be_true("is_causal")
    reader.must_be_number("attention_dropout", 0)
    reader.must_be_number("partial_rotary_factor", 1)
    if reader.find("quantization_config") is not None:
        raise reader.error(
            "quantization_config", "weights must be F32, F16 or BF16: import the original model"
        )


def _read_sizes(reader):
    hidden = reader.size("hidden_size")
    heads = reader.size("num_attention_heads")
    kv_heads = reader.size("num_key_value_heads", heads)
    if heads % kv_heads != 0:
        raise reader.error(
            "num_key_value_heads", f"a divisor of num_attention_heads, {heads}, is expected"
        )
    reader.size("max_position_embeddings", 2048)
    return LlamaConfig(
        vocab_size=reader.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.size("intermediate_size"),
        num_layers=reader.size("num_hidden_layers", maximum=_MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_read_head_dim(reader, hidden, heads),
        tie_word_embeddings=reader.boolean("tie_word_embeddings", False),
    )


def _read_head_dim(reader, hidden, heads):
    if reader.find("head_dim") is None and hidden % heads != 0:
        raise reader.error(
            "hidden_size",
            f"without head_dim a multiple of num_attention_heads, {heads}, is expected",
        )
    head_dim = reader.size("head_dim", max(1, hidden // heads))
    if head_dim % 2 != 0:
        raise reader.error("head_dim", f"rope needs an even one; this model's is {head_dim}")
    if head_dim * heads > _MAX_SIZE:
        raise reader.error("head_dim", f"{heads} such heads are more than {_MAX_SIZE} wide")
    return head_dim


def _rope_theta(reader, origin):
    theta = reader.positive("rope_theta", 10000.0)
    parameters = reader.find("rope_parameters")
    if parameters is None:
        return theta
    if not isinstance(parameters, dict):
        raise reader.error("rope_parameters", "an object is expected")
    nested = ConfigReader(parameters, origin, "rope_parameters.")
    for key in parameters:
        if key not in _ROPE_PARAMETERS:
            raise nested.error(key, "this is not supported: only rope_type and rope_theta are")
    nested.must_be_string("rope_type", "default")
    nested.must_be_string("type", "default")
    nested.must_be_number("partial_rotary_factor", 1)
    newer = nested.positive("rope_theta", theta)
    if reader.find("rope_theta") is not None and newer != theta:
        raise nested.error("rope_theta", f"rope_theta beside it is {theta}; the two must agree")
    return newer


def _check_rope_scaling(reader, origin, theta):
    """Allows only the kind "default", named by "rope_type" or, in older configs, by "type".

    New versions of transformers take further keys of rope from it, which must agree with `theta`,
    the model's.
    """
    scaling = reader.find("rope_scaling")
    if scaling is None:
        return
    if not isinstance(scaling, dict):
        raise reader.error("rope_scaling", "null or an object is expected")
    nested = ConfigReader(scaling, origin, "rope_scaling.")
    if nested.find("rope_type") is None and nested.find("type") is None:
        raise reader.error("rope_scaling", 'only "rope_type": "default" is supported')
    nested.must_be_string("rope_type", "default")
    nested.must_be_string("type", "default")
    nested.must_be_number("partial_rotary_factor", 1)
    if nested.positive("rope_theta", theta) != theta:
        raise nested.error("rope_theta", f"the model's rope_theta is {theta}; the two must agree")


def _check_eos_token_ids(reader, vocab_size):
    """Checks `eos_token_id`, which is one id, a list of ids, or absent."""
    value = reader.find("eos_token_id")
    if value is None:
        return
    for token in value if isinstance(value, list) else [value]:
        if not _is_whole(token) or not 0 <= token < vocab_size:
            raise reader.error(
                "eos_token_id", f"tokens below vocab_size, {vocab_size}, are expected"
            )


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)
