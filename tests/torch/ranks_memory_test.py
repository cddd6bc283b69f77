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
ROWS, COLUMNS = 4096, 1024  # of a parameter: 8 MiB in fp32 on each of 2 ranks, 4 MiB on each of 4
PARAMETERS = 24  # the two moments of each: 384 MiB of state on each of 2 ranks
MOST = 64 * MIB  # what a save or a load may add


class Shards(torch.nn.Module):
    def __init__(self):
        super().__init__()
        count = torch.distributed.get_world_size()
        mesh = init_device_mesh("cpu", (count,))
        for number in range(PARAMETERS):
            shard = DTensor.from_local(torch.zeros(ROWS // count, COLUMNS), mesh, [Shard(0)])
            self.register_parameter(f"p{number}", torch.nn.Parameter(shard))


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
    """Returns the sum of each moment of this rank's parts, which a double holds exactly. Reads one at a time."""
    entries = (optimizer.entries_of(param) for param in model.parameters())
    return [value.to_local().double().sum().item() for each in entries for name, value in each.items() if name != "step"]


def save_and_load(rank, folder, load, save):
    """Loads a checkpoint, or trains if there is none, and saves another unless that is None. Returns the bytes that a load and
    a save add, those of the state, its sums, and the steps."""
    model = Shards()
    optimizer = st.AdamW(model.parameters(), lr=0.1, store=os.path.join(folder, "store{rank}"), pinned="16MiB")
    step(optimizer, model, rank)

    def load_all():
        state = {"optimizer": optimizer.state_dict()}
        dcp.load(state, checkpoint_id=load)
        optimizer.load_state_dict(state["optimizer"])

    loading = saving = 0
    if load:
        loading = added(load_all)
    else:
        step(optimizer, model, rank + 5)
    if save:
        saving = added(lambda: dcp.save({"optimizer": optimizer.state_dict()}, checkpoint_id=save))
    held = sum(optimizer.run.engine.spec(id)["size_bytes"] for id in optimizer.ids)
    found = sums(optimizer, model), optimizer.full_state_dict()["state"][0]["step"].item()
    optimizer.run.close()
    return loading, saving, held, *found


class MemoryTest(RanksTest):
    def check(self, count, load, save):
        """Loads and saves on so many ranks. Returns the sums of each moment over all ranks, and the steps."""
        made = ranks.run(count, save_and_load, self.store(), load, save)
        for loading, saving, held, _, steps in made:
            self.assertEqual(held, 768 * MIB // count)
            for what, size in (("load", loading), ("save", saving)):
                self.assertLess(size, MOST, f"{size / MIB:.1f} MiB to {what} on {count} ranks")
        most = [f"{max(each[at] for each in made) / MIB:.1f} MiB to {what}"
                for at, what, is_done in ((0, "load", load), (1, "save", save)) if is_done]
        print(f"memory: {count} ranks, {768 // count} MiB of state each: at most {', '.join(most)}", flush=True)
        return [sum(each) for each in zip(*(sums for _, _, _, sums, _ in made), strict=True)], steps

    def test_a_save_and_a_load_add_little_memory(self):
        saved, again = str(self.folder / "checkpoint"), str(self.folder / "again")
        expected = self.check(2, None, saved)
        self.assertEqual(self.check(2, saved, None), expected)
        self.assertEqual(self.check(4, saved, again), expected)  # on another number of ranks, from fewer and from more
        self.assertEqual(self.check(2, again, None), expected)


if __name__ == "__main__":
    unittest.main()
