# SPDX-License-Identifier: Apache-2.0
"""spillway.torch.portable, which makes a checkpoint that any number of ranks loads of one that names a commit of each rank's
store."""

import os
import pathlib
import pickle
import subprocess
import sys
import unittest

import ranks
import spillway
import spillway.torch as st
import torch
from ranks_case import Model, RanksTest
from ranks_case import sharded as shard
from ranks_checkpoints import FLATTENED, NESTED, digest, first_steps, later_steps, load, save, state_digest
from spillway.torch import _dcp_folder, portable

# By name: the way of sharding, the optimizer, weights, state, and how far losses may be from those of a run that went on
# (weights in bf16 are rounded after each step, and gradients are summed in bf16).
CASES = {"bf16-weights": ("both", "AdamW", "bfloat16", "fp32", {}, 2e-2),
         "bf16-state": ("tp", "RMSprop", "float32", "bf16", {"centered": True, "lr": 1e-3}, 1e-3),
         "8bit-state": ("hsdp", "AdamW", "bfloat16", "8bit", {}, 5e-2)}


def folders(folder, name, rank):
    """Returns the folders of a rank's store, which is on two drives."""
    return [f"{folder}/{name}-drive{drive}-{rank}" for drive in range(2)]


def steps(model, optimizers, way, number, dtype, first):
    """Trains 2 steps with the same 4 batches on any number of ranks. Returns the mean losses."""
    ranks_of_number = {"tp": torch.distributed.get_world_size(), "both": 2}.get(way, 1)
    count = torch.distributed.get_world_size() // ranks_of_number
    losses = []
    for step in (first, first + 1):
        mine = 0.0
        for batch in range(number, 4, count):
            generator = torch.Generator().manual_seed(100 * step + batch)
            loss = model(torch.randn(4, 7, generator=generator).to(dtype)).float().square().mean() * (count / 4)
            loss.backward()
            mine += loss.item() / count
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        total = torch.tensor(mine, dtype=torch.float64)
        torch.distributed.all_reduce(total)
        losses.append(total.item() / ranks_of_number)
    return losses


def trained(rank, folder, made_portable):
    """Trains each case. If nothing was made portable, 2 steps, a checkpoint of commits, and 2 steps; otherwise 2 steps from
    what was made of that checkpoint. Returns the bits of the state at the checkpoint, and losses and the bits of the weights
    after it."""
    results = {}
    for name, (way, rule, dtype, state_format, options, _) in CASES.items():
        dtype, place = getattr(torch, dtype), f"{folder}/{name}"
        model, number = shard(way, Model().to(dtype))
        params = list(model.parameters())
        parts = [params] if way == "tp" else [params[:5], params[5:]]  # of its first 5 parameters none is sharded
        store = folders(folder, name, f"{rank}-of-{torch.distributed.get_world_size()}" if made_portable else rank)
        with st.open(store, pinned="16MiB", calibrate="off", report=False) as run:
            optimizers = [getattr(st, rule)(part, **{"lr": 1e-2, **options}, store=run, state_format=state_format,
                                            checkpoint="tensors" if made_portable else "commit") for part in parts]
            if made_portable:
                load(model, optimizers, place, state_of=f"{place}-portable")
            else:
                steps(model, optimizers, way, number, dtype, 0)
                save(model, optimizers, place)
            state = [state_digest(optimizer) for optimizer in optimizers]
            results[name] = state, steps(model, optimizers, way, number, dtype, 2), digest(params)
    return results


def compact(rank, folder):
    """Saves a checkpoint of compact state."""
    model, number = shard("fsdp", Model().to(torch.bfloat16))
    optimizer = st.AdamW(model.parameters(), store=f"{folder}/compact-{rank}", pinned="1MiB", state_format="compact",
                         checkpoint="commit")
    steps(model, [optimizer], "fsdp", number, torch.bfloat16, 0)
    save(model, optimizer, f"{folder}/compact")
    optimizer.run.close()


