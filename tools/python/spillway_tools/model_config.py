# SPDX-License-Identifier: Apache-2.0
"""The rules for a `config.json`. They are those of tools/hf/config.cc, key by key and in the same order.

A config that `spillway eval` would refuse is refused before gigabytes are copied, with the same words. The tests of both
sides read tests/hf/config_cases.json, so that a difference between the two is found.
"""

import math
from dataclasses import dataclass

from spillway_tools.command import InputError
from spillway_tools.model_types import MODEL_TYPES
from spillway_tools.strict_json import excerpt

MAX_CONFIG_BYTES = 16 << 20
_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 100_000
_KEYS_OF_ROPE = ("partial_rotary_factor", "rope_theta", "rope_type", "type")
_KEYS_OF_SCALING = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"),
}
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class ModelConfig:
    """The sizes that determine the shapes of the tensors. `model_type` is a row of the table."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    tie_word_embeddings: bool


class ConfigReader:
    """Reads the keys of one object. A null value counts as an absent key."""

    def __init__(self, values, origin, prefix=""):
        self._values = values
        self._origin = origin
        self._prefix = prefix

    def has(self, key):
        """Returns whether the key is there, even if it is null."""
        return key in self._values

    def find(self, key):
        """Returns the value, or None if the key is absent."""
        return self._values.get(key)

    def error(self, key, expected):
        value = self.find(key)
        found = "missing" if not self.has(key) else excerpt(value)
        return InputError(f"{self._origin}: {self._prefix}{key} is {found}; {expected}")

    def size(self, key, default=None, maximum=_MAX_SIZE):
        value = self.find(key)
        if value is None and default is not None:
            return default
        if not _is_whole(value) or not 0 < value <= maximum:
            raise self.error(key, f"{_whole_number(maximum)} is expected")
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

    def must_be(self, key, only):
        """For a key that changes what is computed: InputError if it has another value than `only`."""
        value = self.find(key)
        if value is not None and not _equal(value, only):
            raise self.error(key, f"only {excerpt(only)} is supported")


def check_config(config, origin):
    """Returns the ModelConfig of `config`, a parsed config.json. InputError names an unsupported key."""
    if not isinstance(config, dict):
        raise InputError(f"{origin}: is {excerpt(config)}; a JSON object is expected")
    reader = ConfigReader(config, origin)
    row = _read_model_type(reader)
    _check_architecture(reader, row)
    _check_aliases(reader, row)
    _check_activation(reader, row)
    _check_dropouts(reader, row)
    sizes = _read_sizes(reader, row)
    epsilon = row["keys"]["epsilon"]
    if reader.positive(epsilon, row["defaults"]["epsilon"]) >= 1:
        raise reader.error(epsilon, "a number below 1 is expected")
    if "rope" in row:
        _check_ropes(reader, row, origin)
    _check_windows(reader, row, sizes["num_layers"])
    tied = reader.boolean("tie_word_embeddings", row["defaults"]["tied"])
    _check_eos_token_ids(reader, sizes["vocab_size"])
    return ModelConfig(model_type=config["model_type"], tie_word_embeddings=tied, **sizes)


def _read_model_type(reader):
    """Returns the row of the table."""
    value = reader.find("model_type")
    if not isinstance(value, str) or value not in MODEL_TYPES:
        raise reader.error("model_type", _only_supported(MODEL_TYPES))
    return MODEL_TYPES[value]


def _check_architecture(reader, row):
    architectures = reader.find("architectures")
    if architectures is not None and architectures != [row["architecture"]]:
        raise reader.error("architectures", f"only {excerpt([row['architecture']])} is supported")
    for key, value in row["only"].items():
        reader.must_be(key, value)
    if reader.find("quantization_config") is not None:
        raise reader.error("quantization_config", "weights must be F32, F16 or BF16: take the original model")


def _check_activation(reader, row):
    key, kinds = row["activation"]["key"], row["activation"]["kinds"]
    value = reader.find(key)
    if value is not None and not (isinstance(value, str) and value in kinds):
        raise reader.error(key, _only_supported(kinds))


def _check_dropouts(reader, row):
    for key in row["dropouts"]:
        value = reader.find(key)
        if value is not None and not (_is_number(value) and 0 <= value < 1):
            raise reader.error(key, "a number from 0 to below 1 is expected")


def _read_sizes(reader, row):
    keys = row["keys"]

    def following(size, follows):
        """Reads a size, or returns what follows from other sizes."""
        if size not in keys:
            return follows
        return reader.size(keys[size], follows if size in row["follow"] else None)

    vocab_size = reader.size(keys["vocabulary"])
    hidden = reader.size(keys["width"])
    layers = reader.size(keys["layers"], maximum=_MAX_LAYERS)
    heads = reader.size(keys["heads"])
    kv_heads = following("kv_heads", heads)
    intermediate = following("mlp_width", 4 * hidden)
    positions = reader.size(keys["positions"], row["defaults"].get("positions"))
    if heads % kv_heads != 0:
        raise reader.error(keys["kv_heads"], f"a divisor of {keys['heads']}, {heads}, is expected")
    if intermediate > _MAX_SIZE:
        raise reader.error(keys["mlp_width"], f"4 times {keys['width']} is more than {_MAX_SIZE}")

    key = keys.get("head_dim")
    follows = key is None or ("head_dim" in row["follow"] and reader.find(key) is None)
    if follows and hidden % heads != 0:
        without = "" if key is None else "without head_dim "
        raise reader.error(keys["width"], f"{without}a multiple of {keys['heads']}, {heads}, is expected")
    head_dim = following("head_dim", max(1, hidden // heads))
    told = key or keys["heads"]
    if "rope" in row and head_dim % 2 != 0:
        raise reader.error(told, f"rope needs an even one; this model's is {head_dim}")
    widest = _heads_of_widest_input(row, heads, kv_heads)
    if head_dim > _MAX_SIZE // widest:
        raise reader.error(told, f"{widest} such heads are more than {_MAX_SIZE} wide")
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "max_positions": positions,
    }


def _heads_of_widest_input(row, heads, kv_heads):
    """Queries, keys and values of a token may lie side by side."""
    return max(
        sum(heads if part == "query" else kv_heads for part in linear["gives"])
        for sublayer in row["sublayers"]
        if "attention" in sublayer
        for linear in sublayer["attention"]["inputs"]
    )


def _check_aliases(reader, row):
    """transformers gives GPT-2's sizes a second name each, and the second one wins."""
    for alias, key in row.get("aliases", {}).items():
        value, named = reader.find(alias), reader.find(key)
        if value is not None and (named is None or value != named):
            raise reader.error(alias, f"it is another name of {key}; the two must agree")


