# SPDX-License-Identifier: Apache-2.0
"""Tests what ranks say: the report, which the first prints for all, and errors, which name the rank, the cause and the fix."""

import contextlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import unittest
import warnings

import ranks
import spillway
import spillway.torch as st
import torch
import torch.distributed.checkpoint as dcp
from ranks_case import Model, RanksTest, shard_all, train
from ranks_checkpoints import load, save, state_digest
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard


def report(rank, store, steps):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        model = shard_all(Model(width=512, hidden=512))
        optimizer = st.AdamW(model.parameters(), store=os.path.join(store, "{rank}"), pinned="1MiB")
        train(model, optimizer, rank, steps)
        torch.distributed.barrier()
        optimizer.run.close()
    return err.getvalue().splitlines()


class ReportTest(RanksTest):
    def test_the_first_rank_prints_the_sums_over_all(self):
        store = self.store()
        for steps in (1, 3):
            lines, *others = ranks.run(2, report, store, steps)
            self.assertEqual(others, [[]])
            first, last = lines
            elements = sum(param.numel() for param in Model(width=512, hidden=512).parameters())
            size = f"{8 * elements / 2**20:.1f} MiB"
            self.assertIn(f"2 ranks: {size} rest in {store}/0 and the stores of the others, at most 2.0 MiB of them", first)
            self.assertIn(f"2 ranks; {steps} step", last)
            self.assertIn(f"{size} rested in the stores and ", last)
            self.assertEqual("the slowest" in last, steps > 1, last)
            if steps > 1:
                moved = re.search(r"rank [01], the slowest, ([\d.]+) MB read and ([\d.]+) MB written a step", last)
                for each in moved.groups():
                    self.assertGreater(float(each), 8 * elements / 1e6 - 3)
                    self.assertLess(float(each), 8 * elements / 1e6 + 2)


