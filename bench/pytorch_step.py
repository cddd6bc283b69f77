#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast is a training step in memory, compared with eager PyTorch?

Limit: Spillway's fastest precision, with activation checkpointing off, reaches at least 1.2 times the tokens/s of eager
PyTorch in fp32. Model, window, micro-batch and threads are the same. All contenders run in turns, so that a machine that
slows down slows all of them. Reports medians over steps; the first step of each turn is left out. Also reports PyTorch's
bf16 autocast, and the ratio of Spillway's bf16 to it. On a processor with bf16 products (AVX512-BF16, AMX) autocast uses
them. Spillway always multiplies in fp32, for the same bits on every instruction set.

  python3 -m venv /tmp/torch-venv && /tmp/torch-venv/bin/pip install torch transformers numpy
  /tmp/torch-venv/bin/python bench/pytorch_step.py --model build/quickstart/model --data build/quickstart/data

Not part of any suite: it needs gigabytes of packages and a quiet machine.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True
import machine  # noqa: E402  (tools/machine.py)

LIMIT = 1.2


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a folder with train.npy")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--spillway", type=pathlib.Path, default=ROOT / "build/release/bin/spillway")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of the table")
    return parser.parse_args()


class SpillwayTurn:
    def __init__(self, arguments, precision):
        self._arguments, self._precision = arguments, precision

    def __call__(self):
        """Returns the seconds of each measured step."""
        arguments = self._arguments
        with tempfile.TemporaryDirectory(prefix="spillway-bench-") as folder:
            log = pathlib.Path(folder) / "log.jsonl"
            command = [arguments.spillway, "train", "--model", arguments.model, "--data", arguments.data,
                       "--steps", arguments.steps + 1, "--seq", arguments.seq, "--batch", arguments.batch,
                       "--precision", self._precision, "--checkpoint-activations", "off", "--lr", "1e-5",
                       "--threads", arguments.threads, "--log-json", log, "--json"]
            subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           check=True)
            return [json.loads(line)["seconds"] for line in log.read_text().splitlines()][1:]


class PyTorchTurn:
    """Like SpillwayTurn, for PyTorch. Keeps its model between turns."""

    def __init__(self, arguments, autocast):
        self._arguments, self._autocast = arguments, autocast
        self._model = transformers.LlamaForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
        self._model.config.use_cache = False
        self._model.train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5, betas=(0.9, 0.95), fused=True)
        self._tokens = numpy.load(arguments.data / "train.npy", mmap_mode="r")
        self._position = 0

    def __call__(self):
        return [self._step() for _ in range(self._arguments.steps + 1)][1:]

    def _step(self):
        begin = time.perf_counter()
        inputs, targets = self._windows()
        with torch.autocast("cpu", torch.bfloat16) if self._autocast else contextlib.nullcontext():
            logits = self._model(inputs).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        loss.item()
        return time.perf_counter() - begin

    def _windows(self):
        seq, count = self._arguments.seq, self._arguments.batch
        begin, self._position = self._position, self._position + seq * count
        ids = torch.from_numpy(self._tokens[begin : begin + seq * count + 1].astype(numpy.int64))
        return ids[:-1].view(count, seq), ids[1:].view(count, seq)


def measure(arguments):
    turns = {
        "spillway fp32": SpillwayTurn(arguments, "fp32"),
        "spillway fp16-amp": SpillwayTurn(arguments, "fp16-amp"),
        "spillway bf16": SpillwayTurn(arguments, "bf16"),
        "pytorch fp32": PyTorchTurn(arguments, autocast=False),
        "pytorch bf16 autocast": PyTorchTurn(arguments, autocast=True),
    }
    seconds = {name: [] for name in turns}
    for round_number in range(arguments.rounds):
        for name, turn in turns.items():
            steps = turn()
            seconds[name] += steps
            print(f"round {round_number + 1}/{arguments.rounds}  {name:<22}  "
                  f"{', '.join(f'{step:.2f}' for step in steps)} s a step", file=sys.stderr)
    return seconds


def summarise(arguments, seconds):
    step_tokens = arguments.seq * arguments.batch
    rows = {}
    for name, values in seconds.items():
        speeds = sorted(step_tokens / value for value in values)
        rows[name] = {"tokens_per_s": statistics.median(speeds), "slowest": speeds[0], "fastest": speeds[-1]}
    ours = max(row["tokens_per_s"] for name, row in rows.items() if name.startswith("spillway"))
    autocast = rows["pytorch bf16 autocast"]["tokens_per_s"]
    return {"v": 1, "step_tokens": step_tokens, "threads": arguments.threads, "rows": rows,
            "ratio_to_fp32": ours / rows["pytorch fp32"]["tokens_per_s"],
            "ratio_to_bf16": ours / autocast,
            "ratio_of_bf16": rows["spillway bf16"]["tokens_per_s"] / autocast,
            "torch": torch.__version__, "transformers": transformers.__version__,
            "machine": machine.describe()}


def print_table(result):
    print(machine.sentence(result["machine"]))
    print(f"torch {result['torch']}, transformers {result['transformers']}, {result['threads']} threads, "
          f"{result['step_tokens']} tokens a step, checkpointing off")
    print(f"{'':<24}{'median':>8}{'slowest':>9}{'fastest':>9}  tokens/s")
    for name, row in result["rows"].items():
        print(f"{name:<24}{row['tokens_per_s']:>8.1f}{row['slowest']:>9.1f}{row['fastest']:>9.1f}")
    met = "met" if result["ratio_to_fp32"] >= LIMIT else "MISSED"
    print(f"Spillway's faster precision: {result['ratio_to_fp32']:.2f} of PyTorch fp32 (limit {LIMIT}: {met}), "
          f"{result['ratio_to_bf16']:.2f} of bf16 autocast; its bf16: {result['ratio_of_bf16']:.2f} of bf16 autocast")


def main():
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    result = summarise(arguments, measure(arguments))
    if arguments.json:
        print(json.dumps(result))
    else:
        print_table(result)


if __name__ == "__main__":
    main()
