# SPDX-License-Identifier: Apache-2.0
"""State dicts that name commits, on several ranks: one that rank 0 alone saved, and those of sharded parameters, which name a
commit of each rank's store."""

import os
import pathlib
import shutil
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import ranks  # noqa: E402
import spillway  # noqa: E402
import spillway.torch as st  # noqa: E402
import torch  # noqa: E402
from ranks_case import Model, RanksTest  # noqa: E402
from ranks_case import sharded as shard  # noqa: E402
from ranks_checkpoints import (  # noqa: E402
    FLATTENED,
    NESTED,
    batches,
    digest,
    error_of,
    first_steps,
    later_steps,
    load,
    save,
    sharded,
    state_digest,
)
from spillway.torch import _together  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch_case import tiny_model, train  # noqa: E402


ranks.preload("transformers.trainer")


# --- Rank 0 alone saves ---

def replicated(rank, folder, state_format, saved, is_first, fault=None):
    """Trains a model that each rank has whole from step 3 on: at first rank 0 saves it there, later all load it. Returns the
    losses, the bits of weights and state, and the largest piece that was sent; or the errors."""
    model = tiny_model(torch.float32 if state_format == "fp32" else torch.bfloat16)
    optimizer = st.AdamW(model.parameters(), lr=1e-2, store=f"{folder}/store{{rank}}", pinned="1MiB", state_format=state_format)
    sent = []
    if is_first:
        train(model, optimizer, 3)
        if rank == 0:
            torch.save((model.state_dict(), optimizer.state_dict()), saved)
    else:
        model_state, state = torch.load(saved, weights_only=True)
        model.load_state_dict(model_state)
        watch(sent)
        if fault == rank:
            fail_at(optimizer.run.engine, "read" if rank == 0 else "write", 3)
        if error := error_of(lambda: optimizer.load_state_dict(state)):
            return error, error_of(optimizer.step), error_of(optimizer.state_dict)
    losses = train(model, optimizer, 3, 3)
    result = losses, digest(model.parameters()), state_digest(optimizer), max(sent, default=0)
    optimizer.run.close()
    return result


def watch(sent):
    """Makes pieces small, and records the bytes of each."""
    _together.PIECE_BYTES = 4096
    real = torch.distributed.broadcast

    def broadcast(piece, *arguments, **more):
        sent.append(piece.numel())
        return real(piece, *arguments, **more)

    torch.distributed.broadcast = broadcast


def fail_at(engine, name, call):
    """Makes a call of the engine fail."""
    real, calls = getattr(engine, name), []

    def fails(*arguments):
        calls.append(None)
        if len(calls) == call:
            raise spillway.ResourceExhausted("the disk is full")
        return real(*arguments)

    setattr(engine, name, fails)


class Rank0Test(RanksTest):
    def test_all_ranks_of_any_number_load_what_rank_0_saved(self):
        for state_format, counts in (("fp32", (1, 2, 3, 4)), ("8bit", (3,)), ("compact", (2,))):
            folder, saved = self.store(), str(self.folder / "saved.pt")
            expected = ranks.run(2, replicated, folder, state_format, saved, True)[0][:3]
            for count in counts:
                for *result, largest in ranks.run(count, replicated, folder, state_format, saved, False):
                    self.assertEqual(tuple(result), expected)
                    self.assertEqual(largest, 4096 if count > 1 else 0)

    def test_an_error_of_one_rank_is_raised_on_all(self):
        folder, saved = self.store(), str(self.folder / "saved.pt")
        ranks.run(2, replicated, folder, "fp32", saved, True)
        for fault in (0, 1):
            for load, step, save in ranks.run(2, replicated, folder, "fp32", saved, False, fault):
                self.assertEqual(load, f"ResourceExhausted: rank {fault}: the disk is full")
                self.assertIn("was not loaded whole", step or save)
        for load, _, _ in ranks.run(2, replicated, self.store(), "fp32", saved, False):
            self.assertRegex(load, r"^FailedPrecondition: the state dict that rank 0 loads names commit torch-\S+ of store "
                                   r"[0-9a-f]{32}, and none of the 2 ranks has that store: .* Open that store on one of them, "
                                   r"or save full_state_dict\(\) there and load it here$")