def caught(call):
    """Returns the class and the text of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def errors(rank, store):
    mesh = init_device_mesh("cpu", (2,))
    model = shard_all(Model())
    part = torch.nn.Parameter(DTensor.from_local(torch.ones(4), mesh, [Partial()]))
    matrix = torch.nn.Parameter(DTensor.from_local(torch.ones(4, 4), mesh, [Shard(0)]))
    whole = torch.nn.Parameter(DTensor.from_local(torch.ones(4, 4), mesh, [Replicate()]))
    found = {"partial": caught(lambda: st.AdamW([part])),
             "offload": caught(lambda: st.offload(model, st.open(report=False))),
             **{each.__name__: caught(lambda each=each: each([matrix])) for each in (st.LAMB, st.LARS, st.Adafactor)},
             "whole": caught(lambda: st.LAMB([whole]))}
    # A rank waits until the other has the folder.
    if rank == 1:
        torch.distributed.barrier()
    kept = []
    found["folder"] = caught(lambda: kept.append(st.AdamW([matrix], store=store + "/one", pinned="1MiB")))
    if rank == 0:
        torch.distributed.barrier()
    torch.distributed.barrier()
    return found


def async_save(rank, store):
    model = shard_all(Model())
    optimizer = st.AdamW(model.parameters(), store=os.path.join(store, "{local_rank}-{node}-{rank}"), pinned="1MiB")
    train(model, optimizer, rank, 1)
    _, state = get_state_dict(model, optimizer)
    found = caught(lambda: dcp.async_save(state, checkpoint_id=store + "/checkpoint"))
    place = optimizer.run.place
    optimizer.run.close()
    return found, place


def offloaded(rank, store):
    run = st.open(os.path.join(store, "{rank}"), pinned="4MiB", report=False)
    model = shard_all(st.offload(Model(), run))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        st.AdamW(model.parameters(), store=run)
        other = st.AdamW(shard_all(Model()).parameters())
    other.run.close()
    run.close()
    return [str(each.message) for each in seen if "spillway" in str(each.message)]


def fill_up(folder):
    with contextlib.suppress(OSError), open(os.path.join(folder, "filler"), "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


def fill(rank, store, small, load, save, amsgrad):
    """Trains, from a checkpoint unless there is none. Then fills the disk of rank 1, and trains with more state. Returns the
    losses, or raises."""
    model = shard_all(Model(width=512, hidden=512))
    folder = small if rank == 1 and small else os.path.join(store, str(rank))
    optimizer = st.AdamW(model.parameters(), store=folder, pinned="1MiB")
    if load:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.load(state, checkpoint_id=load)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    losses = train(model, optimizer, rank, 2)
    if save:
        dcp.save(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))), checkpoint_id=save)
    if amsgrad:
        if rank == 1:
            fill_up(small)
        for group in optimizer.param_groups:
            group["amsgrad"] = True
        losses += train(model, optimizer, rank, 2)
    optimizer.run.close()
    return losses


def commit(rank, store, small, pinned, is_first):
    """Trains and saves a checkpoint of commits. Then fills the disk of rank 1, goes on and saves another. If it is not the
    first, loads the checkpoint instead, and returns whether the state is that of the save."""
    model = shard_all(Model(width=512, hidden=512))
    folder, good = small if rank == 1 else os.path.join(store, str(rank)), os.path.join(store, "good")
    optimizer = st.AdamW(model.parameters(), store=folder, pinned=pinned, checkpoint="commit")
    if is_first:
        train(model, optimizer, rank, 2)
        save(model, optimizer, good)
        pathlib.Path(store, f"state{rank}").write_text(state_digest(optimizer))
        if rank == 1:
            fill_up(small)
        torch.distributed.barrier()
        train(model, optimizer, rank, 1, 2)
        save(model, optimizer, os.path.join(store, "bad"))
    load(model, optimizer, good)
    is_same = pathlib.Path(store, f"state{rank}").read_text() == state_digest(optimizer)
    train(model, optimizer, rank, 1, 2)
    optimizer.run.close()
    return is_same


class ErrorsTest(RanksTest):
    def test_errors_name_the_rank_the_cause_and_the_fix(self):
        store = self.store()
        both = ranks.run(2, errors, store)
        for rank, found in enumerate(both):
            kind, text = found["partial"]
            self.assertEqual(kind, "InvalidArgument")
            self.assertRegex(text, rf"rank {rank}: parameter 0.0 is \(Partial\(sum\),\).*redistribute\(\) it to")
            self.assertRegex(found["offload"][1], r"parameter scale is sharded over ranks.*leave out offload\(\)")
            for name in ("LAMB", "LARS", "Adafactor"):
                self.assertEqual(found[name][0], "Unimplemented")
                self.assertRegex(found[name][1], rf"rank {rank}: parameter 0.0 is sharded over ranks, and {name} .*use AdamW")
            self.assertIsNone(found["whole"])
        self.assertIsNone(both[0]["folder"])
        kind, text = both[1]["folder"]
        self.assertEqual(kind, "FailedPrecondition")
        self.assertRegex(text, rf"rank 1: the store in {store}/one is in use by process \d+.*Each of the 2 ranks needs a "
                               rf"folder of its own, as store='{store}/one/{{rank}}'")

    def test_folders_and_async_save(self):
        store = self.store()
        for rank, (found, place) in enumerate(ranks.run(2, async_save, store)):
            self.assertEqual(place, f"{store}/{rank}-0-{rank}")
            self.assertRegex(found[1], "async_save of torch.distributed.checkpoint.*use save()")

    def test_without_ranks_a_folder_has_no_number(self):
        for word, variable in (("rank", "RANK"), ("local_rank", "LOCAL_RANK"), ("node", "GROUP_RANK")):
            with self.assertRaisesRegex(spillway.FailedPrecondition, f"no {word}, as {variable} is not set: start it with"):
                st.open([self.store(), self.store() + f"/{{{word}}}"])
        with st.open(self.store() + "{other}", report=False) as run:
            self.assertTrue(run.place.endswith("{other}"))

    def test_a_model_that_was_offloaded_and_then_sharded_warns(self):
        for seen in ranks.run(2, offloaded, self.store()):
            self.assertEqual(len(seen), 1, seen)
            self.assertRegex(seen[0], "offloaded and then sharded.*such as blocks.0.down.bias, into memory again")

    def small_disk(self):
        """Returns a folder with a file system of 24 MiB."""
        small = self.folder / "small"
        small.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", small], capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(f"no file system can be mounted: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", small], check=True)
        return small

    def assert_all_end(self, *job):
        """Runs a job in which rank 1 finds its disk full."""
        with self.assertRaises(ranks.RankFailed) as raised:
            ranks.run(2, *job)
        self.assertEqual(sorted(raised.exception.errors), [0, 1])
        self.assertRegex(raised.exception.errors[1], r"ResourceExhausted: rank 1: .*small")
        self.assertNotIn("did not end", str(raised.exception))
        return raised.exception.errors

    def test_after_a_full_disk_on_one_rank_the_last_checkpoint_loads(self):
        small, saved = str(self.small_disk()), str(self.folder / "checkpoint")
        self.assert_all_end(fill, self.store(), small, None, saved, True)
        with self.assertRaises(ranks.RankFailed) as raised:
            ranks.run(2, fill, self.store(), small, saved, None, False)
        self.assertRegex(raised.exception.errors[1], r"ResourceExhausted: rank 1: .*small")
        ranks.run(2, fill, self.store(), None, saved, None, False)

    def test_after_a_full_disk_on_one_rank_the_last_commits_load(self):
        small = self.small_disk()
        for pinned, is_in_commit in (("64MiB", True), ("1MiB", False)):  # with 1 MiB the step finds no room
            with self.subTest(pinned):
                store = self.store()
                os.mkdir(store)
                errors = self.assert_all_end(commit, store, str(small), pinned, True)
                if is_in_commit:  # which fails on all
                    self.assertRegex(errors[0], r"ResourceExhausted: rank 1: .*small")
                (small / "filler").unlink()
                self.assertEqual(ranks.run(2, commit, store, str(small), pinned, False), [True, True])
                for left in small.iterdir():
                    left.unlink() if left.is_file() else shutil.rmtree(left)


if __name__ == "__main__":
    unittest.main()
