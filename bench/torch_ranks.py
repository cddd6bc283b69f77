#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What does spillway.torch cost beside torch.optim.AdamW under FSDP2, and do several ranks use the rates of all their drives?

    bench/torch_ranks.py step --folder STORES [--tokens 1024] [--pinned 64MiB] [--rounds 9] [--out bench/results]
    bench/torch_ranks.py drives --folder STORES [--rate 40] [--pinned 8MiB] [--rounds 5] [--out bench/results]

`drives` needs root and cgroup version 1. Leaves torch_ranks_step.json or torch_ranks_drives.json in the folder --out. Exit code
1 means that a figure is beyond its limit.

`step`: two ranks, joined by gloo on the CPU, train a transformer of 25 M parameters in two ways, each with its own model: with
torch.optim.AdamW(fused=True), and with spillway.torch.AdamW, whose state is on NVMe. A round is one step of each, so that a
machine that is slower for a while slows both. Limit: the median, over rounds, of the ratio of their times is at most 1.15.

`drives`: 1, 2 and 4 ranks update 24 Mi parameters in fp32, whose state of 192 MiB is divided among them. Each rank is in a
blkio cgroup that lets it read and write --rate MB/s each, as if it had a drive of its own. Limits: N ranks take at most 1.1 / N
of the time of one, and each holds 1 / N of its bytes, within 5%, in its engine and on its drive.

Needs PyTorch (tools/setup --torch) and the package spillway.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "torch"), str(ROOT / "tools")]

import machine
import ranks
import spillway.torch as st
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")
PINNED = {"step": "64MiB", "drives": "8MiB"}  # with more, 4 ranks would have all state in memory
STEP_LIMIT = 1.15  # of torch.optim's time
SHARE_LIMIT = 1.1  # times 1 / N, of one rank's time
BYTES_LIMIT = 0.05  # by how much a rank's share of the bytes may differ from 1 / N, relative to 1 / N
WIDTH, LAYERS, VOCABULARY = 640, 5, 512
ELEMENTS = 24 << 20
ROWS = 12  # parameters of the part `drives`


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(WIDTH, 10, 4 * WIDTH, 0.0, batch_first=True)
                                          for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(-1, 1).flatten())


