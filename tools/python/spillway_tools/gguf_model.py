# SPDX-License-Identifier: Apache-2.0
"""Presents a LLaMA model in a GGUF file as a Hugging Face folder: config, tensors, tokenizer.json.

16-bit tensors keep their type. All others, including the quantised types, become F32, because 16
bits generally cannot hold a dequantised value. Rows are converted in blocks, so the memory that is
needed depends on the block size and not on the tensor.
"""

import math
import re

import numpy
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from spillway_tools.command import InputError
from spillway_tools.gguf_parts import read_parts
from spillway_tools.gguf_tokenizer import TOKENIZER_KEYS, special_token_ids, tokenizer_files
from spillway_tools.model_config import ConfigReader, check_config
from spillway_tools.model_tensors import select_tensors
from spillway_tools.source_file import read_exactly
from spillway_tools.weights import TensorSource

_BLOCK_BYTES = 16 << 20
_KEPT_TYPES = {
    GGMLQuantizationType.F32: "F32",
    GGMLQuantizationType.F16: "F16",
    GGMLQuantizationType.BF16: "BF16",
}

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Metadata that changes the computation in a way that Spillway does not support, unless it has one
# of these values. If the scaling type is missing, llama.cpp takes a factor as linear scaling.
_UNSUPPORTED_KEYS = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "rope.scale_linear": (0, 1),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "attention.scale": (0,),
    "logit_scale": (0,),
    "residual_scale": (0,),
    "embedding_scale": (0,),
    "attn_logit_softcapping": (0,),
    "attention.clamp_kqv": (0,),
}
_SIZE_KEYS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
)
_FLOAT_KEYS = ("attention.layer_norm_rms_epsilon", "rope.freq_base")
_KEYS = frozenset(
    ("general.architecture", *TOKENIZER_KEYS)
    + tuple(f"llama.{key}" for key in (*_UNSUPPORTED_KEYS, *_SIZE_KEYS, *_FLOAT_KEYS))
)


