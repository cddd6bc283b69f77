# SPDX-License-Identifier: Apache-2.0
"""Makes `tokenizer.json` from GGUF's metadata, for byte-level BPE with merges, named "gpt2".

GGUF names the pre-tokenizer but does not carry its rules, so this module defines each supported
name. An unknown or missing name is an error, because a guess would change tokens silently.
"""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from spillway_tools.command import InputError
from spillway_tools.model_config import ConfigReader
from spillway_tools.tokenizer_file import rust_errors

# The keys that this module reads.
TOKENIZER_KEYS = (
    "llama.context_length",
    "tokenizer.chat_template",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.model",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.unknown_token_id",
)
_CONTROL = 3
_USER_DEFINED = 4
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def _gpt2(prefix_space):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=True)


def _single_digits(prefix_space):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), _gpt2(prefix_space)]
    )


def _llama3(prefix_space):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False),
        ]
    )


_PRE_TOKENIZERS = {
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "codeshell": _single_digits,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
}


def special_token_ids(fields, vocab_size, origin):
    """Returns the entries of config.json that name tokens."""
    reader = ConfigReader(fields, origin)
    ids = {}
    for kind, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        key = f"tokenizer.ggml.{name}_token_id"
        value = reader.find(key)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < vocab_size:
            raise reader.error(key, f"a token below {vocab_size} is expected")
        ids[f"{kind}_token_id"] = value
    return ids


def tokenizer_files(fields, vocab_size, origin):
    """Returns the texts of tokenizer.json and tokenizer_config.json, by file name."""
    reader = ConfigReader(fields, origin)
    tokens = _tokens(reader, vocab_size)
    rules = _rules(reader)
    bos = _added_bos(reader, rules, len(tokens))
    with rust_errors(f"{origin}: the tokens and merges do not make a tokeniser"):
        text = _build(reader, tokens, rules, bos).to_str(pretty=False) + "\n"
    return {
        "tokenizer.json": text,
        "tokenizer_config.json": (
            json.dumps(_config(fields, tokens, bos), indent=2, ensure_ascii=False) + "\n"
        ),
    }


def _tokens(reader, vocab_size):
    if reader.find("tokenizer.ggml.model") != "gpt2":
        raise reader.error(
            "tokenizer.ggml.model",
            'only "gpt2" (byte-level BPE with merges) is supported: import the model\'s Hugging Face'
            " folder, which carries tokenizer.json",
        )
    tokens = _strings(reader, "tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens):
        raise reader.error("tokenizer.ggml.tokens", "it holds a token twice")
    if len(tokens) > vocab_size:
        raise reader.error(
            "tokenizer.ggml.tokens",
            f"these are {len(tokens)} tokens, and the embedding has {vocab_size} rows",
        )
    return tokens


def _strings(reader, key):
    value = reader.find(key)
    if not value or not isinstance(value, list) or not all(isinstance(s, str) for s in value):
        raise reader.error(key, "a list of strings is expected")
    return value


def _merges(reader):
    merges = [tuple(text.split(" ")) for text in _strings(reader, "tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise reader.error("tokenizer.ggml.merges", "two tokens with a space between are expected")
    return merges


def _token_types(reader, num_tokens):
    key = "tokenizer.ggml.token_type"
    types = reader.find(key)
    if types is None:
        return [1] * num_tokens
    if not isinstance(types, list) or len(types) != num_tokens:
        raise reader.error(key, f"a list of {num_tokens} numbers is expected, one for each token")
    return types


def _rules(reader):
    """Returns the function that makes the pre-tokenizer."""
    name = reader.find("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in _PRE_TOKENIZERS:
        raise reader.error(
            "tokenizer.ggml.pre",
            f"supported are {', '.join(sorted(_PRE_TOKENIZERS))}: import the model's Hugging Face"
            " folder instead",
        )
    return _PRE_TOKENIZERS[name]


def _added_bos(reader, rules, num_tokens):
    """Returns the id of the token that is added before every text, or None.

    Without add_bos_token it is as in llama.cpp: of the supported rules, only Llama 3's add one.
    """
    if not reader.boolean("tokenizer.ggml.add_bos_token", rules is _llama3):
        return None
    key = "tokenizer.ggml.bos_token_id"
    bos = reader.find(key)
    if type(bos) is not int or not 0 <= bos < num_tokens:
        raise reader.error(
            key, f"a token below {num_tokens} is expected, because it is added before every text"
        )
    return bos


def _add_bos(tokenizer, token, index):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[f"{token}:0", "$A:0"],
        pair=[f"{token}:0", "$A:0", f"{token}:1", "$B:1"],
        special_tokens=[(token, index)],
    )


def _build(reader, tokens, rules, bos):
    types = _token_types(reader, len(tokens))
    model = models.BPE(
        {token: index for index, token in enumerate(tokens)},
        _merges(reader),
        ignore_merges=rules is _llama3,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = rules(bool(reader.find("tokenizer.ggml.add_space_prefix")))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types)
            if kind == _CONTROL
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in zip(tokens, types)
            if kind == _USER_DEFINED
        ]
    )
    if bos is not None:
        _add_bos(tokenizer, tokens[bos], bos)
    return tokenizer


def _config(fields, tokens, bos):
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields.get("llama.context_length"),
    }
    for kind, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        index = fields.get(f"tokenizer.ggml.{key}_token_id")
        if type(index) is int and 0 <= index < len(tokens):
            config[f"{kind}_token"] = tokens[index]
    if bos is not None:
        config["add_bos_token"] = True
    if isinstance(fields.get("tokenizer.chat_template"), str):
        config["chat_template"] = fields["tokenizer.chat_template"]
    return config
