# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of spillway.torch: parameters, gradients, a small model and a folder."""

import os
import pathlib
import tempfile
import unittest

import torch

# The device of the tests' tensors. tests/torch/run_test --cuda sets SPILLWAY_TORCH_DEVICE to "cuda".
DEVICE = torch.device(os.environ.get("SPILLWAY_TORCH_DEVICE", "cpu"))
if DEVICE.type == "cuda":
    # Only with these settings do two runs of the same operations give the same bits.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)


def since(major, minor, what):
    """Skips a test of a feature that PyTorch has since that version, if PyTorch is older."""
    has = tuple(int(word) for word in torch.__version__.split(".")[:2]) >= (major, minor)
    return unittest.skipUnless(has, f"PyTorch has {what} since {major}.{minor}, and this is {torch.__version__}")


# For tests that ctest runs under the label slow alone, as torch_MODULE_all.
slow = unittest.skipUnless("SPILLWAY_EXHAUSTIVE" in os.environ, "runs with SPILLWAY_EXHAUSTIVE=1")

SHAPES = [(7, 300), (300,), (64, 33), (1,), (), (3, 5, 7)]


def make_params(dtype=torch.float32, seed_=1, shapes=SHAPES):
    generator = torch.Generator(DEVICE).manual_seed(seed_)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def set_gradients(params, step, scale=1.0):
    generator = torch.Generator(DEVICE).manual_seed(1000 + step)
    for param in params:
        param.grad = (torch.randn(param.shape, generator=generator) * scale).to(param.dtype)


def tiny_model(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(32, 200), torch.nn.LayerNorm(200), torch.nn.Tanh(),
                               torch.nn.Linear(200, 16)).to(dtype)


def train(model, optimizer, steps, first=0, clip=None, scaler=None, accumulate=1):
    """Returns the loss of each step's last batch. Batches depend only on the number of the step."""
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            generator = torch.Generator(DEVICE).manual_seed(100 * step + part)
            batch = torch.randn(8, 32, generator=generator).to(next(model.parameters()).dtype)
            loss = model(batch).float().square().mean()
            (scaler.scale(loss) if scaler else loss).backward()
        if clip is not None:
            if scaler:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        losses.append(loss.item())
    return losses


class TorchTest(unittest.TestCase):
    makes_tensors_there = True  # new tensors are on DEVICE by default

    def setUp(self):
        if self.makes_tensors_there:
            torch.set_default_device(DEVICE)
            self.addCleanup(torch.set_default_device, None)
        folder = tempfile.TemporaryDirectory(prefix="spillway-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.stores = 0

    def store(self):
        self.stores += 1
        return str(self.folder / f"store{self.stores}")

    def assert_same(self, first, second):
        for a, b in zip(first, second, strict=True):
            self.assertTrue(torch.equal(a.detach(), b.detach()))


def train_params(params, optimizer):
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()


def state_of(optimizer):
    return {index: {name: value.clone() for name, value in state.items()}
            for index, state in optimizer.full_state_dict()["state"].items()}


class StateTest(TorchTest):
    def assert_same_state(self, first, second):
        self.assertEqual(first.keys(), second.keys())
        for index in first:
            self.assertEqual(first[index].keys(), second[index].keys(), index)
            for name, value in first[index].items():
                self.assertTrue(torch.equal(value, second[index][name]), (index, name))