def trainer(rank, folder, resume, steps):
    """transformers' Trainer, as under torchrun. Returns the losses of the last steps and the bits of the weights."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # accelerate asks for them, and the ranks are joined already
    from trainer_test import Windows, tiny_llama
    from transformers import Trainer, TrainingArguments

    torch.set_default_device(None)
    model = tiny_llama()
    arguments = TrainingArguments(output_dir=f"{folder}/out", max_steps=steps, per_device_train_batch_size=2, save_steps=2,
                                  report_to=[], use_cpu=True, seed=3, disable_tqdm=True, logging_steps=1, learning_rate=1e-3,
                                  lr_scheduler_type="constant", ddp_backend="gloo")
    optimizer = {"lr": 1e-3, "store": f"{folder}/store{{rank}}", "pinned": "1MiB"}
    made = Trainer(model=model, args=arguments, train_dataset=Windows(), optimizer_cls_and_kwargs=(st.AdamW, optimizer))
    made.train(resume_from_checkpoint=resume)
    losses = [each["loss"] for each in made.state.log_history if "loss" in each]
    made.optimizer.optimizer.run.close()
    return losses, digest(model.parameters()), type(made.model_wrapped).__name__


class TrainerTest(RanksTest):
    def test_trainer_resumes_what_rank_0_saved_to_the_same_bits_and_on_one_rank_more(self):
        folder = self.store()
        whole = ranks.run(2, trainer, folder, None, 6)
        self.assertEqual(whole[0][2], "DistributedDataParallel")
        saved = f"{folder}/out/checkpoint-4"
        self.assertTrue(pathlib.Path(saved, "optimizer.pt").exists())
        for losses, weights, _ in ranks.run(2, trainer, folder, saved, 6):
            self.assertEqual(losses[-2:], whole[0][0][-2:])
            self.assertEqual(weights, whole[0][1])
        more = ranks.run(3, trainer, folder, saved, 6)
        self.assertEqual(more[0][0][:4], whole[0][0][:4])  # of the log that was saved
        self.assertEqual(len({weights for _, weights, _ in more}), 1)


# --- A commit of each rank ---

def all_ways(rank, folder):
    """Loads one checkpoint in every way, one after another. Returns what follows each."""
    results = []
    for name, options in (("nested", NESTED), ("flattened", FLATTENED)):
        for store in ("store{rank}", "store{other}"):
            results.append(later_steps(rank, folder, name, options, store))
            torch.distributed.barrier()  # a store is open once at a time
    return results


def changing_kinds(rank, folder):
    """Saves one kind after another. Returns losses, without and with loads between."""
    whole, parts = [], []
    model, optimizer = sharded(f"{folder}/whole")
    for step in range(4):
        whole += batches(model, rank, 1, step, optimizer)
    optimizer.run.close()
    before = None
    for step, kind in enumerate(("commit", "tensors", "commit", "tensors")):
        model, optimizer = sharded(folder, checkpoint=kind if before is None else before)
        if before is not None:
            load(model, optimizer, f"{folder}/{step - 1}")
        optimizer.checkpoint = kind
        parts += batches(model, rank, 1, step, optimizer)
        save(model, optimizer, f"{folder}/{step}")
        optimizer.run.close()
        before = kind
    return whole, parts


def full_dicts(rank, folder):
    """Saves with each of DCP's options by torch.save, and loads. Returns the bits of the state after each."""
    model, optimizer = sharded(folder)
    batches(model, rank, 2, 0, optimizer)
    results = [state_digest(optimizer)]
    ways = [({"full_state_dict": True}, {"full_state_dict": True}), ({"cpu_offload": True}, {}),
            ({"full_state_dict": True, "cpu_offload": True}, {"full_state_dict": True, "broadcast_from_rank0": True})]
    for saving, loading in ways:
        state = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(**saving))
        batches(model, rank, 1, 2, optimizer)
        set_optimizer_state_dict(model, optimizer, state, options=StateDictOptions(**loading))
        results.append(state_digest(optimizer))
    return results


