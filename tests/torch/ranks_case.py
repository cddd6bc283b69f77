# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of ranks: a model, the ways of sharding it, and training with torch.optim and with spillway.torch."""

import os
import pathlib
import tempfile
import unittest
import weakref

import ranks
import spillway.torch as st
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 5
JOB_CASES = 6  # that one job trains, which must end before ranks.TIMEOUT on a busy machine, too
CLIP = {"train": {"clip": 0.5}}


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


def hsdp_mesh():
    shape = (2, torch.distributed.get_world_size() // 2)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


def sharded(way, model):
    """Divides a model among ranks one way. Returns it, and the number of this rank's batches: ranks of one number train on the
    same."""
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
        return shard_all(model, mesh=hsdp_mesh()), rank
    if way == "ddp":
        return DistributedDataParallel(model), rank
    if way == "tp":
        return tensor_parallel(model, init_device_mesh("cpu", (count,))), 0
    assert way == "both"
    mesh = init_device_mesh("cpu", (count // 2, 2), mesh_dim_names=("shard", "tensor"))
    return shard_all(tensor_parallel(model, mesh["tensor"]), mesh=mesh["shard"]), mesh["shard"].get_local_rank()


def train(model, optimizer, number, steps=STEPS, first=0, clip=None, accumulate=1):
    """Returns the loss and the norm of each step. Batches depend on the step and the rank's number."""
    losses = []
    for step in range(first, first + steps):
        for part in range(accumulate):
            if accumulate > 1 and hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(part == accumulate - 1)
            generator = torch.Generator().manual_seed(1000 * step + 100 * part + number)
            loss = model(torch.randn(4, 7, generator=generator)).float().square().mean()
            loss.backward()
        norm = torch.tensor(0.0)
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss.item(), norm.item()))
    return losses


def frozen(model):
    model.first.requires_grad_(False)
    model.blocks[0].up.bias.requires_grad_(False)


def pair(rank, store, case):
    """Returns the losses and norms of an optimizer of torch.optim and of ours, after which the weights are equal, too."""
    way, which, options = case
    results, weights = [], []
    for module in (torch.optim, st):
        model = Model()
        if options.get("frozen"):
            frozen(model)
        model, number = sharded(way, model)
        more = {"lr": 1e-2, **options.get("both", {})}
        if module is st:
            more |= {"store": os.path.join(store, "{rank}"), "pinned": "1MiB", **options.get("ours", {})}
        optimizer = getattr(module, which)(model.parameters(), **more)
        results.append(train(model, optimizer, number, **options.get("train", {})))
        weights.append([full(param) for param in model.parameters()])
        if module is st:
            optimizer.run.close()
    for its, our in zip(*weights, strict=True):
        torch.testing.assert_close(our, its, rtol=0, atol=options.get("most", 1e-6) * 10)
    return results


def full(param):
    return (param.full_tensor() if isinstance(param, DTensor) else param).detach().clone()


def pairs(rank, cases):
    return [pair(rank, *case) for case in cases]


def shards_of(dtype, way):
    """Returns a model with shards of a dtype ("fsdp" or "hsdp") and gradients in fp32, which computes in bf16. Its weights are
    those of any other dtype."""
    model = Model().to(torch.bfloat16).to(dtype)
    for param in model.parameters():
        param.grad_dtype = torch.float32
    more = {"mesh": hsdp_mesh()} if way == "hsdp" else {}
    return shard_all(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32), **more)


def bf16_shards(rank, store, ours, way="fsdp"):
    """Returns what bf16 shards with gradients in fp32 train to, and what fp32 shards do, from the same weights."""
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        model = shards_of(dtype, way)
        folder = os.path.join(store, str(dtype), "{rank}")
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=folder, pinned="1MiB", **ours)
        clip = torch.inf if ours.get("update") == "backward" else 0.5
        results.append(train(model, optimizer, rank, clip=clip))
        results[-1].append([full(param).to(torch.bfloat16) for param in model.parameters()])
        assert all(param.dtype == dtype for param in model.parameters())
        optimizer.run.close()
    return results


