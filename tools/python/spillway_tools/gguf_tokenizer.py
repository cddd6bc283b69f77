# SPDX-License-Identifier: Apache-2.0
"""GGUF's tokenizer metadata as `tokenizer.json`: byte-level BPE with merges, the kind named "gpt2".

GGUF names the pre-tokenizer and carries no rules, so each name that is supported is spelled out
here. An unknown one is an error: guessing would change tokens silently.
"""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from spillway_tools.command import InputError

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
    """The entries of config.json that name tokens."""
    ids = {}
    for kind, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        value = fields.get(f"tokenizer.ggml.{key}_token_id")
        if value is None:
            continue
        if not isinstance(value, int) or not 0 <= value < vocab_size:
            raise InputError(
                f"{origin}: tokenizer.ggml.{key}_token_id is {value!r}; a token below {vocab_size}"
                " is expected"
            )
        ids[f"{kind}_token_id"] = value
    return ids


def tokenizer_files(fields, origin):
    """File name -> text of tokenizer.json and tokenizer_config.json."""
    tokens = _tokens(fields, origin)
    tokenizer = _build(fields, tokens, origin)
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False) + "\n",
        "tokenizer_config.json": (
            json.dumps(_config(fields, tokens), indent=2, ensure_ascii=False) + "\n"
        ),
    }


def _tokens(fields, origin):
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise InputError(
            f"{origin}: tokenizer.ggml.model is {kind!r}; only 'gpt2' (byte-level BPE with merges)"
            " is supported: import the model's Hugging Face folder, which carries tokenizer.json"
        )
    tokens = fields.get("tokenizer.ggml.tokens")
    if (
        not isinstance(tokens, list)
        or not tokens
        or not all(isinstance(token, str) for token in tokens)
    ):
        raise InputError(f"{origin}: tokenizer.ggml.tokens holds no list of strings")
    if len(set(tokens)) != len(tokens):
        raise InputError(f"{origin}: tokenizer.ggml.tokens holds a token twice")
    return tokens


def _build(fields, tokens, origin):
    name = fields.get("tokenizer.ggml.pre", "gpt-2")
    if name not in _PRE_TOKENIZERS:
        raise InputError(
            f"{origin}: tokenizer.ggml.pre is {name!r}; supported are "
            f"{', '.join(sorted(_PRE_TOKENIZERS))}: import the model's Hugging Face folder instead"
        )
    merges = [tuple(merge.split(" ")) for merge in fields.get("tokenizer.ggml.merges", [])]
    if not merges or any(len(merge) != 2 for merge in merges):
        raise InputError(f"{origin}: tokenizer.ggml.merges holds no list of pairs")
    types = fields.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if len(types) != len(tokens):
        raise InputError(
            f"{origin}: tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        )
    llama3 = _PRE_TOKENIZERS[name] is _llama3
    try:
        model = models.BPE(
            {token: index for index, token in enumerate(tokens)}, merges, ignore_merges=llama3
        )
    except Exception as error:  # a Rust error without a class of its own
        raise InputError(
            f"{origin}: tokenizer.ggml.merges does not fit the tokens: {error}"
        ) from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[name](
        bool(fields.get("tokenizer.ggml.add_space_prefix", False))
    )
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
    return tokenizer


def _config(fields, tokens):
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields.get("llama.context_length"),
    }
    for kind, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        index = fields.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            config[f"{kind}_token"] = tokens[index]
    if isinstance(fields.get("tokenizer.chat_template"), str):
        config["chat_template"] = fields["tokenizer.chat_template"]
    return config
