#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much time and memory do peers need that train PyTorch models with the optimizer's state on NVMe?

    bench/torch_peers.py --model FOLDER --data TOKENS.npy --folder STORES [--steps 6] [--rounds 3] [--json FILE]

Fine-tunes a Hugging Face causal language model in fp32, with 512 tokens per step and gradients clipped to 1.0. The ways are
plain PyTorch, spillway.torch, DeepSpeed's ZeRO-3 with the optimizer on NVMe, and torchao's offloading optimizer. Each run of
a way is its own process, and a round is one run of each way. Prints tokens per second (the median over the steps of all
rounds, without the first two steps of each run), the peaks of resident and of anonymous memory, the bytes on disk at the end,
the bytes moved to and from the disk per step, and the last loss. A way that cannot run is in the table with its error.

Needs PyTorch, transformers and the package spillway. A peer that is not installed is reported as such. DeepSpeed runs on the
CPU (DS_ACCELERATOR=cpu) and compiles its operators in its first run, for which it needs g++ and libaio-dev.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")

LEARNING_RATE, CLIP = 1e-5, 1.0


def load_model(flags):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(flags.threads)
    return AutoModelForCausalLM.from_pretrained(flags.model, dtype=torch.float32)


def plain_step(model, optimizer):
    """Returns a function that runs one step of an ordinary training loop."""
    import torch

    def step(tokens):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()
    return step


def pytorch(flags, folder):
    import torch
    model = load_model(flags)
    return plain_step(model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True))


def spillway(flags, folder, all_offloaded=False):
    import spillway.torch as st
    model = load_model(flags)
    run = st.open(folder, pinned=flags.pinned, report=False)
    if all_offloaded:
        st.offload(model, run)
    gradients = "engine" if all_offloaded else "torch"
    return plain_step(model, st.AdamW(model.parameters(), lr=LEARNING_RATE, store=run, gradients=gradients))


def spillway_all(flags, folder):
    return spillway(flags, folder, all_offloaded=True)


def deepspeed(flags, folder):
    os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29000 + os.getpid() % 1000), RANK="0",
                      LOCAL_RANK="0", WORLD_SIZE="1")
    import deepspeed as ds
    ds.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    model = load_model(flags)
    config = {
        "train_micro_batch_size_per_gpu": 2, "gradient_clipping": CLIP,
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "sub_group_size": 20_000_000,
                              # Four tensors of each of the three groups that are read, updated and written at the same time.
                              "offload_optimizer": {"device": "nvme", "nvme_path": folder, "pin_memory": False,
                                                    "pipeline_read": True, "pipeline_write": True, "buffer_count": 12}},
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False,
                "overlap_events": True}}
    engine, _, _, _ = ds.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(tokens):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss.item()
    return step


def torchao(flags, folder):
    import torch
    from torchao.optim import CPUOffloadOptimizer
    model = load_model(flags)
    return plain_step(model, CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, lr=LEARNING_RATE))


WAYS = {"PyTorch, all in memory": pytorch, "spillway.torch, state on NVMe": spillway,
        "spillway.torch, weights and gradients, too": spillway_all, "DeepSpeed ZeRO-3, optimizer on NVMe": deepspeed,
        "torchao CPUOffloadOptimizer": torchao}


class Peak:
    """Records the largest anonymous memory of this process."""

    def __init__(self):
        self.bytes = 0
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            self.bytes = max(self.bytes, status_bytes("RssAnon"))
            time.sleep(0.02)


def status_bytes(name):
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)[1]) * 1024


def disk_bytes(name):
    return int(re.search(rf"^{name}: (\d+)$", pathlib.Path("/proc/self/io").read_text(), re.MULTILINE)[1])


