#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the loss of `spillway eval` on the first validation windows with that of transformers in fp32.

  build/reference-venv/bin/python tests/reference/compare_eval.py --model build/quickstart/model \\
      --data build/quickstart/data --windows 8 --seq 256

Prints both and exits 1 if they differ by more than --tolerance (0.01 nats). Arguments after -- are passed to
`spillway eval`:  ... -- --device-bytes 48MiB --pinned-bytes 96MiB --store /tmp/scratch
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import numpy
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]


def parse():
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a folder with valid.npy")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--tolerance", type=float, default=0.01, help="nats (default: %(default)s)")
    parser.add_argument("--spillway", type=pathlib.Path, default=ROOT / "build/release/bin/spillway")
    return parser.parse_args(words[:cut]), words[cut + 1:]


def spillway_loss(arguments, further):
    command = [arguments.spillway, "eval", "--model", arguments.model, "--data", arguments.data,
               "--seq", arguments.seq, "--batches", arguments.windows, "--json", *further]
    finished = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=False)
    if finished.returncode != 0:
        sys.exit(f"compare_eval: {arguments.spillway} eval exited {finished.returncode}")
    answer = json.loads(finished.stdout)
    if answer["windows"] != arguments.windows:
        sys.exit(f"compare_eval: valid.npy has only {answer['windows']} windows of {arguments.seq} tokens")
    return answer["loss"]


@torch.no_grad()
def transformers_loss(arguments):
    model = transformers.LlamaForCausalLM.from_pretrained(arguments.model, torch_dtype=torch.float32)
    tokens = numpy.load(arguments.data / "valid.npy", mmap_mode="r")
    losses = []
    for begin in range(0, arguments.windows * arguments.seq, arguments.seq):
        window = torch.from_numpy(tokens[begin : begin + arguments.seq + 1].astype(numpy.int64))
        logits = model(window[None, :-1]).logits[0].float()
        losses.append(torch.nn.functional.cross_entropy(logits, window[1:]).item())
    return sum(losses) / len(losses)


def main():
    arguments, further = parse()
    begin = time.monotonic()
    ours = spillway_loss(arguments, further)
    middle = time.monotonic()
    theirs = transformers_loss(arguments)
    end = time.monotonic()
    reference = f"transformers {transformers.__version__}, torch {torch.__version__}, fp32"
    print(f"mean loss of {arguments.windows} windows of {arguments.seq} tokens")
    print(f"  {'spillway eval':<56}{ours:.6f}  ({middle - begin:.1f} s)")
    print(f"  {reference:<56}{theirs:.6f}  ({end - middle:.1f} s)")
    agree = abs(ours - theirs) <= arguments.tolerance
    print(f"  {'difference':<56}{abs(ours - theirs):.6f}  ({'within' if agree else 'MORE THAN'} "
          f"{arguments.tolerance})")
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