class PortableTest(RanksTest):
    def test_any_number_of_ranks_goes_on(self):
        folder = pathlib.Path(self.store())
        expected = ranks.run(2, first_steps, str(folder), {"nested": NESTED, "flattened": FLATTENED})[0]
        stores = [folder / "store1", folder / "store0"]
        for name, options, count, checkpoint in (("nested", NESTED, 2, "tensors"), ("flattened", FLATTENED, 4, "tensors"),
                                                 ("nested", NESTED, 1, "torch")):
            with self.subTest(name=name, count=count, checkpoint=checkpoint):
                if count > 1:
                    portable.make_portable(folder / name, folder / f"{name}{count}", stores)
                else:
                    command = [sys.executable, "-W", "ignore", "-m", "spillway.torch.portable", folder / name,
                               folder / f"{name}{count}", *stores]
                    made = subprocess.run(command, capture_output=True, text=True)
                    self.assertEqual((made.returncode, made.stderr), (0, ""))
                store = f"other{count}-{{rank}}"
                for result in ranks.run(count, later_steps, str(folder), name, options, store, f"{name}{count}", checkpoint):
                    for a, b in zip(expected[0], result[0], strict=True):
                        self.assertLess(abs(a - b), 1e-6)
                    if count == 2:
                        self.assertEqual(result[1:], expected[1:])
        with self.assertRaisesRegex(spillway.NotFound, "the store of rank 0, [0-9a-f]{32}, is not among those given"):
            portable.make_portable(folder / "nested", folder / "out", stores[:1])
        self.assertFalse((folder / "out").exists())
        with self.assertRaisesRegex(spillway.AlreadyExists, "nested2 is there already"):
            portable.make_portable(folder / "nested", folder / "nested2", stores)

    def test_ways_of_sharding_formats_several_optimizers_and_several_drives(self):
        folder = self.store()
        expected = ranks.run(4, trained, folder, False)[0]
        for name in CASES:
            stores = [folders(folder, name, rank) for rank in range(4)]
            if name == "8bit-state":
                command = [sys.executable, "-W", "ignore", "-m", "spillway.torch.portable", f"{folder}/{name}",
                           f"{folder}/{name}-portable", *map(",".join, stores)]
                made = subprocess.run(command, capture_output=True, text=True)
                self.assertEqual((made.returncode, made.stderr), (0, ""))
            else:
                portable.make_portable(f"{folder}/{name}", f"{folder}/{name}-portable", stores)
        for count in (4, 2):
            for results in ranks.run(count, trained, folder, True):
                for name, (state, losses, weights) in results.items():
                    with self.subTest(name=name, count=count):
                        for a, b in zip(expected[name][1], losses, strict=True):
                            self.assertLess(abs(a - b), CASES[name][-1], (expected[name], losses))
                        if name != "8bit-state":  # which is rounded again
                            self.assertEqual(state, expected[name][0])
                            if count == 4:
                                self.assertEqual((losses, weights), expected[name][1:])

    def test_compact_state_raises(self):
        folder = pathlib.Path(self.store())
        ranks.run(2, compact, str(folder))
        stores = [folder / "compact-0", folder / "compact-1"]
        sentence = ("of compact state the model's 16-bit weights hold the most .* load the checkpoint with as many ranks, and "
                    "save it with checkpoint='tensors'")
        with self.assertRaisesRegex(spillway.Unimplemented, sentence):
            portable.make_portable(folder / "compact", folder / "out", stores)
        self.assertFalse((folder / "out").exists())
        command = [sys.executable, "-W", "ignore", "-m", "spillway.torch.portable", folder / "compact", folder / "out", *stores]
        made = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(made.returncode, 1)
        self.assertRegex(made.stderr, "^spillway.torch.portable: of compact state")

    def test_the_metadata_is_not_run(self):
        class Runs:
            def __reduce__(self):
                return os.mkdir, (str(folder / "run"),)

        folder = self.folder
        (folder / ".metadata").write_bytes(pickle.dumps({"storage_data": {Runs(): Runs()}}))
        with self.assertRaises(ValueError):
            _dcp_folder.entries(folder / ".metadata")
        self.assertFalse((folder / "run").exists())


if __name__ == "__main__":
    unittest.main()