def run_one(flags):
    """Runs one way in this process. The last line on stdout is JSON with its figures."""
    import numpy
    import torch
    peak = Peak()
    step = WAYS[flags.way](flags, flags.folder)
    tokens = numpy.load(flags.data, mmap_mode="r")
    seconds, moved, loss = [], [], 0.0
    for number in range(flags.steps):
        window = torch.from_numpy(tokens[number * 512:(number + 1) * 512].astype(numpy.int64)).view(2, 256)
        before, begin = disk_bytes("read_bytes") + disk_bytes("write_bytes"), time.perf_counter()
        loss = step(window)
        seconds.append(time.perf_counter() - begin)
        moved.append(disk_bytes("read_bytes") + disk_bytes("write_bytes") - before)
    held = sum(file.stat().st_blocks * 512 for file in pathlib.Path(flags.folder).rglob("*") if file.is_file())
    print(json.dumps({"seconds": seconds[2:], "moved": moved[2:], "loss": loss, "peak_rss": status_bytes("VmHWM"),
                      "peak_anonymous": peak.bytes, "disk": held, "torch": torch.__version__}), flush=True)
    os._exit(0)  # skips the interpreter's shutdown, which a peer's threads may disturb


def run_child(flags, way):
    folder = pathlib.Path(flags.folder) / re.sub(r"\W+", "-", way)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, __file__, "--model", flags.model, "--data", flags.data, "--folder", str(folder), "--steps",
               str(flags.steps), "--pinned", flags.pinned, "--threads", str(flags.threads), "--way", way]
    ended = subprocess.run(command, capture_output=True, text=True)
    shutil.rmtree(folder, ignore_errors=True)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode == 0 and lines:
        return json.loads(lines[-1])
    errors = [line for line in ended.stderr.splitlines() if re.match(r"\w*(Error|Exception|Interrupt)\b|\w+\.\w*Error", line)]
    return {"error": errors[-1] if errors else f"exit status {ended.returncode}: {ended.stderr[-300:]}"}


def summary(way, runs):
    good = [run for run in runs if "error" not in run]
    if not good:
        return {"way": way, "error": runs[-1]["error"]}
    rates = [512 / seconds for run in good for seconds in run["seconds"]]
    return {"way": way, "tokens_per_second": statistics.median(rates), "lowest": min(rates), "highest": max(rates),
            "peak_rss_bytes": max(run["peak_rss"] for run in good), "peak_anonymous_bytes": max(run["peak_anonymous"] for run in good),
            "disk_bytes": good[-1]["disk"], "moved_bytes": statistics.median(m for run in good for m in run["moved"]),
            "loss": good[-1]["loss"], "torch": good[-1]["torch"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "data", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--steps", type=int, default=6, help="of each run, of which the first two are not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pinned", default="512MiB", help="what spillway may take of memory for what is on its way")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.steps < 3:
        parser.error("--steps must be at least 3: the first two are not counted")
    if flags.way:
        try:
            run_one(flags)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    runs = {way: [] for way in WAYS}
    for number in range(flags.rounds):
        for way in WAYS:
            if runs[way] and "error" in runs[way][-1]:
                continue
            runs[way].append(run_child(flags, way))
            print(f"round {number + 1}: {way}: {runs[way][-1].get('error') or 'done'}", file=sys.stderr, flush=True)
    rows = [summary(way, runs[way]) for way in WAYS]
    print(f"{'':44}{'tokens/s':>18}{'peak MiB':>10}{'anonymous':>11}{'disk MiB':>10}{'moved MB a step':>17}{'loss':>9}")
    for row in rows:
        if "error" in row:
            print(f"{row['way']:44}did not run: {row['error']}")
            continue
        rate = f"{row['tokens_per_second']:.0f} ({row['lowest']:.0f} to {row['highest']:.0f})"
        mib = [row[name] / 2**20 for name in ("peak_rss_bytes", "peak_anonymous_bytes", "disk_bytes")]
        print(f"{row['way']:44}{rate:>18}{mib[0]:10.0f}{mib[1]:11.0f}{mib[2]:10.0f}{row['moved_bytes'] / 1e6:17.0f}"
              f"{row['loss']:9.4f}")
    if flags.json:
        machine = {"cpu": platform.processor() or platform.machine(), "kernel": platform.release(), "threads": flags.threads}
        pathlib.Path(flags.json).write_text(json.dumps({"v": 1, "machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
