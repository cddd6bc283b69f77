# SPDX-License-Identifier: Apache-2.0
"""torchtitan's way to train: a model in several parts, as a pipeline's rank has them, each sharded by FSDP2 and with an
optimizer of its own, and one flattened state dict of all of them, which torch.distributed.checkpoint saves and any number of
ranks loads."""

import unittest

import ranks
import spillway.torch as st
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks_case import Block, RanksTest
from torch_case import slow
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Part(torch.nn.Module):
    """A part of a model, with parameters of names that no other part has."""

    def __init__(self, number):
        super().__init__()
        torch.manual_seed(number)
        self.blocks = torch.nn.ModuleDict({str(2 * number + block): Block(7, 12) for block in range(2)})

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return x


class Optimizers:
    """One optimizer a part. torch.distributed.checkpoint calls state_dict and load_state_dict."""

    def __init__(self, parts, make):
        self.parts, self.each = parts, [make(part) for part in parts]

    def state_dict(self):
        return {key: value for part, optimizer in zip(self.parts, self.each)
                for key, value in get_optimizer_state_dict(part, optimizer, options=FLAT).items()}

    def load_state_dict(self, state_dict):
        for part, optimizer in zip(self.parts, self.each):
            set_optimizer_state_dict(part, optimizer, state_dict, options=FLAT)


class Weights:
    def __init__(self, parts):
        self.parts = parts

    def state_dict(self):
        return {key: value for part in self.parts for key, value in get_model_state_dict(part).items()}

    def load_state_dict(self, state_dict):
        for part in self.parts:
            set_model_state_dict(part, {key: state_dict[key] for key in get_model_state_dict(part)})


def trained(rank, store, last, saved=None, loaded=None, first=0, **more):
    """Trains a model in two parts, after loading a checkpoint if there is one, and saves another. Returns the loss of each step
    over the whole batch, which does not depend on the number of ranks. Without a store the optimizers are torch.optim's."""
    parts = [Part(number) for number in range(2)]
    for part in parts:
        for block in part.blocks.values():
            fully_shard(block)
        fully_shard(part)
    run = None if store is None else st.open(store, pinned="1MiB", report=False)

    def make(part):
        params = [{"params": [param for param in part.parameters() if (param.dim() > 1) is is_matrix],
                   "weight_decay": 0.1 * is_matrix} for is_matrix in (True, False)]
        return torch.optim.AdamW(params, lr=1e-2) if run is None else st.AdamW(params, lr=1e-2, store=run, **more)

    optimizers = Optimizers(parts, make)
    both = {"model": Weights(parts), "optimizer": optimizers}
    if loaded is not None:
        dcp.load(both, checkpoint_id=loaded)
    losses = []
    for step in range(first, last):
        whole = torch.randn(8, 7, generator=torch.Generator().manual_seed(step))
        x = whole.chunk(dist.get_world_size())[rank]
        for part in parts:
            x = part(x)
        loss = x.square().mean()
        loss.backward()
        for optimizer in optimizers.each:
            optimizer.step()
            optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    if saved is not None:
        dcp.save(both, checkpoint_id=saved)
    if run is not None:
        run.close()
    return losses


def all_trained(rank, cases):
    return [trained(rank, *args, **more) for args, more in cases]


def trained_apart(rank, numbers, store, last, saved=None, loaded=None, first=0):
    """Trains the parts of these numbers, each by itself and whole. Returns the losses by part."""
    parts = [Part(number) for number in numbers[rank]]
    run = st.open(store, pinned="1MiB", report=False)
    optimizers = Optimizers(parts, lambda part: st.AdamW(part.parameters(), lr=1e-2, store=run, checkpoint="tensors"))
    both = {"model": Weights(parts), "optimizer": optimizers}
    if loaded is not None:
        dcp.load(both, checkpoint_id=loaded)
    losses = {number: [] for number in numbers[rank]}
    for step in range(first, last):
        for number, part, optimizer in zip(numbers[rank], parts, optimizers.each):
            loss = part(torch.randn(8, 7, generator=torch.Generator().manual_seed(step))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[number].append(loss.item())
    if saved is not None:
        dcp.save(both, checkpoint_id=saved)
    run.close()
    return losses


class ModelPartsTest(RanksTest):
    def train(self, count, *cases):
        """Trains each case in turn on so many ranks. Returns its losses, which are equal on all ranks."""
        made = ranks.run(count, all_trained, cases)
        self.assertTrue(all(one == made[0] for one in made), made)
        return made[0]

    def ours(self):
        return self.store() + "-{rank}"

    def assert_near(self, losses, expected):
        self.assertLess(max(abs(a - b) for a, b in zip(losses, expected, strict=True)), 1e-6, (losses, expected))

    def test_parts_train_save_and_load(self):
        store, saved, commit = self.ours(), str(self.folder / "saved"), str(self.folder / "commit")
        expected, losses, *made = self.train(
            2, ((None, 5), {}), ((self.ours(), 5), {}), ((self.ours(), 3, saved), {}), ((self.ours(), 5, None, saved, 3), {}),
            ((store, 3, commit), {"checkpoint": "commit"}), ((store, 5, None, commit, 3), {"checkpoint": "commit"}))
        self.assert_near(losses, expected)
        self.assertEqual([made[0] + made[1], made[2] + made[3]], [losses, losses])

    @slow
    def test_torchs_checkpoints_and_other_numbers_of_ranks(self):
        of_torch, saved = str(self.folder / "torch"), str(self.folder / "saved")
        losses, _, theirs, _, ours = self.train(
            2, ((self.ours(), 5), {}), ((self.ours(), 3, saved), {}), ((None, 5, None, saved, 3), {}),
            ((None, 3, of_torch), {}), ((self.ours(), 5, None, of_torch, 3), {}))
        more, fewer = (self.train(count, ((self.ours(), 5, None, saved, 3), {}))[0] for count in (4, 1))
        for each in (theirs, ours, more, fewer):
            self.assert_near(each, losses[3:])

    def test_parts_that_are_whole_on_one_rank_each_go_on_on_another(self):
        (expected,) = ranks.run(1, trained_apart, [[0, 1]], self.ours(), 5)
        saved = str(self.folder / "saved")
        begun = ranks.run(2, trained_apart, [[0], [1]], self.ours(), 3, saved)
        gone_on = ranks.run(2, trained_apart, [[1], [0]], self.ours(), 5, None, saved, 3)
        alone = ranks.run(1, trained_apart, [[0, 1]], self.ours(), 5, None, saved, 3)
        for rest in (gone_on, alone):
            losses = {number: mine for of_rank in rest for number, mine in of_rank.items()}
            for number in (0, 1):
                self.assertEqual(begun[number][number] + losses[number], expected[number])


if __name__ == "__main__":
    unittest.main()