def compact(rank, store, way):
    """Returns the losses and norms of torch.optim on fp32 shards, and of ours with compact state on bf16 shards."""
    model = shards_of(torch.float32, way)
    expected = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), rank, clip=0.5)
    model = shards_of(torch.bfloat16, way)
    folder = os.path.join(store, "{rank}")
    optimizer = st.AdamW(model.parameters(), lr=1e-2, store=folder, pinned="1MiB", state_format="compact")
    losses = train(model, optimizer, rank, clip=0.5)
    optimizer.run.close()
    return expected, losses


def replaced(rank, store, ours):
    """Makes an optimizer of a model that is sharded only afterwards, as accelerate does. Returns the losses of torch.optim and
    ours, and what was there of the whole parameters before the first step."""
    results, registered = [], []
    for is_ours in (False, True):
        model = Model()
        if is_ours:
            run = st.open(os.path.join(store, "{rank}"), pinned="1MiB", report=False)
            optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run, **ours)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for group in optimizer.param_groups:  # so that nothing has the whole parameters any more
            group["params"] = [torch.empty(1) for _ in group["params"]]
        gone = [weakref.ref(param) for param in model.parameters()]
        shard_all(model)
        if is_ours and not ours:
            registered += [each for each in gone if each() is not None]
        optimizer.param_groups[0]["params"] = list(model.parameters())
        if is_ours:
            registered += list(optimizer.tile_rows())
        results.append(train(model, optimizer, rank))
    run.close()
    return *results, registered


def adapters(rank, store):
    """Returns the losses of torch.optim and ours of adapters beside frozen shards."""
    from peft import LoraConfig, get_peft_model

    results = []
    for is_ours in (False, True):
        torch.manual_seed(5)
        model = get_peft_model(Model(), LoraConfig(r=2, target_modules=["up", "down"], init_lora_weights=False))
        shard_all(model.base_model.model)
        params = [param for param in model.parameters() if param.requires_grad]
        if is_ours:
            optimizer = st.AdamW(params, lr=1e-2, store=os.path.join(store, "{rank}"), pinned="1MiB")
        else:
            optimizer = torch.optim.AdamW(params, lr=1e-2)
        results.append([loss for loss, _ in train(model, optimizer, rank)])
    optimizer.run.close()
    return results


def scaled(rank, store):
    """Returns the losses with a GradScaler whose first scale is too large: of torch.optim and ours on fp32 shards, and of ours on
    fp16 shards with gradients in fp16."""
    results = []
    for dtype, module in ((torch.float32, torch.optim), (torch.float32, st), (torch.float16, st)):
        model = shard_all(Model().to(torch.float16).to(dtype), mp_policy=MixedPrecisionPolicy(torch.float16, torch.float32))
        more = {"store": os.path.join(store, str(dtype), "{rank}"), "pinned": "1MiB"} if module is st else {}
        optimizer, scaler = module.AdamW(model.parameters(), lr=1e-2, **more), torch.amp.GradScaler("cpu", init_scale=2.0**24)
        losses = []
        for step in range(16):
            generator = torch.Generator().manual_seed(10 * step + rank)
            loss = model(torch.randn(4, 7, generator=generator)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert scaler.get_scale() < 2**24
        results.append(losses)
        if module is st:
            optimizer.run.close()
    return results


class RanksTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spillway-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.stores = 0

    def store(self):
        self.stores += 1
        return str(self.folder / f"store{self.stores}")

    def check(self, count, cases):
        """Trains each case, (way of sharding, name of the optimizer, options), with torch.optim and with spillway.torch."""
        for first in range(0, len(cases), JOB_CASES):
            self._check_job(count, cases[first:first + JOB_CASES])

    def _check_job(self, count, cases):
        made = [(self.store(), case) for case in cases]
        for rank, results in enumerate(ranks.run(count, pairs, made)):
            for case, (theirs, mine) in zip(cases, results, strict=True):
                for its, our in zip(theirs, mine, strict=True):
                    for a, b in zip(its, our, strict=True):
                        self.assertLess(abs(a - b), case[-1].get("most", 1e-6) * max(1, abs(a)), (rank, case, theirs, mine))
