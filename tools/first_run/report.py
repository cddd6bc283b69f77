# SPDX-License-Identifier: Apache-2.0
"""Prints the summary of tools/quickstart from the files of the run, for readers who do not know Spillway."""

import argparse
import json
import math
import os
import pathlib
import textwrap

BYTES_A_PARAMETER = (("fp16 weights", 2), ("fp16 gradients", 2), ("fp32 master weights", 4), ("AdamW's moments", 8))
WIDTH = 100
LABEL_WIDTH = 14


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--model-and-text", required=True)
    parser.add_argument("--device-bytes", required=True)
    parser.add_argument("--pinned-bytes", required=True)
    parser.add_argument("--seconds", type=int, required=True)
    return parser.parse_args()


def size(size_bytes):
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes / 2**10:.0f} KiB"


def show(label, text):
    for number, line in enumerate(textwrap.wrap(text, WIDTH - LABEL_WIDTH)):
        print(f"{'' if number else label:<{LABEL_WIDTH}}{line}")


def sample(path):
    text = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
    return textwrap.shorten(text, 260, placeholder=" ...")


def main():
    arguments = parse()
    work = arguments.work
    before, after, run = (json.loads((work / name).read_text()) for name in ("before.json", "after.json", "train.json"))
    steps = [json.loads(line) for line in (work / "log.jsonl").read_text().splitlines()]
    show_memory(arguments, run)
    show("Loss", f"{before['loss']:.3f} before, {after['loss']:.3f} after, on {after['windows']} windows of text kept "
         f"apart (perplexity {math.exp(before['loss']):.1f} before, {math.exp(after['loss']):.1f} after; lower is "
         "better).")
    show("Speed", f"{run['tokens_per_s']:.0f} tokens/s, {sum(step['seconds'] for step in steps) / len(steps):.1f} s a "
         f"step. {size(run['read_bytes']['nvme'])} were read from disk and {size(run['written_bytes']['nvme'])} "
         f"written; computing went on during {100 * run['overlap']:.0f}% of the transfers.")
    show("Before", sample(work / "before.txt"))
    show("After", sample(work / "after.txt"))
    shown = os.path.relpath(work)
    show("Where", f"{shown}/result is the trained model, a Hugging Face folder (config.json, model.safetensors); "
         f"{shown}/store the training state; {shown}/log.jsonl the figures of every step.")
    show("Time", f"{arguments.seconds // 60} min {arguments.seconds % 60:02d} s in all. tools/spillway/README.md says how to go on.")


def show_memory(arguments, run):
    parameters, peak = run["parameters"], run["peak_bytes"]
    state = parameters * sum(count for _, count in BYTES_A_PARAMETER)
    parts = ", ".join(f"{name} {size(count * parameters)}" for name, count in BYTES_A_PARAMETER)
    memory = peak["device"] + peak["pinned"]
    show("Trained", f"{arguments.model_and_text}: {parameters / 1e6:.1f} million parameters, {run['steps']} steps, "
         "fp16-amp.")
    show("State", f"{size(state)}: {parts}.")
    show("Memory given", f"{arguments.device_bytes} of device memory (here a budget of ordinary memory that stands for "
         f"a GPU's) and {arguments.pinned_bytes} of pinned memory. At their peaks {size(peak['device'])} and "
         f"{size(peak['pinned'])} were used, {state / memory:.0f} times less than the state. The rest lay on disk: "
         f"{size(peak['nvme'])}. Beside them the computation itself took {size(run['workspace_bytes'])} of workspace.")


if __name__ == "__main__":
    main()
