# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of ranks' checkpoints: training on one number of ranks after another, and from commits."""

import hashlib
import os

import ranks
import spillway.torch as st
import torch
import torch.distributed.checkpoint as dcp
from ranks_case import Model, RanksTest, shard_all
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
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


# --- State dicts that name commits ---

def digest(values):
    """Returns a text that stands for the bits of tensors. DTensors are gathered: all ranks must call this."""
    hashed = hashlib.sha256()
    for value in values:
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        hashed.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def state_digest(optimizer):
    return digest(value for of in optimizer.full_state_dict()["state"].values() for value in of.values())


def error_of(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def sharded(folder, store="store{rank}", checkpoint="commit", **more):
    model = shard_all(Model())
    middle = [param for name, param in model.named_parameters() if "blocks" in name]
    rest = [param for name, param in model.named_parameters() if "blocks" not in name]
    groups = [{"params": middle}, {"params": rest, "lr": 5e-3}]
    if checkpoint == "torch":
        return model, torch.optim.AdamW(groups, lr=1e-2)
    return model, st.AdamW(groups, lr=1e-2, store=f"{folder}/{store}", pinned="1MiB", checkpoint=checkpoint, **more)


def save(model, optimizer, path, options=()):
    model_state, state = get_state_dict(model, optimizer, options=StateDictOptions(**dict(options)))
    dcp.save({"model": model_state, "optimizer": state}, checkpoint_id=path)


def load(model, optimizer, path, options=(), state_of=None):
    """`state_of`: the folder with the optimizer's part; None: the same."""
    options = StateDictOptions(**dict(options))
    model_state, state = get_state_dict(model, optimizer, options=options)
    for part in ({"model": model_state}, {"optimizer": state}):
        dcp.load(part, checkpoint_id=state_of if state_of and "optimizer" in part else path)
        model_state, state = part.get("model", model_state), part.get("optimizer", state)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=state, options=options)


NESTED, FLATTENED = {}, {"flatten_optimizer_state_dict": True}


def first_steps(rank, folder, options):
    """Trains 4 steps, with a checkpoint of commits after 2. Returns what follows the checkpoint."""
    model, optimizer = sharded(folder)
    batches(model, rank, 2, 0, optimizer)
    for name, each in options.items():
        save(model, optimizer, f"{folder}/{name}", each)
    alike = get_optimizer_state_dict(model, optimizer)
    everywhere = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everywhere, alike)
    assert all(each == alike for each in everywhere)
    return batches(model, rank, 2, 2, optimizer), digest(model.parameters()), state_digest(optimizer)


def later_steps(rank, folder, name, options, store="store{rank}", state_of=None, checkpoint="commit"):
    """Loads a checkpoint and trains 2 steps. Returns what follows it, or the error of the load."""
    model, optimizer = sharded(folder, store.format(rank=rank, other=(rank + 1) % 2), checkpoint)
    if error := error_of(lambda: load(model, optimizer, f"{folder}/{name}", options, state_of and f"{folder}/{state_of}")):
        return error
    losses = batches(model, rank, 2, 2, optimizer)
    if checkpoint == "torch":
        return losses, digest(model.parameters()), None
    result = losses, digest(model.parameters()), state_digest(optimizer)
    optimizer.run.close()
    return result


# --- Chains ---

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
