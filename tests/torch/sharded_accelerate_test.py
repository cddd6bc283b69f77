# SPDX-License-Identifier: Apache-2.0
"""accelerate's FSDP2: it shards the model after the optimizer was made, and saves and loads through
torch.distributed.checkpoint. It has no FSDP on CPUs, so the tests set its state by hand."""

import os
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # accelerate wants it, although the ranks have been joined

import ranks  # noqa: E402
import spillway.torch as st  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState, PartialState  # noqa: E402
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin  # noqa: E402
from hf_case import tiny_llama  # noqa: E402
from ranks_case import RanksTest  # noqa: E402
from torch_case import slow  # noqa: E402


class Loop:
    """A program that trains with accelerate. Without a store its optimizer is torch.optim's."""

    def __init__(self, store, kind="SHARDED_STATE_DICT", seed=11, **more):
        AcceleratorState._reset_state(reset_partial_state=True)  # the state of an earlier program in this process
        # Otherwise it steps the schedule once for each rank.
        self.accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind, cpu_ram_efficient_loading=False,
                                                auto_wrap_policy="transformer_based_wrap",
                                                transformer_cls_names_to_wrap=["LlamaDecoderLayer"])
        PartialState().distributed_type = DistributedType.FSDP
        self.accelerator.state.distributed_type, self.accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
        model = tiny_llama(tie=False, layers=2, seed=seed)
        made = torch.optim.AdamW(model.parameters(), lr=1e-2) if store is None else \
            st.AdamW(model.parameters(), lr=1e-2, store=store, pinned="4MiB", **more)
        self.ours = None if store is None else made
        schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + step))
        self.model, self.optimizer, self.schedule = self.accelerator.prepare(model, made, schedule)

    def train(self, first, last):
        """Returns the loss of each step over the whole batch, which does not depend on the number of ranks."""
        losses = []
        for step in range(first, last):
            whole = torch.randint(0, 128, (8, 16), generator=torch.Generator().manual_seed(step))
            batch = whole.chunk(dist.get_world_size())[dist.get_rank()]
            loss = self.model(input_ids=batch, labels=batch).loss
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(total.item() / dist.get_world_size())
        return losses

    def close(self):
        if self.ours is not None:
            self.ours.run.close()


def trained(rank, store, steps, saved=None, loaded=None, first=0, **more):
    """Trains from `first` to before `steps`, after loading a checkpoint if there is one, and saves another."""
    loop = Loop(store, seed=11 if loaded is None else 99, **more)
    if loaded is not None:
        loop.accelerator.load_state(loaded)
    losses = loop.train(first, steps)
    if saved is not None:
        loop.accelerator.save_state(saved)
    loop.close()
    return losses


def all_trained(rank, cases):
    return [trained(rank, *args, **more) for args, more in cases]


class ShardedAccelerateTest(RanksTest):
    def train(self, count, *cases):
        """Trains each case in turn on so many ranks. Returns its losses, which are equal on all ranks."""
        made = ranks.run(count, all_trained, cases)
        self.assertTrue(all(one == made[0] for one in made), made)
        return made[0]

    def ours(self):
        return self.store() + "-{rank}"

    def assert_near(self, losses, expected):
        self.assertLess(max(abs(a - b) for a, b in zip(losses, expected, strict=True)), 1e-6, (losses, expected))

    def test_it_trains_saves_and_loads(self):
        store, tensors, commit = self.ours(), str(self.folder / "tensors"), str(self.folder / "commit")
        expected, losses, *made = self.train(2, ((None, 5), {}), ((self.ours(), 5), {}),
                                             ((self.ours(), 3, tensors), {}), ((self.ours(), 5, None, tensors, 3), {}),
                                             ((store, 3, commit), {"checkpoint": "commit"}),
                                             ((store, 5, None, commit, 3), {"checkpoint": "commit"}))
        self.assert_near(losses, expected)
        self.assertEqual([made[0] + made[1], made[2] + made[3]], [losses, losses])

    @slow
    def test_other_ways_and_other_numbers_of_ranks(self):
        of_torch, saved, full = (str(self.folder / name) for name in ("torch", "saved", "full"))
        losses, in_engine, _, *made = self.train(
            4, ((self.ours(), 5), {}), ((self.ours(), 5), {"gradients": "engine"}), ((self.ours(), 3, saved), {}),
            ((self.ours(), 3, full), {"kind": "FULL_STATE_DICT"}),
            ((self.ours(), 5, None, full, 3), {"kind": "FULL_STATE_DICT"}))
        self.assertEqual(in_engine, losses)
        self.assertEqual(made[0] + made[1], losses)
        # torch.optim loads it, too, and the other way round; so does another number of ranks.
        theirs, _, ours = self.train(2, ((None, 5, None, saved, 3), {}), ((None, 3, of_torch), {}),
                                     ((self.ours(), 5, None, of_torch, 3), {}))
        (alone,) = self.train(1, ((self.ours(), 5, None, saved, 3), {}))
        for each in (theirs, ours, alone):
            self.assert_near(each, losses[3:])


if __name__ == "__main__":
    unittest.main()
