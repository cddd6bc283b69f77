#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast is an AdamW update in memory, compared with DeepSpeed's CPU Adam?

Limit: 1.5 times the peer's parameters per second, with the same number of threads. Both take 16-bit gradients and write
16-bit weights. Spillway casts inside the update. The peer casts the gradient to fp32, updates its fp32 master weight, and
casts that. Master weight and moments are fp32. The two run in turns, so that a machine that slows down slows both. Reports
medians over rounds, with the lowest and the highest.

The peer is installed once, outside the repository, and built by its own package (some minutes):

  python3 -m venv /tmp/peer-venv
  /tmp/peer-venv/bin/pip install torch numpy setuptools wheel ninja packaging psutil py-cpuinfo hjson tqdm msgpack \\
      pydantic einops
  /tmp/peer-venv/bin/pip install deepspeed --no-build-isolation --no-deps
  PATH=/tmp/peer-venv/bin:$PATH python bench/peer_adam.py

Not part of any suite: it needs gigabytes of packages and a quiet machine.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise it looks for a GPU and prints that on stdout

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True
import machine  # noqa: E402  (tools/machine.py)

LIMIT = 1.5
ROW_ELEMENTS = 1024  # `bench update` takes multiples of this only


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=64 << 20, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="updates of the peer in a round; the median counts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--spillway", type=pathlib.Path, default=ROOT / "build/release/bin/spillway")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of the table")
    arguments = parser.parse_args()
    if arguments.parameters < 1 << 20 or arguments.parameters % ROW_ELEMENTS:
        parser.error(f"--parameters must be a multiple of {ROW_ELEMENTS} and at least {1 << 20}; it is "
                     f"{arguments.parameters}")
    if min(arguments.rounds, arguments.steps, arguments.threads) < 1:
        parser.error("--rounds, --steps and --threads must be at least 1")
    if not arguments.spillway.is_file():
        parser.error(f"there is no {arguments.spillway}: build it (tools/setup), or name another with --spillway")
    return arguments


class Peer:
    """A call runs DeepSpeed's update and its casts, and returns parameters per second."""

    def __init__(self, arguments):
        self._arguments = arguments
        torch.set_num_threads(arguments.threads)
        count = arguments.parameters
        self._master = torch.nn.Parameter(torch.full((count,), 2.0**-6))
        self._master.grad = torch.zeros(count)
        self._gradient = torch.full((count,), 2.0**-7, dtype=torch.float16)
        self._weight = torch.zeros(count, dtype=torch.float16)
        self._optimizer = DeepSpeedCPUAdam([self._master], lr=1e-4)
        self()  # the first call creates the moments

    def __call__(self):
        seconds = []
        for _ in range(self._arguments.steps):
            begin = time.perf_counter()
            self._master.grad.copy_(self._gradient)
            self._optimizer.step()
            self._weight.copy_(self._master.data)
            seconds.append(time.perf_counter() - begin)
        return self._arguments.parameters / statistics.median(seconds)


class Spillway:
    def __init__(self, arguments):
        self._command = [str(word) for word in (
            arguments.spillway, "bench", "update", "--optimizer", "adamw", "--state-format", "fp32", "--parameters",
            arguments.parameters, "--threads", arguments.threads, "--seconds", "2", "--json")]

    def __call__(self):
        ended = subprocess.run(self._command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            sys.exit(f"{' '.join(self._command)}: exit {ended.returncode}\n{ended.stderr}")
        [row] = json.loads(ended.stdout)["rows"]
        return row["parameters_per_second"]


def measure(arguments):
    turns = {"spillway": Spillway(arguments), "deepspeed": Peer(arguments)}
    rates = {name: [] for name in turns}
    for number in range(arguments.rounds):
        for name in list(turns)[:: -1 if number % 2 else 1]:
            rates[name].append(turns[name]())
            print(f"round {number + 1}/{arguments.rounds}  {name:<9}  {rates[name][-1] / 1e6:8.0f} M parameters/s",
                  file=sys.stderr)
    return rates


def spread(values):
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def main():
    arguments = parse()
    rates = measure(arguments)
    ratios = [ours / theirs for ours, theirs in zip(rates["spillway"], rates["deepspeed"])]
    summary = {"v": 1, "parameters": arguments.parameters, "threads": arguments.threads,
               "parameters_per_second": {name: spread(values) for name, values in rates.items()},
               "ratio": spread(ratios), "limit": LIMIT, "deepspeed": deepspeed.__version__,
               "torch": torch.__version__, "machine": machine.describe()}
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return
    print(machine.sentence(summary["machine"]))
    print(f"AdamW, {arguments.parameters} parameters, {arguments.threads} threads, deepspeed {summary['deepspeed']}, "
          f"torch {summary['torch']}")
    for name, row in summary["parameters_per_second"].items():
        print(f"{name:<9}  {row['median'] / 1e6:8.0f} M parameters/s  "
              f"({row['lowest'] / 1e6:.0f} to {row['highest'] / 1e6:.0f})")
    ratio = summary["ratio"]
    print(f"spillway / deepspeed, within rounds: {ratio['median']:.2f} ({ratio['lowest']:.2f} to "
          f"{ratio['highest']:.2f}); limit {LIMIT}")


if __name__ == "__main__":
    main()