def failing_commit(rank, folder):
    """Commits fail on rank 1. Returns the errors, this rank's snapshots before and after each, and whether the last checkpoint
    loads."""
    model, optimizer = sharded(folder)
    run = optimizer.run
    batches(model, rank, 2, 0, optimizer)
    save(model, optimizer, f"{folder}/good")
    snapshots = [[each["label"] for each in run.engine.snapshots()]]
    expected = state_digest(optimizer)
    errors, real = [], run.engine.commit

    def commit(state):
        raise spillway.ResourceExhausted("the disk is full")

    for _ in range(3):
        batches(model, rank, 1, 2, optimizer)
        if rank == 1:
            run.engine.commit = commit
        errors.append(error_of(lambda: save(model, optimizer, f"{folder}/bad")))
        run.engine.commit = real
        snapshots.append([each["label"] for each in run.engine.snapshots()])
    optimizer.param_groups[1]["object"] = object()
    errors.append(error_of(optimizer.state_dict))
    del optimizer.param_groups[1]["object"]
    load(model, optimizer, f"{folder}/good")
    return errors, snapshots, state_digest(optimizer) == expected


def kept(rank, folder):
    """Returns how many snapshots a Checkpoints keeps as checkpoints come and go."""
    model, optimizer = sharded(folder)
    out = pathlib.Path(folder, "out")
    if rank == 0:
        out.mkdir()
    torch.distributed.barrier()
    checkpoints = st.Checkpoints(optimizer.run, out, keep=1)
    counts = []
    for step in range(5):
        batches(model, rank, 1, step, optimizer)
        if step < 3:
            save(model, optimizer, str(out / str(step)))
        else:
            get_optimizer_state_dict(model, optimizer)  # of a checkpoint that never becomes whole
        torch.distributed.barrier()
        checkpoints.drop_gone()
        counts.append(len(checkpoints.labels()))
    torch.distributed.barrier()
    if rank == 0:
        shutil.rmtree(out / "0")
        (out / "1/.metadata").unlink()
    torch.distributed.barrier()
    checkpoints.drop_gone()
    counts.append(len(checkpoints.labels()))
    load(model, optimizer, str(out / "2"))
    return counts


def without_the_file(rank, folder):
    """Returns the errors of loading the newest commits of all ranks, and the bits of the state before and after."""
    model, optimizer = sharded(folder)
    batches(model, rank, 2, 0, optimizer)
    optimizer.state_dict()
    expected = state_digest(optimizer)
    batches(model, rank, 1, 2, optimizer)
    optimizer.load_state_dict(st.last_state_dict(optimizer.run))
    results = [state_digest(optimizer) == expected]
    batches(model, rank, 1, 2, optimizer)
    if rank == 0:
        optimizer.keep_commit()  # the job would end here
    return results + [error_of(lambda: st.last_state_dict(optimizer.run))]


WAYS = {"both": ("AdamW", "float32", "fp32", {}), "hsdp": ("SGD", "float32", "fp32", {"momentum": 0.9}),
        "tp": ("RMSprop", "float32", "bf16", {"centered": True}), "fsdp": ("Lion", "bfloat16", "compact", {})}


