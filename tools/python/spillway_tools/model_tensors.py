# SPDX-License-Identifier: Apache-2.0
"""Which tensors a model has, according to its config and the table of model types."""

import hashlib

import numpy

from spillway_tools.command import InputError
from spillway_tools.model_types import MODEL_TYPES
from spillway_tools.strict_json import excerpt


def expected_shapes(config, has_prefix=True):
    """Yields the name and shape of each tensor that the model needs; `config` is a ModelConfig.

    Without `has_prefix` the names are those of files that leave the table's prefix out. This is a generator, because a
    config may claim 100,000 layers for a file that has two.
    """
    row = MODEL_TYPES[config.model_type]
    names = row["names"]
    prefix = names["prefix"] if has_prefix else ""
    hidden = config.hidden_size
    yield f"{prefix}{names['tokens']}.weight", (config.vocab_size, hidden)
    if "positions" in names:
        yield f"{prefix}{names['positions']}.weight", (config.max_positions, hidden)
    for layer in range(config.num_layers):
        for sublayer in row["sublayers"]:
            for name, shape in _sublayer_shapes(config, row, sublayer):
                yield f"{prefix}{names['block']}.{layer}.{name}", shape
    yield from _norm_shapes(row, f"{prefix}{names['last']}", hidden)
    if not config.tie_word_embeddings:
        yield f"{names['head']}.weight", (config.vocab_size, hidden)


def _sublayer_shapes(config, row, sublayer):
    hidden = config.hidden_size
    yield from _norm_shapes(row, sublayer["norm"], hidden)
    if "attention" in sublayer:
        attention = sublayer["attention"]
        heads = {"query": config.num_heads, "key": config.num_kv_heads, "value": config.num_kv_heads}
        for linear in attention["inputs"]:
            outputs = sum(heads[part] for part in linear["gives"]) * config.head_dim
            yield from _linear_shapes(row, linear, hidden, outputs)
        for norm in ("query_norm", "key_norm"):
            if norm in attention:
                yield from _norm_shapes(row, attention[norm], config.head_dim)
        yield from _linear_shapes(row, attention["output"], config.num_heads * config.head_dim, hidden)
    else:
        for part, linear in sublayer["mlp"].items():
            inputs, outputs = hidden, config.intermediate_size
            yield from _linear_shapes(row, linear, *((outputs, inputs) if part == "down" else (inputs, outputs)))


def _norm_shapes(row, name, width):
    yield f"{name}.weight", (width,)
    if row["norm"] == "layer":
        yield f"{name}.bias", (width,)


def _linear_shapes(row, linear, inputs, outputs):
    by_outputs = row["storage"] == "outputs_by_inputs"
    yield f"{linear['name']}.weight", (outputs, inputs) if by_outputs else (inputs, outputs)
    if linear.get("bias", False):
        yield f"{linear['name']}.bias", (outputs,)


def is_skipped(name):
    """Whether a file's tensor is no parameter but a buffer of some model type, as IsSkippedTensor of model_folder.h.

    Old versions of transformers saved them. They follow from the config, and no model reads them.
    """
    return any(name.endswith(suffix) for row in MODEL_TYPES.values() for suffix in row["names"]["skipped"])


def select_tensors(config, tensors, origin):
    """Returns those of `tensors` that the model needs, in its order. InputError if one is missing.

    Drops a second copy of a tied embedding, which some folders carry. InputError if it is no copy.
    """
    names = MODEL_TYPES[config.model_type]["names"]
    by_name = {}
    for tensor in tensors:
        if by_name.setdefault(tensor.name, tensor) is not tensor:
            raise InputError(f"{origin}: holds tensor {tensor.name} twice")
    has_prefix = not _leaves_prefix_out(names, by_name)
    selected = {}
    for name, shape in expected_shapes(config, has_prefix):
        if name not in by_name:
            raise InputError(f"{origin}: tensor {name} {list(shape)} is missing")
        if tuple(by_name[name].shape) != shape:
            raise InputError(
                f"{origin}: tensor {name} has shape {excerpt(by_name[name].shape)}; the config implies"
                f" {list(shape)}"
            )
        selected[name] = by_name[name]
    for name in sorted(by_name.keys() - selected.keys()):
        if name == f"{names['head']}.weight":
            _check_tied_head(by_name[name], next(iter(selected.values())), origin)
        else:
            raise InputError(
                f"{origin}: tensor {name} {excerpt(by_name[name].shape)} belongs to no {config.model_type} model"
            )
    return list(selected.values())


def _leaves_prefix_out(names, by_name):
    """Whether the files have the names of the table without its prefix, as the published GPT-2 has."""
    tokens = f"{names['tokens']}.weight"
    return names.get("prefix_is_optional", False) and f"{names['prefix']}{tokens}" not in by_name and tokens in by_name


def _check_tied_head(head, embedding, origin):
    """InputError if the tensors differ. transformers would use this head, not the embedding."""
    if head.shape != embedding.shape or _digest(head) != _digest(embedding):
        raise InputError(
            f"{origin}: tie_word_embeddings is true but {head.name} differs from {embedding.name}; set it"
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
