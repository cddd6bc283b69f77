# SPDX-License-Identifier: Apache-2.0
"""Every way in which torch.distributed.checkpoint saves and loads the state of sharded parameters, in every format."""

import os
import unittest

import ranks
import spillway
import spillway.torch as st
import torch
import torch.distributed.checkpoint as dcp
from ranks_case import full
from ranks_checkpoints import OPTIONS, ChainTest, batches, make
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)


def broadcast(rank, store):
    """Loads a dict with whole tensors, which rank 0 alone has. Returns the losses before and after."""
    model, optimizer = make(st.AdamW, store)
    batches(model, rank, 3, 0, optimizer)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model_state, state = get_state_dict(model, optimizer, options=whole)
    expected = batches(model, rank, 3, 3, optimizer)
    assert (len(state) > 0) == (rank == 0), state
    if rank == 0:
        assert all(type(value) is torch.Tensor for of in state["state"].values() for value in of.values()), state["state"]
    given = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, model_state, options=given)
    set_optimizer_state_dict(model, optimizer, state, options=given)
    losses = batches(model, rank, 3, 3, optimizer)
    optimizer.run.close()
    return expected, losses


def broken_off(rank, store, saved):
    """Breaks off a load. Returns the error of the next step and of a save, and the losses after a load of all."""
    model, optimizer = make(st.AdamW, store)
    batches(model, rank, 2, 0, optimizer)
    dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=saved)
    weights = [full(param) for param in model.parameters()]
    expected = batches(model, rank, 2, 2, optimizer)
    state = optimizer.state_dict()["state"]
    state[0]["exp_avg"].to_local().zero_()
    found = []
    for call in (optimizer.step, lambda: optimizer.state_dict()["state"][0]["exp_avg"].to_local().clone()):
        try:
            call()
        except spillway.FailedPrecondition as error:
            found.append(str(error))
    again = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(again, checkpoint_id=saved)
    set_optimizer_state_dict(model, optimizer, again["optimizer"])
    with torch.no_grad():
        for param, weight in zip(model.parameters(), weights, strict=True):
            param.copy_(torch.distributed.tensor.distribute_tensor(weight, param.device_mesh, param.placements))
    losses = batches(model, rank, 2, 2, optimizer)
    optimizer.run.close()
    return expected, losses, found


class ReshardingTest(ChainTest):
    def test_other_numbers_of_ranks_go_on(self):
        expected = self.chain([1], [torch.optim.AdamW], steps=8)
        for name, options in OPTIONS.items():
            with self.subTest(name):
                self.assert_close(expected, self.chain([4, 2, 1, 4], [st.AdamW] * 4, options))

    def test_torchs_checkpoints_and_ours(self):
        for which, more in (("AdamW", {"amsgrad": True}), ("Adam", {}), ("SGD", {"momentum": 0.9}),
                            ("RMSprop", {"momentum": 0.5, "centered": True, "lr": 1e-3})):
            theirs, ours = getattr(torch.optim, which), getattr(st, which)
            expected = self.chain([1], [theirs], steps=6, **more)
            for name in ("nested", "flattened"):
                with self.subTest(f"{which} {name}"):
                    self.assert_close(expected, self.chain([2, 4, 1], [theirs, ours, theirs], OPTIONS[name], **more))

    def test_the_same_number_of_ranks_goes_on_with_the_same_bits(self):
        bf16 = {"dtype": torch.bfloat16}
        for words in ({}, bf16, {"state_format": "bf16"}, {**bf16, "state_format": "bf16"}):
            for count in (1, 2, 4):
                with self.subTest(f"{count} {words}"):
                    self.assertEqual(self.chain([count], [st.AdamW], steps=6, **words),
                                     self.chain([count] * 3, [st.AdamW] * 3, **words))

    def test_state_of_8_bits_and_compact_state_is_rounded_again(self):
        for words in ({"state_format": "8bit"}, {"dtype": torch.bfloat16, "state_format": "compact"}):
            expected = self.chain([2], [st.AdamW], steps=6, **words)
            for counts in ((2, 2, 2), (2, 1, 4)):
                with self.subTest(f"{counts} {words}"):
                    self.assert_close(expected, self.chain(counts, [st.AdamW] * 3, **words), 5e-2)

    def test_bf16_shards_on_other_numbers_of_ranks(self):
        expected = self.chain([2], [st.AdamW], steps=6, dtype=torch.bfloat16)
        self.assert_close(expected, self.chain([2, 4, 1], [st.AdamW] * 3, dtype=torch.bfloat16), 1e-2)

    def test_a_dict_that_rank_0_alone_has_is_loaded_by_all(self):
        for expected, losses in ranks.run(2, broadcast, self.store()):
            self.assertEqual(expected, losses)

    def test_after_a_load_that_was_broken_off_nothing_goes_on_until_one_ends(self):
        for expected, losses, found in ranks.run(2, broken_off, self.store(), os.path.join(self.folder, "saved")):
            self.assertEqual(len(found), 2, found)
            for text in found:
                self.assertRegex(text, "since a state dict was not loaded whole")
            self.assertEqual(expected, losses)


if __name__ == "__main__":
    unittest.main()
