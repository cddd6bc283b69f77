# SPDX-License-Identifier: Apache-2.0
"""Sharded parameters train as with torch.optim: FSDP2, HSDP, tensor parallelism and both together, on ranks that gloo joins."""

import os
import pathlib
import tempfile
import unittest

import ranks
import spillway.torch as st
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = 5


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """On 4 ranks the shards of 7 rows are uneven, and of 3 and 2 rows some are empty."""

    def __init__(self, width=8, hidden=12):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(7, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(2))
        self.last = nn.Linear(width, 7)
        self.narrow = nn.Linear(7, 3)
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.narrow(self.last(x)) * self.scale.sum()


def shard_all(model, **how):
    for block in model.blocks:
        fully_shard(block, **how)
    return fully_shard(model, **how)


def tensor_parallel(model, mesh):
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def sharded(way, model):
    """Shards a model one way. Returns it, and the number of this rank's batches: ranks of one number train on the same."""
    rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if way == "fsdp":
        return shard_all(model), rank
    if way == "kept":
        return shard_all(model, reshard_after_forward=False), rank
    if way == "mixed":
        return shard_all(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)), rank
    if way == "cpu":
        return shard_all(model, offload_policy=CPUOffloadPolicy(pin_memory=False)), rank
    if way == "hsdp":
        return shard_all(model, mesh=init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("replicate", "shard"))), rank
    if way == "tp":
        return tensor_parallel(model, init_device_mesh("cpu", (count,))), 0
    assert way == "both"
    mesh = init_device_mesh("cpu", (count // 2, 2), mesh_dim_names=("shard", "tensor"))
    return shard_all(tensor_parallel(model, mesh["tensor"]), mesh=mesh["shard"]), mesh["shard"].get_local_rank()


def train(model, optimizer, number, steps=STEPS, first=0, clip=None, accumulate=1):
    """Returns the loss and the norm of each step. Batches depend on the step and the rank's number."""
    losses = []
    dtype = torch.float32
    for step in range(first, first + steps):
        for part in range(accumulate):
            if accumulate > 1 and hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(part == accumulate - 1)
            generator = torch.Generator().manual_seed(1000 * step + 100 * part + number)
            loss = model(torch.randn(4, 7, generator=generator, dtype=dtype)).float().square().mean()
            loss.backward()
        norm = torch.tensor(0.0)
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip, foreach=None)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss.item(), norm.item()))
    return losses


def pair(rank, folder, way, mine, theirs, ours=None, train_options=None, frozen=False, both=None):
    """Returns the losses of an optimizer of torch.optim and of ours."""
    results = []
    for which, store in ((theirs, None), (mine, os.path.join(folder, "{rank}"))):
        model = Model()
        if frozen:
            model.first.requires_grad_(False)
            model.blocks[0].up.bias.requires_grad_(False)
        model, number = sharded(way, model)
        options = dict(both or {})
        if store is not None:
            options |= {"store": store, "pinned": "1MiB", **(ours or {})}
        optimizer = which(model.parameters(), lr=1e-2, **options)
        results.append(train(model, optimizer, number, **(train_options or {})))
        if store is not None:
            optimizer.run.close()
    return results


def pairs(rank, cases):
    return [pair(rank, *case[:-1], **case[-1]) for case in cases]


class RanksTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spillway-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.stores = 0

    def store(self):
        self.stores += 1
        return str(self.folder / f"store{self.stores}")


class NumbersTest(RanksTest):
    def check(self, count, cases, most=1e-6):
        made = [(self.store(), *case) for case in cases]
        for rank, results in enumerate(ranks.run(count, pairs, made)):
            for case, (theirs, mine) in zip(cases, results, strict=True):
                for step, (its, our) in enumerate(zip(theirs, mine, strict=True)):
                    for a, b in zip(its, our):
                        self.assertLess(abs(a - b), most * max(1, abs(a)), (rank, case, step, theirs, mine))

    def test_every_way_of_sharding(self):
        adam = (st.AdamW, torch.optim.AdamW)
        clip = {"train_options": {"clip": 0.5}}
        for count in (2, 4):
            self.check(count, [("fsdp", *adam, clip), ("kept", *adam, {}), ("mixed", *adam, clip), ("cpu", *adam, clip),
                               ("hsdp", *adam, clip), ("tp", *adam, {}), ("both", *adam, {})])


if __name__ == "__main__":
    unittest.main()