def steps(rank, flags):
    ways = []
    for is_ours in (False, True):
        model = Transformer()
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        store = {"store": os.path.join(flags.folder, "step{rank}"), "pinned": flags.pinned} if is_ours else {"fused": True}
        which = st.AdamW if is_ours else torch.optim.AdamW
        ways.append((model, which(model.parameters(), lr=1e-4, **store), []))
    for number in range(flags.rounds + 2):  # the first two are for warming up
        generator = torch.Generator().manual_seed(9 * number + rank)
        tokens = torch.randint(VOCABULARY, (flags.tokens // 256, 256), generator=generator)
        for model, optimizer, found in ways:
            torch.distributed.barrier()
            begin = time.perf_counter()
            loss = model(tokens)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            middle = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
            own = time.perf_counter() - middle
            torch.distributed.barrier()
            found.append((time.perf_counter() - begin, own, loss.item()))
    moved = ways[1][1].run.engine.stats()["nvme"]
    ways[1][1].run.close()
    return [found[2:] for _, _, found in ways], (moved["read_bytes"] + moved["written_bytes"]) / (flags.rounds + 2)


def spread(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def step(flags):
    results = ranks.run(2, steps, flags, timeout=3600)
    (theirs, ours), moved = results[0]
    ratio = spread([mine[0] / its[0] for its, mine in zip(theirs, ours, strict=True)])
    row = {"parameters": sum(param.numel() for param in Transformer().parameters()), "tokens_a_rank": flags.tokens,
           "seconds": {"torch.optim": statistics.median(each[0] for each in theirs),
                       "spillway.torch": statistics.median(each[0] for each in ours)},
           "step_seconds": {"torch.optim": statistics.median(each[1] for each in theirs),
                            "spillway.torch": statistics.median(each[1] for each in ours)},
           "moved_bytes_a_rank": moved, "ratio": ratio, "limit": STEP_LIMIT,
           "largest_difference_of_losses": max(abs(its[2] - mine[2]) for its, mine in zip(theirs, ours, strict=True))}
    print(f"step: {row['seconds']['torch.optim']:.3f} s with torch.optim.AdamW, {row['seconds']['spillway.torch']:.3f} s with "
          f"spillway.torch, ratio {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}), limit {STEP_LIMIT}; "
          f"a rank moves {moved / 1e6:.0f} MB a step")
    return row, ratio["median"] <= STEP_LIMIT


@contextlib.contextmanager
def own_drive(folder, rate):
    """Moves this process into a blkio cgroup that limits what it reads from, and writes to, the folder's drive."""
    device = os.stat(folder).st_dev
    group = BLKIO / f"spillway-{os.getpid()}"
    group.mkdir()
    try:
        for way in ("read", "write"):
            (group / f"blkio.throttle.{way}_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} {rate}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (BLKIO / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):  # a thread of the kernel's may still be in it
            group.rmdir()


def updates(rank, flags, count):
    with own_drive(flags.folder, flags.rate * 1_000_000):
        mesh = init_device_mesh("cpu", (count,))
        shape = (ELEMENTS // ROWS // 1024 // count, 1024)
        params = [torch.nn.Parameter(DTensor.from_local(torch.zeros(shape), mesh, [Shard(0)])) for _ in range(ROWS)]
        store = os.path.join(flags.folder, f"drives{count}-{rank}")
        optimizer = st.AdamW(params, lr=1e-3, store=store, pinned=flags.pinned)
        seconds = []
        for number in range(flags.rounds + 1):
            for param in params:
                param.grad = torch.full_like(param, 1.0 + number)
            torch.distributed.barrier()
            begin = time.perf_counter()
            optimizer.step()
            own = time.perf_counter() - begin
            torch.distributed.barrier()
            seconds.append((time.perf_counter() - begin, own))
        held = sum(optimizer.run.engine.spec(id)["size_bytes"] for id in optimizer.ids)
        on_disk = sum(path.stat().st_blocks * 512 for path in pathlib.Path(store).rglob("*") if path.is_file())
        optimizer.run.close()  # removes the store, which has no commit
        return seconds[1:], held, on_disk


def drives(flags):
    rows, is_within = [], True
    for count in (1, 2, 4):
        results = ranks.run(count, updates, flags, count, timeout=3600)
        seconds = spread([each[0] for each in results[0][0]])  # until the slowest rank has ended
        rows.append({"ranks": count, "seconds": seconds, "held_bytes": max(held for _, held, _ in results),
                     "on_disk_bytes": max(on_disk for _, _, on_disk in results)})
        row, first = rows[-1], rows[0]
        row["share_of_time"] = seconds["median"] / first["seconds"]["median"]
        row["limit"] = SHARE_LIMIT / count if count > 1 else 1.0
        for name in ("held_bytes", "on_disk_bytes"):
            row[f"share_of_{name}"] = row[name] / first[name]
            is_within &= abs(row[f"share_of_{name}"] * count - 1) <= BYTES_LIMIT
        is_within &= row["share_of_time"] <= row["limit"]
        print(f"drives: {count} ranks take {seconds['median']:.2f} s ({seconds['low']:.2f} to {seconds['high']:.2f}), "
              f"{row['share_of_time']:.3f} of one rank's (limit {row['limit']:.3f}), and each holds "
              f"{row['held_bytes'] / 1e6:.1f} MB, {row['share_of_held_bytes']:.3f} of one rank's; on disk "
              f"{row['on_disk_bytes'] / 1e6:.1f} MB, {row['share_of_on_disk_bytes']:.3f}", flush=True)
    return rows, is_within


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("step", "drives"))
    parser.add_argument("--folder", required=True, help="where the stores are made")
    parser.add_argument("--tokens", type=int, default=1024, help="of a step of a rank")
    parser.add_argument("--pinned", help="of a rank; step: 64MiB, drives: 8MiB")
    parser.add_argument("--rate", type=int, default=40, help="MB/s of a rank's drive")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=pathlib.Path, help="folder for torch_ranks_PART.json")
    flags = parser.parse_args()
    flags.pinned = flags.pinned or PINNED[flags.part]
    pathlib.Path(flags.folder).mkdir(parents=True, exist_ok=True)
    found, is_within = {"step": step, "drives": drives}[flags.part](flags)
    if flags.out:
        flags.out.mkdir(parents=True, exist_ok=True)
        result = {"v": 1, "machine": machine.describe(flags.folder) | {"torch": torch.__version__}, "pinned": flags.pinned,
                  "rounds": flags.rounds, flags.part: found}
        (flags.out / f"torch_ranks_{flags.part}.json").write_text(json.dumps(result, indent=1) + "\n")
    if not is_within:
        print(f"{flags.part}: beyond a limit", file=sys.stderr)
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
