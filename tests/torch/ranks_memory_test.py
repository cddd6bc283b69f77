# SPDX-License-Identifier: Apache-2.0
"""Saving and loading the state of sharded parameters takes little memory, however large the state is."""

import gc
import os
import pathlib
import unittest

import ranks
import spillway.torch as st
import torch
import torch.distributed.checkpoint as dcp
from ranks_case import RanksTest
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

MIB = 1 << 20
SHARD = (2048, 1024)  # 8 MiB in fp32
SHARDS = 24  # the two moments of each: 384 MiB of state a rank
MOST = 64 * MIB  # what a save or a load may add


class Shards(torch.nn.Module):
    def __init__(self):
        super().__init__()
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for number in range(SHARDS):
            self.register_parameter(f"p{number}", torch.nn.Parameter(DTensor.from_local(torch.zeros(SHARD), mesh, [Shard(0)])))


def status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def added(call):
    """Returns by how many bytes the peak of resident memory in a call exceeds what was resident before."""
    gc.collect()
    before = status("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    call()
    return status("VmHWM") - before


def step(optimizer, model, number):
    for position, param in enumerate(model.parameters()):
        param.grad = torch.full_like(param, number + position)
    optimizer.step()
    optimizer.zero_grad()


def sums(optimizer, model):
    """Reads all state, one moment at a time."""
    entries = (optimizer.entries_of(param) for param in model.parameters())
    return [value.to_local().double().sum().item() for each in entries for name, value in each.items() if name != "step"]


def save_and_load(rank, folder, save, load):
    model = Shards()
    optimizer = st.AdamW(model.parameters(), lr=0.1, store=os.path.join(folder, "store{rank}"), pinned="16MiB")
    step(optimizer, model, rank)
    found = []
    if save:
        step(optimizer, model, rank + 5)
        found.append(added(lambda: dcp.save({"optimizer": optimizer.state_dict()}, checkpoint_id=save)))
    else:
        def load_all():
            state = {"optimizer": optimizer.state_dict()}
            dcp.load(state, checkpoint_id=load)
            optimizer.load_state_dict(state["optimizer"])

        found.append(added(load_all))
    held = sum(optimizer.run.engine.spec(id)["size_bytes"] for id in optimizer.ids)
    found += [held, sums(optimizer, model), optimizer.full_state_dict()["state"][0]["step"].item()]
    optimizer.run.close()
    return found


class MemoryTest(RanksTest):
    def test_a_save_and_a_load_add_little_memory(self):
        saved = str(self.folder / "checkpoint")
        before = ranks.run(2, save_and_load, self.store(), saved, None)
        after = ranks.run(2, save_and_load, self.store(), None, saved)
        for (saving, held, state, steps), (loading, _, loaded, loaded_steps) in zip(before, after, strict=True):
            self.assertEqual(held, 384 * MIB)
            self.assertLess(saving, MOST, f"{saving / MIB:.1f} MiB")
            self.assertLess(loading, MOST, f"{loading / MIB:.1f} MiB")
            self.assertEqual((state, steps), (loaded, loaded_steps))
            print(f"memory: {saving / MIB:.1f} MiB to save, {loading / MIB:.1f} MiB to load", flush=True)


if __name__ == "__main__":
    unittest.main()