class GgufModel:
    """Opens and checks a GGUF file, or all parts of the model if it is one of them.

    `tensors` read the files when their pieces are requested. `files` holds the bytes of the
    tokenizer's files by name.
    """

    def __init__(self, path, origin=None):
        """Messages name `origin` instead of `path`, for a `path` that is a temporary copy."""
        parts = read_parts(path, origin or str(path), _KEYS)
        self._origin = parts[0].origin  # it has the metadata
        self._fields = parts[0].header.fields
        stored = [(part, tensor) for part in parts for tensor in part.header.tensors]
        self._metadata = ConfigReader(self._fields, self._origin)
        if self._field("general.architecture") != "llama":
            raise self._metadata.error("general.architecture", 'only "llama" is supported')
        self.config = self._read_config({tensor.name: tensor for _, tensor in stored})
        sizes = check_config(self.config, self._origin)
        self.tensors = select_tensors(
            sizes, [self._source(part, tensor) for part, tensor in stored], self._origin
        )
        texts = tokenizer_files(self._fields, sizes.vocab_size, self._origin)
        self.files = {name: text.encode() for name, text in texts.items()}

    def _field(self, key, default=None):
        return self._fields.get(key, default)

    def _size(self, key, default=None):
        return self._metadata.size(f"llama.{key}", default)

    def _read_config(self, tensors):
        self._check_supported()
        if "token_embd.weight" not in tensors:
            raise InputError(f"{self._origin}: tensor token_embd.weight is missing")
        hidden = self._size("embedding_length")
        heads = self._size("attention.head_count")
        head_dim = self._size("attention.key_length", max(1, hidden // heads))
        if head_dim % 2 != 0:
            raise InputError(f"{self._origin}: a head of {head_dim} rows is odd; rope needs pairs")
        for key in ("attention.value_length", "rope.dimension_count"):
            if self._size(key, head_dim) != head_dim:
                raise self._metadata.error(
                    f"llama.{key}", f"only the head's size, {head_dim}, is supported"
                )
        config = {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "head_dim": head_dim,
            "hidden_act": "silu",
            "hidden_size": hidden,
            "initializer_range": 0.02,
            "intermediate_size": self._size("feed_forward_length"),
            "max_position_embeddings": self._size("context_length"),
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": heads,
            "num_hidden_layers": self._size("block_count"),
            "num_key_value_heads": self._size("attention.head_count_kv", heads),
            "rms_norm_eps": self._float("attention.layer_norm_rms_epsilon"),
            "rope_scaling": None,
            "rope_theta": self._float("rope.freq_base", 10000.0),
            "tie_word_embeddings": "output.weight" not in tensors,
            "torch_dtype": self._torch_dtype(tensors["token_embd.weight"]),
            "use_cache": True,
            "vocab_size": tensors["token_embd.weight"].shape[0],
        }
        config.update(special_token_ids(self._fields, config["vocab_size"], self._origin))
        return dict(sorted(config.items()))

    def _check_supported(self):
        for key, harmless in _UNSUPPORTED_KEYS.items():
            value = self._field(f"llama.{key}")
            if value is not None and value not in harmless:
                raise self._metadata.error(
                    f"llama.{key}",
                    "rope scaling is not supported; only plain rope is"
                    if key.startswith("rope.")
                    else "it changes the computation in a way that is not supported",
                )

    def _float(self, key, default=None):
        value = self._metadata.positive(f"llama.{key}", default)
        # Takes the shortest decimal for the stored fp32, for example 1e-05, as models publish it.
        with numpy.errstate(over="ignore", under="ignore"):
            rounded = float(str(numpy.float32(value)))
        if not 0 < rounded < math.inf:
            raise self._metadata.error(f"llama.{key}", "a positive number of type F32 is expected")
        return rounded

    @staticmethod
    def _torch_dtype(embedding):
        return {"F16": "float16", "BF16": "bfloat16"}.get(embedding.kind.name, "float32")

    def _source(self, part, tensor):
        name = self._hugging_face_name(part, tensor.name)
        shape = tensor.shape
        rows_of_head = None
        if name.endswith(("q_proj.weight", "k_proj.weight")) and len(shape) == 2:
            rows_of_head = self.config["head_dim"]
            if shape[0] % rows_of_head != 0:
                raise InputError(
                    f"{part.origin}: tensor {tensor.name} has {shape[0]} rows, no multiple of the "
                    f"head's {rows_of_head}"
                )
        dtype = _KEPT_TYPES.get(tensor.kind, "F32")
        return TensorSource(
            name,
            dtype,
            shape,
            lambda: self._pieces(part, tensor, rows_of_head),
            f"{part.origin}: tensor {tensor.name}",
        )

    @staticmethod
    def _hugging_face_name(part, name):
        if name == "rope_freqs.weight":
            raise InputError(
                f"{part.origin}: tensor {name} means scaled rope, which is not supported"
            )
        block = re.fullmatch(r"blk\.(0|[1-9][0-9]{0,5})\.(\w+)\.weight", name)
        if block and block[2] in _BLOCK_NAMES:
            return f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}.weight"
        if name in _GLOBAL_NAMES:
            return _GLOBAL_NAMES[name]
        raise InputError(f"{part.origin}: tensor {name} belongs to no LLaMA model without biases")

    def _pieces(self, part, tensor, rows_of_head):
        num_rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
        stored_bytes = tensor.size_bytes // num_rows  # per row
        step = max(1, _BLOCK_BYTES // max(1, 4 * tensor.shape[-1]))
        if rows_of_head is not None:
            step = max(1, step // rows_of_head) * rows_of_head
        with part.open() as file:
            for first in range(0, num_rows, step):
                count = min(step, num_rows - first)
                offset = tensor.offset + first * stored_bytes
                data = read_exactly(file, offset, count * stored_bytes, part.origin)
                rows = self._convert(part, tensor, numpy.frombuffer(data, "u1").reshape(count, -1))
                if rows_of_head is not None:
                    rows = unpermute_heads(rows, rows_of_head)
                yield numpy.ascontiguousarray(rows)

    @staticmethod
    def _convert(part, tensor, rows):
        """Converts the bytes `rows` to the type that is written; a kept type needs none."""
        if tensor.kind in _KEPT_TYPES:
            return rows
        try:
            # A scale that is not finite gives weights that are not finite; the writer refuses them.
            with numpy.errstate(all="ignore"):
                return dequantize(rows, tensor.kind)
        except NotImplementedError as error:
            raise InputError(
                f"{part.origin}: tensor {tensor.name} has type {tensor.kind.name}, which"
                " the gguf package cannot convert"
            ) from error


def unpermute_heads(rows, rows_of_head):
    """Reorders query or key rows, [heads × rows_of_head, any], from GGUF's order to Hugging Face's.

    GGUF interleaves the two halves of a head, (0, d/2, 1, d/2 + 1, …), because its rope rotates
    neighbouring rows. Hugging Face's rope rotates row i with row i + d/2.
    """
    return rows.reshape(-1, rows_of_head // 2, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)