def every_way(rank, folder, load_from, turn):
    """Trains in several ways on one number of ranks, mostly with two optimizers of one run: 2 steps and a checkpoint, unless it
    is there, then 2 steps. Each rank has the store of the one `turn` ranks further. Returns what follows the checkpoints."""
    results = {}
    for way, (rule, dtype, state_format, options) in WAYS.items():
        dtype, place = getattr(torch, dtype), f"{folder}/{way}"
        model, number = shard(way, Model().to(dtype))
        params = list(model.parameters())
        parts = [params] if way == "tp" else [params[:5], params[5:]]  # of its first 5 parameters none is sharded
        store = f"{place}-{(rank + turn) % torch.distributed.get_world_size()}"
        with st.open(store, pinned="1MiB", report=False) as run:
            optimizers = [getattr(st, rule)(part, lr=1e-3, store=run, checkpoint="commit", state_format=state_format, **options)
                          for part in parts]

            def steps(first, model=model, number=number, dtype=dtype, optimizers=optimizers):
                losses = []
                for step in (first, first + 1):
                    generator = torch.Generator().manual_seed(100 * step + number)
                    loss = model(torch.randn(4, 7, generator=generator).to(dtype)).float().square().mean()
                    loss.backward()
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
                    losses.append(loss.item())
                return losses

            if load_from is None:
                steps(0)
                save(model, optimizers, place)
            else:
                load(model, optimizers, place)
            results[way] = steps(2), digest(params), [state_digest(optimizer) for optimizer in optimizers]
    return results


class CommitsTest(RanksTest):
    def test_the_state_goes_to_the_rank_that_needs_it_or_every_rank_raises(self):
        folder = self.store()
        options = {"nested": NESTED, "flattened": FLATTENED}
        expected = ranks.run(2, first_steps, folder, options)
        for rank, results in enumerate(ranks.run(2, all_ways, folder)):
            self.assertEqual(results, [expected[rank]] * 4)
        alike = set(ranks.run(3, later_steps, folder, "nested", NESTED))
        self.assertRegex(alike.pop(), "^FailedPrecondition: the state dict names the commits of 2 ranks, and there are 3 now")
        self.assertFalse(alike)
        alike = set(ranks.run(2, later_steps, folder, "nested", NESTED, "new{rank}"))
        self.assertRegex(alike.pop(), r"^FailedPrecondition: the state dict names commit torch-\S+ of rank 0, which is in "
                                      r"store [0-9a-f]{32}, and no rank has that store: open it on one of the 2 ranks\. If it "
                                      r"is lost, load a checkpoint that was saved with checkpoint='tensors'$")
        self.assertFalse(alike)

    def test_every_way_of_sharding_and_every_format(self):
        folder = self.store()
        expected = ranks.run(4, every_way, folder, None, 0)
        for turn in (0, 1):
            self.assertEqual(ranks.run(4, every_way, folder, folder, turn), expected)

    def test_the_newest_commits_load_if_they_are_of_one_step(self):
        for is_same, error in ranks.run(2, without_the_file, self.store()):
            self.assertTrue(is_same)
            self.assertRegex(error, "^FailedPrecondition: the last commits of the ranks' stores are of different steps")

    def test_the_kind_may_change_between_saves(self):
        for whole, parts in ranks.run(2, changing_kinds, self.store()):
            self.assertEqual(whole, parts)

    def test_full_and_offloaded_dicts(self):
        for results in ranks.run(2, full_dicts, self.store()):
            self.assertEqual(len(results), 4)
            self.assertEqual(set(results), {results[0]})

    def test_a_commit_that_fails_on_one_rank_fails_on_all_and_the_last_checkpoint_loads(self):
        for errors, snapshots, is_same in ranks.run(2, failing_commit, self.store()):
            self.assertEqual(errors[:3], ["ResourceExhausted: rank 1: the disk is full"] * 3)
            self.assertRegex(errors[3], "^InvalidArgument: object of group 1 is of type object, which the store cannot describe")
            self.assertEqual(snapshots, [snapshots[0]] * 4)
            self.assertTrue(is_same)

    def test_checkpoints_keeps_what_whole_folders_name(self):
        for counts in ranks.run(2, kept, self.store()):
            self.assertEqual(counts, [1, 2, 3, 4, 4, 2])  # at the end that of checkpoint 2, and the newest


if __name__ == "__main__":
    unittest.main()
