#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a transformer as a pipeline: every rank has the weights, gradients and optimizer state of its layers in its own store.

    torchrun --nproc-per-node 2 tools/python/examples/pipeline.py STORE [--layers 8] [--width 256] [--steps 5] [--cut 5]

The ranks first measure what each kind of layer takes: the seconds of forward and backward, and the seconds a byte of an
update. Then they cut the model between layers where the slowest stage is fastest; of cuts that are nearly as fast, they take
the one whose largest stage has the fewest bytes. --cut gives the first layer of each stage but the first instead. Rank 0
prints a line a stage on stderr, with the seconds that were expected and those that it took, and a line of JSON with the
losses at the end. --memory trains the same pipeline with torch.optim.AdamW, all in memory.
"""

import argparse
import contextlib
import itertools
import json
import shutil
import statistics
import sys
import time

import spillway.torch as st
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WORDS, LENGTH, MICRO_BATCH = 8192, 64, 2


class Block(torch.nn.Module):
    """Attention and a feed-forward network, each with a norm before it: [batch, length, width] → the same."""

    def __init__(self, width):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def make_layer(number, flags):
    """Returns a layer: the embedding, then blocks, then the head. Its first weights do not depend on the cut."""
    torch.manual_seed(number)
    if number == 0:
        return torch.nn.Embedding(WORDS, flags.width)
    if number == flags.layers + 1:
        return torch.nn.Sequential(torch.nn.LayerNorm(flags.width), torch.nn.Linear(flags.width, WORDS, bias=False))
    return Block(flags.width)


def batch_of(step, flags):
    """Returns the tokens of a step, which each follow from the one before, and of each the next one."""
    first = torch.randint(0, WORDS, (MICRO_BATCH * flags.micro_batches, 1), generator=torch.Generator().manual_seed(step))
    tokens = (first + 7 * torch.arange(LENGTH + 1)) % WORDS
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def input_of(layer, flags, device):
    """Returns a micro-batch for a layer: without values on the meta device."""
    if layer == 0:
        return torch.zeros(MICRO_BATCH, LENGTH, dtype=torch.int64, device=device)
    return torch.zeros(MICRO_BATCH, LENGTH, flags.width, device=device, requires_grad=True)


# --- Measures ---


@contextlib.contextmanager
def seconds_of(into):
    """Appends the seconds that the block takes."""
    begun = time.monotonic()
    yield
    into.append(time.monotonic() - begun)


def bytes_in_store(module):
    """Returns the bytes of a module's weights and gradients in fp32 and of AdamW's two moments."""
    return sum(16 * param.numel() for param in module.parameters())


def measured(flags, folder):
    """Returns the seconds of a step, and the bytes in the store, of each layer, as the slowest of the ranks has them. One layer
    of each kind is in memory at a time. The update of a block tells how fast bytes go over this rank's drive."""
    kinds = {0: 0, flags.layers + 1: flags.layers + 1}  # by number; all blocks are of the kind of layer 1
    seconds, sizes = {}, {}
    for kind in (0, 1, flags.layers + 1):
        layer, taken = make_layer(kind, flags), []
        for _ in range(4):
            with seconds_of(taken):
                layer(input_of(kind, flags, "cpu")).sum().backward()
        seconds[kind], sizes[kind] = flags.micro_batches * statistics.median(taken[1:]), bytes_in_store(layer)
    block, taken = make_layer(1, flags), []
    # A layer's part of the memory: at least what an operation uses.
    pinned = max(flags.pinned * dist.get_world_size() // (flags.layers + 2), 2 + flags.width**2 * 32 // 2**20)
    with st.open(folder, pinned=f"{pinned}MiB", report=False) as run:
        optimizer = make_optimizer(st.offload(block, run), run)
        for _ in range(3):
            block(input_of(1, flags, "cpu")).sum().backward()
            with seconds_of(taken):
                optimizer.step()
    shutil.rmtree(folder, ignore_errors=True)
    a_byte = statistics.median(taken[1:]) / sizes[1]
    mine = [(seconds[kind] + sizes[kind] * a_byte, sizes[kind])
            for kind in (kinds.get(layer, 1) for layer in range(flags.layers + 2))]
    of_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    return [(max(each[0] for each in of_layer), of_layer[0][1]) for of_layer in zip(*of_ranks)]


def best_cut(layers, stages):
    """Returns the first layer of each stage but the first. `layers`: (seconds, bytes) of each. Tries all cuts."""
    def cost(cut):
        parts = [layers[first:last] for first, last in zip((0, *cut), (*cut, len(layers)))]
        return max(sum(seconds for seconds, _ in part) for part in parts), max(sum(size for _, size in part) for part in parts)

    costs = {cut: cost(cut) for cut in itertools.combinations(range(1, len(layers)), stages - 1)}
    fastest = min(seconds for seconds, _ in costs.values())
    return min((size, seconds, cut) for cut, (seconds, size) in costs.items() if seconds <= 1.03 * fastest)[2]


class TimedStage(PipelineStage):
    """A stage that records how long it computes, and not how long it waits for other stages."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seconds = []

    def forward_one_chunk(self, *args, **kwargs):
        with seconds_of(self.seconds):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args, **kwargs):
        with seconds_of(self.seconds):
            return super().backward_one_chunk(*args, **kwargs)


# --- Training ---


def make_optimizer(module, run):
    return st.AdamW(module.parameters(), lr=1e-3, store=run, gradients="engine")


class Trainer:
    """What a rank trains: its stage, the layers from `first` to before `last`, with everything in its store."""

    def __init__(self, flags, cut):
        self.flags, self.rank, self.ranks = flags, dist.get_rank(), dist.get_world_size()
        self.first, self.last = (0, *cut)[self.rank], (*cut, flags.layers + 2)[self.rank]
        self.run = None if flags.memory else st.open(flags.store + "-{rank}", pinned=f"{flags.pinned}MiB")
        with st.parameters(self.run) if self.run else contextlib.nullcontext():  # each goes into the engine as it is made
            module = torch.nn.Sequential(*(make_layer(layer, flags) for layer in range(self.first, self.last)))
        self.optimizer = make_optimizer(module, self.run) if self.run else torch.optim.AdamW(module.parameters(), lr=1e-3)
        self.is_last = self.rank == self.ranks - 1
        outputs = torch.empty(MICRO_BATCH, LENGTH, WORDS if self.is_last else flags.width, device="meta", requires_grad=True)
        self.stage = TimedStage(module, self.rank, self.ranks, torch.device("cpu"),
                                input_args=input_of(self.first, flags, "meta"), output_args=outputs)
        self.schedule = Schedule1F1B(self.stage, flags.micro_batches, loss_fn=loss_of)

    def step(self, number):
        """Trains on a batch. Returns the loss, of the last rank; others return 0."""
        tokens, targets = batch_of(number, self.flags)
        losses = []
        inputs = [tokens] if self.rank == 0 else []
        self.schedule.step(*inputs, **({"target": targets, "losses": losses} if self.is_last else {}))
        with seconds_of(self.stage.seconds):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return sum(each.item() for each in losses) / self.flags.micro_batches

    def close(self):
        if self.run:
            self.run.close()


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", help="the folders of the stores are STORE-0, STORE-1 and so on, by rank")
    for name, default in (("layers", 8), ("width", 256), ("micro-batches", 4), ("steps", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pinned", type=int, default=32, help="MiB of each rank for what passes to and from its store")
    parser.add_argument("--cut", type=lambda text: tuple(map(int, text.split(","))), help="first layers of stages, as 3,6")
    parser.add_argument("--memory", action="store_true", help="torch.optim.AdamW; everything in memory")
    return parser.parse_args(words)


def main():
    flags = parse()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    layers = measured(flags, f"{flags.store}-{rank}-measured")
    cut = flags.cut or best_cut(layers, ranks)
    if len(cut) != ranks - 1 or sorted({0, *cut, len(layers)}) != [0, *cut, len(layers)]:
        sys.exit(f"--cut {cut} and {ranks} ranks: it must be {ranks - 1} ascending numbers from 1 to {len(layers) - 1}")

    trainer = Trainer(flags, cut)
    losses = []
    for number in range(flags.steps):
        if number == 1:
            trainer.stage.seconds.clear()  # the first step is not like the others
        losses.append(trainer.step(number))
    trainer.close()

    part = layers[trainer.first:trainer.last]
    mine = {"layers": [trainer.first, trainer.last], "bytes": sum(size for _, size in part),
            "expected_seconds": round(sum(seconds for seconds, _ in part), 4),
            "seconds": round(sum(trainer.stage.seconds) / max(1, flags.steps - 1), 4), "losses": losses}
    stages = [None] * ranks
    dist.all_gather_object(stages, mine)
    if rank == 0:
        losses = [stage.pop("losses") for stage in stages][-1]
        for number, each in enumerate(stages):
            where = "memory" if flags.memory else "its store"
            print(f"stage {number}: layers {each['layers'][0]} to {each['layers'][1] - 1}, {each['bytes'] / 2**20:.0f} MiB in "
                  f"{where}, a step {each['seconds']:.2f} s ({each['expected_seconds']:.2f} expected)", file=sys.stderr)
        print(json.dumps({"cut": cut, "losses": losses, "stages": stages}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