def _check_ropes(reader, row, origin):
    """transformers 5 has all of rope in `rope_parameters`; before, it was `rope_theta` and `rope_scaling`, whose kind older
    files call "type". What is given twice must agree."""
    parameters = reader.find("rope_parameters")
    scaling = reader.find("rope_scaling")
    top_theta = theta = reader.positive("rope_theta", row["defaults"]["theta"])
    rope = ["default"]
    if parameters is not None:
        if not isinstance(parameters, dict):
            raise reader.error("rope_parameters", "null or an object is expected")
        nested = ConfigReader(parameters, origin, "rope_parameters.")
        newer, *rope = _read_rope(nested, row, parameters, ignores_further_keys=False)
        if reader.find("rope_theta") is not None and newer not in (None, theta):
            beside = excerpt(reader.find("rope_theta"))
            raise nested.error("rope_theta", f"rope_theta beside it is {beside}; the two must agree")
        theta = theta if newer is None else newer
    if scaling is not None:
        if not isinstance(scaling, dict):
            raise reader.error("rope_scaling", "null or an object is expected")
        nested = ConfigReader(scaling, origin, "rope_scaling.")
        if nested.find("rope_type") is None and nested.find("type") is None:
            raise reader.error("rope_scaling", "a rope_type is expected in it")
        scaled, *rope_of_scaling = _read_rope(nested, row, scaling, ignores_further_keys=True)
        # transformers takes theta from rope_scaling, else from rope_theta, never from rope_parameters.
        if (top_theta if scaled is None else scaled) != theta:
            raise nested.error("rope_theta", f"the model's rope_theta is {excerpt(theta)}; the two must agree")
        if parameters is not None and rope_of_scaling != rope:
            raise reader.error("rope_scaling", "it differs from rope_parameters; the two must agree")
        rope = rope_of_scaling
    positions = "original_max_position_embeddings"  # transformers prefers this one to the scaling's own
    if rope[0] == "llama3" and reader.find(positions) is not None:
        if reader.size(positions) != rope[-1]:
            raise reader.error(positions, "it differs from rope's; the two must agree")


