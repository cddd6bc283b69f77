# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.optim.ZeroRedundancyOptimizer with optimizers of spillway.torch: the bits of one that has all state, and
state that consolidate_state_dict gathers whole."""

import unittest

import ranks
import spillway
import spillway.torch as st
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch_case import TorchTest, tiny_model

STEPS = 5


def batch_of(step):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(8, 32, generator=generator)


def make(of, folder, name="", **more):
    """Returns a model and its optimizer. "ours": ZeroRedundancyOptimizer over spillway.torch's AdamW with a store for each
    rank; "torch": the same over torch.optim's; "whole": spillway.torch's with all state on each rank, in memory."""
    model = DistributedDataParallel(tiny_model())
    groups = [{"params": list(model.module[0].parameters()), "lr": 2e-2},
              {"params": [param for module in model.module[1:] for param in module.parameters()]}]
    rates = {"lr": 1e-2, "weight_decay": 0.1}
    if of == "torch":
        return model, ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **rates)
    if of == "whole":
        return model, st.AdamW(groups, **rates)
    where = {"store": f"{folder}/{name}-{{rank}}", "pinned": "4MiB"}
    if "parameters_as_bucket_view" not in more:  # a run can be given, too, which no state dict may have
        where = {"store": st.open(**where, report=False)}
    return model, ZeroRedundancyOptimizer(groups, optimizer_class=st.AdamW, **where, **rates, **more)


def train(model, optimizer, first, last):
    losses = []
    for step in range(first, last):
        optimizer.zero_grad()
        loss = model(batch_of(step)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model):
    return [param.detach().clone() for param in model.parameters()]


def assert_same(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second):
        assert torch.equal(a, b)


def assert_near(losses, expected):
    """Asserts that losses are torch.optim's, up to the order in which it rounds."""
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-6, (losses, expected)


# --- What a rank does ---


def trains(rank, folder):
    model, optimizer = make("torch", folder)
    of_torch = train(model, optimizer, 0, STEPS)
    model, optimizer = make("whole", folder)
    expected = train(model, optimizer, 0, STEPS)
    assert_near(expected, of_torch)
    for name, more in {"plain": {}, "buckets": {"parameters_as_bucket_view": True}}.items():
        ours, zero = make("ours", folder, name, **more)
        assert train(ours, zero, 0, STEPS) == expected, name
        assert_same(weights(ours), weights(model))
        assert 0 < len(zero.optim.full_state_dict()["state"]) < len(list(ours.parameters()))  # a part of the state
        zero.optim.run.close()


def consolidates(rank, folder):
    model, reference = make("whole", folder)
    train(model, reference, 0, 2)
    ours, zero = make("ours", folder, "first")
    train(ours, zero, 0, 2)
    zero.consolidate_state_dict(to=1)
    if rank == 1:
        expected, whole = reference.full_state_dict(), zero.state_dict()
        assert whole["state"].keys() == expected["state"].keys() == set(range(6))
        for index, state in expected["state"].items():
            assert state.keys() == whole["state"][index].keys()
            assert_same(state.values(), [whole["state"][index][name] for name in state])
        assert not {"store", "gradients"} & whole["param_groups"][0].keys()
        torch.save((ours.state_dict(), whole), f"{folder}/whole.pt")
    else:  # nothing was gathered here
        try:
            zero.state_dict()
        except RuntimeError as error:
            assert "consolidate_state_dict(to=0)" in str(error)
        else:
            raise AssertionError("state_dict() of a rank that has no state returned")
    own = zero.optim.state_dict()  # still names a commit
    assert own["spillway"]["store_id"] == zero.optim.run.engine.store_id
    zero.optim.run.close()
    dist.barrier()
    expected = train(model, reference, 2, 4)
    again, zero = make("ours", folder, "first")
    again.load_state_dict(torch.load(f"{folder}/whole.pt", weights_only=True)[0])
    zero.optim.load_state_dict(own)
    assert train(again, zero, 2, 4) == expected
    losses, after = goes_on("ours", folder, 4)
    assert losses == expected
    assert_same(after, weights(model))
    assert_near(goes_on("torch", folder, 4)[0], expected)  # torch.optim loads it, too
    # And the other way round.
    model, reference = make("torch", folder)
    train(model, reference, 0, 2)
    reference.consolidate_state_dict(to=0)
    if rank == 0:
        torch.save((model.state_dict(), reference.state_dict()), f"{folder}/whole.pt")
    dist.barrier()
    assert_near(goes_on("ours", folder, 4)[0], train(model, reference, 2, 4))


def goes_on(of, folder, steps):
    """Returns the losses from step 2 on of a new model and optimizer that load whole.pt, and the weights."""
    model, optimizer = make(of, folder, "again")
    model_state, state = torch.load(f"{folder}/whole.pt", weights_only=True)
    model.load_state_dict(model_state)
    optimizer.load_state_dict(state)
    assert [group["lr"] for group in optimizer.param_groups] == [2e-2, 1e-2]
    losses = train(model, optimizer, 2, steps)
    if of == "ours":
        optimizer.optim.run.close()
    return losses, weights(model)


def alone(rank, folder):
    """One rank loads what two have saved."""
    assert_near(goes_on("ours", folder, 4)[0], goes_on("torch", folder, 4)[0])


def raised_by(function, *args):
    try:
        function(*args)
    except (RuntimeError, spillway.Error) as error:
        return str(error)
    raise AssertionError("nothing was raised")


def refuses(rank, folder):
    _, zero = make("ours", folder, "store")
    zero.consolidate_state_dict()
    if rank == 0:
        whole = zero.state_dict()
        whole["param_groups"][1]["params"].pop()
        error = raised_by(zero.load_state_dict, whole)
        assert error.endswith("the state dict has groups of [2, 3] parameters, and the optimizer of [2, 4]"), error
    zero.optim.run.close()
    # DDP's buckets have all gradients in memory, and sums there.
    model, zero = make("ours", folder, "engine", gradients="engine")
    error = raised_by(train, model, zero, 0, 1)
    assert "DistributedDataParallel, which sums gradients in memory, needs an optimizer with gradients='torch'" in error, error


class ZeroRedundancyTest(TorchTest):
    makes_tensors_there = False  # gloo is the CPU's

    def test_losses_and_weights_are_those_of_torch(self):
        for count in (2, 4):
            ranks.run(count, trains, f"{self.folder}/{count}")

    def test_consolidated_state_is_whole_and_loads(self):
        ranks.run(2, consolidates, str(self.folder))
        ranks.run(1, alone, str(self.folder))

    def test_what_does_not_fit_raises(self):
        ranks.run(2, refuses, str(self.folder))


if __name__ == "__main__":
    unittest.main()
