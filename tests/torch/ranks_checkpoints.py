# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of ranks' checkpoints: training on one number of ranks after another."""

import os

import ranks
import spillway.torch as st
import torch
import torch.distributed.checkpoint as dcp
from ranks_case import Model, RanksTest, shard_all
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy

OPTIONS = {"nested": {}, "flattened": {"flatten_optimizer_state_dict": True}, "full": {"full_state_dict": True},
           "cpu": {"cpu_offload": True}}


def batches(model, number, steps, first, optimizer):
    """Trains with the same 4 batches a step on any number of ranks. Returns the mean loss of each step."""
    count = torch.distributed.get_world_size()
    losses = []
    for step in range(first, first + steps):
        mine = 0.0
        for batch in range(number, 4, count):
            generator = torch.Generator().manual_seed(1000 * step + batch)
            loss = model(torch.randn(4, 7, generator=generator)).float().square().mean() * (count / 4)
            loss.backward()
            mine += loss.item() / count
        total = torch.tensor(mine, dtype=torch.float64)
        torch.distributed.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    return losses


def make(which, store, dtype=torch.float32, **more):
    model = Model().to(torch.bfloat16).to(dtype)
    for param in model.parameters():
        param.grad_dtype = torch.float32
    shard_all(model, mp_policy=MixedPrecisionPolicy(dtype, torch.float32))
    options = {} if which.__module__.startswith("torch.") else {"store": os.path.join(store, "{rank}"), "pinned": "1MiB"}
    return model, which(model.parameters(), **{"lr": 1e-2, **options, **more})


def part(rank, which, store, load, save, first, steps, options, more):
    """Loads a checkpoint unless there is none, trains, and saves one. Returns the losses."""
    model, optimizer = make(which, store, **more)
    if load is not None:
        model_state, state = get_state_dict(model, optimizer, options=StateDictOptions(**options))
        both = {"model": model_state, "optimizer": state}
        dcp.load(both, checkpoint_id=load)
        set_state_dict(model, optimizer, model_state_dict=both["model"], optim_state_dict=both["optimizer"],
                       options=StateDictOptions(**options))
    losses = batches(model, rank, steps, first, optimizer)
    if save is not None:
        model_state, state = get_state_dict(model, optimizer, options=StateDictOptions(**options))
        dcp.save({"model": model_state, "optimizer": state}, checkpoint_id=save)
    if hasattr(optimizer, "run"):
        optimizer.run.close()
    return losses


class ChainTest(RanksTest):
    def chain(self, counts, which, options=(), steps=2, **more):
        """Trains on one number of ranks after another, each from the checkpoint of the one before. Returns all losses."""
        losses, load = [], None
        for number, (count, each) in enumerate(zip(counts, which, strict=True)):
            save = str(self.folder / f"checkpoint{self.stores}-{number}")
            made = ranks.run(count, part, each, self.store(), load, save, number * steps, steps, dict(options), more)
            self.assertTrue(all(one == made[0] for one in made), made)
            losses += made[0]
            load = save
        return losses

    def assert_close(self, expected, losses, most=1e-6):
        for a, b in zip(expected, losses, strict=True):
            self.assertLess(abs(a - b), most, (expected, losses))