def _read_rope(rope, row, values, ignores_further_keys):
    """Returns theta or None, the kind of scaling and its numbers."""
    kind = _scaling_kind(rope, row)
    rope.must_be("partial_rotary_factor", 1)
    theta = None if rope.find("rope_theta") is None else rope.positive("rope_theta")
    if kind != "default" or not ignores_further_keys:
        for key in sorted(values):
            if key not in _KEYS_OF_SCALING[kind] and key not in _KEYS_OF_ROPE:
                raise rope.error(key, "this key is not supported with this rope_type")
    if kind == "default":
        return theta, kind
    factor = rope.positive("factor")
    if kind == "linear":
        return theta, kind, factor
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    original = rope.size("original_max_position_embeddings")
    if high <= low:
        raise rope.error("high_freq_factor", "a number above low_freq_factor is expected")
    return theta, kind, factor, low, high, original


def _scaling_kind(rope, row):
    key = "type" if rope.find("rope_type") is None else "rope_type"
    kind, older = rope.find(key), rope.find("type")
    if kind is None:
        return "default"
    if kind not in row["rope"]:
        raise rope.error(key, _only_supported(row["rope"]))
    if older is not None and older != kind:
        raise rope.error("type", f"rope_type beside it is {excerpt(kind)}; the two must agree")
    return kind


def _check_windows(reader, row, num_layers):
    window = _sliding_window(reader, row)
    types = reader.find("layer_types")
    if types is not None:
        _check_layer_types(reader, types, num_layers)
    starts = row.get("window", {}).get("from")
    if window and types is None and starts:
        value = reader.find(starts)
        if not _is_whole(value) or not 0 <= value <= _MAX_SIZE:
            raise reader.error(starts, f"a whole number from 0 to {_MAX_SIZE} is expected")
    for of_layer in types or ():
        slides = of_layer == "sliding_attention"
        if slides and not window:
            raise reader.error("layer_types", "no sliding window is on that sliding_attention could have")
        if not slides and window and not starts:
            raise reader.error("layer_types", "every layer has the sliding window that is on")


def _sliding_window(reader, row):
    """Returns the sliding window, or 0 if the model has none."""
    if "window" not in row:
        return 0
    key, enabled_by = row["window"]["key"], row["window"].get("enabled_by")
    window = 0 if reader.find(key) is None else reader.size(key)
    if not enabled_by:
        if not reader.has(key):
            raise reader.error(key, f"null or {_whole_number(_MAX_SIZE)} is expected")
    elif not reader.boolean(enabled_by, False):
        return 0
    elif not window:
        raise reader.error(key, f"{_whole_number(_MAX_SIZE)} is expected, because {enabled_by} is true")
    return window


def _check_layer_types(reader, types, num_layers):
    if not isinstance(types, list) or len(types) != num_layers:
        raise reader.error("layer_types", f"a list of {num_layers} types is expected, one of each layer")
    for of_layer in types:
        if of_layer not in _LAYER_TYPES:
            raise reader.error("layer_types", f"it holds {excerpt(of_layer)}; {_only_supported(_LAYER_TYPES)}")


def _check_eos_token_ids(reader, vocab_size):
    """Checks `eos_token_id`, which is one id, a list of ids, or absent."""
    value = reader.find("eos_token_id")
    if value is None:
        return
    for token in value if isinstance(value, list) else [value]:
        if not _is_whole(token) or not 0 <= token < vocab_size:
            raise reader.error("eos_token_id", f"tokens below vocab_size, {vocab_size}, are expected")


def _whole_number(maximum):
    return f"a whole number from 1 to {maximum}"


def _only_supported(names):
    *rest, last = map(excerpt, names)
    if not rest:
        return f"only {last} is supported"
    return f"only {', '.join(rest)} and {last} are supported"


def _equal(value, of_table):
    """Whether a value of a config is a value of the table. true is no 1, and 1.0 is."""
    return isinstance(value, bool) == isinstance(of_table, bool) and value == of_table


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)
