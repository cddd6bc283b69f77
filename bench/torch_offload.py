#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What does spillway.torch cost, compared with PyTorch with everything in memory?

    bench/torch_offload.py --model FOLDER --data TOKENS.npy --folder STORES [--rounds 7] [--device cuda] [--json FILE]

Fine-tunes a Hugging Face causal language model in several ways, with --windows of 256 tokens per step. The weights are random
if the folder has only config.json. Each way has its own model in this process, and a round is one step of each, so that a
machine that is slower for a while slows all of them. Ratios are medians, over rounds, of a way's tokens per second to
PyTorch's in the same round, with the range; `step()` is the optimizer's part alone. For all ways, glibc keeps freed blocks of
less than 32 MiB, unless MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_ is set. On a GPU, each time ends when the GPU has
finished. Limits, on the CPU: step() in memory takes at most 1.03 times as long as torch.optim.AdamW(fused=True)'s. Tokens per
second are at least 0.95 of PyTorch's in pinned memory, 0.90 on NVMe with update="backward", and 0.75 on NVMe with clipping.

Needs PyTorch, transformers and the package spillway: tools/setup --torch, and build/torch-venv/bin/pip install .
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
MALLOC = {"MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "33554432"}
if not MALLOC.keys() & os.environ.keys():  # glibc reads them at the start of a program
    os.environ.update(MALLOC)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

import numpy
import spillway.torch as st
import torch
from transformers import AutoConfig, AutoModelForCausalLM

WINDOW = 256  # tokens


class Way:
    def __init__(self, name, flags, make, clip=True):
        self.name, self.clip = name, clip
        self.device = torch.device(flags.device)
        self.model = load(flags.model)
        self.run, self.optimizer = make(self.model.to(self.device))
        self.model.to(self.device)  # moves the buffers of an offloaded model, too
        self.seconds, self.step_seconds, self.losses, self.moved = [], [], [], []

    def step(self, tokens):
        before = self.moved_bytes()
        begin = self.now()
        self.optimizer.zero_grad()
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        middle = self.now()
        self.optimizer.step()
        end = self.now()
        self.seconds.append(end - begin)
        self.step_seconds.append(end - middle)
        self.losses.append(loss.item())
        self.moved.append(self.moved_bytes() - before)

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def moved_bytes(self):
        if self.run is None:
            return 0
        nvme = self.run.engine.stats()["nvme"]
        return nvme["read_bytes"] + nvme["written_bytes"]


def load(folder):
    if any(pathlib.Path(folder).glob("*.safetensors")):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)


def make_ways(flags):
    def torchs(model):
        return None, torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def ours(name, offload=False, on_nvme=True, **more):
        def make(model):
            run = st.open(str(pathlib.Path(flags.folder) / name) if on_nvme else None, pinned=flags.pinned if on_nvme else None,
                          device=flags.device if offload else "cpu")
            if offload:
                st.offload(model, run)
            return run, st.AdamW(model.parameters(), lr=1e-5, store=run, **more)
        return make

    yield Way("PyTorch, fused AdamW", flags, torchs)
    yield Way("state in pinned memory", flags, ours("memory", on_nvme=False))
    yield Way("state on NVMe, backward", flags, ours("backward", update="backward"), clip=False)
    yield Way("state on NVMe, clipping", flags, ours("clipping"))
    if not flags.short:
        yield Way("weights and gradients, too", flags, ours("all", offload=True, gradients="engine"))


def spread(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "data", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pinned", default="512MiB")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--windows", type=int, default=2, help="of a step")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--short", action="store_true", help="without weights and gradients on NVMe")
    parser.add_argument("--json")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    tokens = numpy.load(flags.data, mmap_mode="r")

    size = flags.windows * WINDOW
    ways = list(make_ways(flags))
    for step in range(flags.rounds + 2):  # the first two are for warming up, until there is a plan
        window = torch.from_numpy(tokens[step * size:(step + 1) * size].astype(numpy.int64)).view(flags.windows, WINDOW)
        window = window.to(flags.device)
        for way in ways:
            way.step(window)
        print(f"round {step - 1 if step > 1 else 'to warm up'}: " +
              ", ".join(f"{way.seconds[-1]:.2f}" for way in ways) + " s", file=sys.stderr, flush=True)
    rows = []
    base = ways[0]
    for way in ways:
        ratios = [theirs / mine for theirs, mine in zip(base.seconds[2:], way.seconds[2:])]
        steps = [mine / theirs for theirs, mine in zip(base.step_seconds[2:], way.step_seconds[2:])]
        rows.append({"way": way.name, "tokens_per_second": size / statistics.median(way.seconds[2:]), "ratio": spread(ratios),
                     "step_seconds": statistics.median(way.step_seconds[2:]), "step_ratio": spread(steps),
                     "nvme_gb_a_step": statistics.median(way.moved[2:]) / 1e9, "last_loss": way.losses[-1]})
    print(f"{'':28}{'tokens/s':>9}{'of PyTorch':>24}{'step() s':>10}{'of fused':>24}{'NVMe GB':>9}{'loss':>8}")
    for row in rows:
        cells = [f"{row[name]['median']:.2f} ({row[name]['low']:.2f} to {row[name]['high']:.2f})"
                 for name in ("ratio", "step_ratio")]
        print(f"{row['way']:28}{row['tokens_per_second']:9.0f}{cells[0]:>24}{row['step_seconds']:10.2f}{cells[1]:>24}"
              f"{row['nvme_gb_a_step']:9.2f}{row['last_loss']:8.4f}")
    if flags.json:
        machine = {"cpu": platform.processor() or platform.machine(), "kernel": platform.release(),
                   "torch": torch.__version__, "threads": flags.threads, "tokens_a_step": size,
                   "environment": {name: os.environ[name] for name in (*MALLOC, "OMP_WAIT_POLICY") if name in os.environ},
                   "device": torch.cuda.get_device_name() if flags.device != "cpu" else "cpu"}
        pathlib.Path(flags.json).write_text(json.dumps({"v": 1, "machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
