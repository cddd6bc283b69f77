# SPDX-License-Identifier: Apache-2.0
"""Helpers that the tests share: they run commands, and make tiny models and a byte-level BPE."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer, processors

_ROOT = Path(__file__).resolve().parents[2]
_TOOLS = _ROOT / "tools/python"
sys.path.insert(0, str(_ROOT / "tests"))
from seed import draw_seed, seed_line  # noqa: E402, F401

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 268,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


_TIMEOUT_SECONDS = 120
_MEMORY_BYTES = 4 << 30


def tool_command(module, *arguments):
    """Returns the command that runs `module`'s main()."""
    command = [sys.executable, "-c", f"from spillway_tools.{module} import main; main()"]
    return command + [os.fspath(a) if isinstance(a, (bytes, Path)) else str(a) for a in arguments]


def tool_environment(**changes):
    environment = {**os.environ, "PYTHONPATH": str(_TOOLS), **changes}
    environment.pop("PYTHONUNBUFFERED", None)  # with it, an earlier write would fail on a full disk
    return environment


class ToolTest(unittest.TestCase):
    """Each test has a folder of its own, `self.folder`."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        # Under nohup, or in the background of a shell, the tests ignore some signals. The processes
        # that they start would ignore them too.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)

    def run_tool(self, module, *arguments, expect=0, **environment):
        """Runs `module`'s main() in its own process, which may take 4 GiB and two minutes. Returns
        the finished process, whose exit code must be `expect`."""
        finished = subprocess.run(
            tool_command(module, *arguments),
            env=tool_environment(**environment),
            capture_output=True,
            text=True,
            errors="backslashreplace",
            check=False,
            timeout=_TIMEOUT_SECONDS,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES,) * 2),
        )
        self.assertEqual(finished.returncode, expect, finished.stderr)
        self.assertNotIn("Traceback", finished.stderr)
        return finished

    def assert_import_fails(self, source, *words):
        """Importing `source` fails with a message that has its name and `words`. No file stays."""
        before = sorted(path.name for path in self.folder.iterdir())
        failed = self.run_tool("import_command", source, self.folder / "out", expect=1)
        message = failed.stderr.splitlines()[-1]
        self.assertIn(str(source), message)
        for word in words:
            self.assertIn(word, message)
        self.assertNotIn(".partial", failed.stderr)
        self.assertLess(len(failed.stderr), 5000)
        self.assert_nothing_left(*before)

    def assert_nothing_left(self, *names):
        """The folder holds `names` and nothing else."""
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), sorted(names))


def byte_tokens():
    """Returns GPT-2's 256 printable stand-ins for bytes, indexed by the byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    stand_ins = {byte: chr(byte) for byte in plain}
    stand_ins.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return [stand_ins[byte] for byte in range(256)]


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "o r", "Ġ a", "Ċ Ċ", "Ġ Ġ", "a n"]


def vocabulary():
    """Returns the tokens of a small byte-level BPE: 3 special ones, 256 bytes and 9 merges."""
    return SPECIAL + byte_tokens() + [merge.replace(" ", "") for merge in MERGES]


def tokenizer_json():
    """Returns `vocabulary()` as a tokenizer.json, written without the tokenizers package."""
    added = [
        {
            "id": index,
            "content": token,
            "special": True,
            "normalized": False,
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
        }
        for index, token in enumerate(SPECIAL)
    ]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    digits = {"type": "Digits", "individual_digits": True}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, level]},
            "decoder": level,
            "model": {
                "type": "BPE",
                "vocab": {token: index for index, token in enumerate(vocabulary())},
                "merges": MERGES,
            },
        }
    )


def add_bos(folder):
    """Makes the tokeniser in `folder` add token 1 before every text, as Llama 3's does."""
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[1]} $A", special_tokens=[(SPECIAL[1], 1)]
    )
    tokenizer.save(path)


GPT2_CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "vocab_size": 268,
    "n_embd": 32,
    "n_inner": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "layer_norm_epsilon": 1e-05,
    "attn_pdrop": 0.1,
}


def gpt2_tensors(prefix="transformer.", seed=7):
    """Returns random fp32 weights for GPT2_CONFIG by Hugging Face name."""
    random = numpy.random.default_rng(seed)
    shapes = {"wte": (268, 32), "wpe": (128, 32), "ln_f": (32,)}
    for layer in range(2):
        for name, shape in {
            "ln_1": (32,),
            "attn.c_attn": (32, 96),
            "attn.c_proj": (32, 32),
            "ln_2": (32,),
            "mlp.c_fc": (32, 64),
            "mlp.c_proj": (64, 32),
        }.items():
            shapes[f"h.{layer}.{name}"] = shape
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"{prefix}{name}.weight"] = random.standard_normal(shape, "f4")
        if name not in ("wte", "wpe"):
            tensors[f"{prefix}{name}.bias"] = random.standard_normal(shape[-1:], "f4")
    return tensors


def model_tensors(seed=7, tied=True):
    """Returns random fp32 weights for CONFIG by Hugging Face name."""
    random = numpy.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (268, 32), "model.norm.weight": (32,)}
    if not tied:
        shapes["lm_head.weight"] = (268, 32)
    for layer in range(2):
        for name, shape in {
            "input_layernorm": (32,),
            "self_attn.q_proj": (32, 32),
            "self_attn.k_proj": (16, 32),
            "self_attn.v_proj": (16, 32),
            "self_attn.o_proj": (32, 32),
            "post_attention_layernorm": (32,),
            "mlp.gate_proj": (64, 32),
            "mlp.up_proj": (64, 32),
            "mlp.down_proj": (32, 64),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return {name: random.standard_normal(shape, "f4") for name, shape in shapes.items()}


def write_folder(folder, tensors=None, config=None):
    """Writes a Hugging Face folder. Returns its tensors."""
    tensors = model_tensors() if tensors is None else tensors
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or CONFIG), encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return tensors
