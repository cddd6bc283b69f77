# SPDX-License-Identifier: Apache-2.0
"""Pipelines of torch.distributed.pipelining whose stages have weights, gradients and state in stores of their own: the losses
are torch.optim's, and have the same bits wherever the model is cut and whatever memory each stage has."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

import ranks
import torch
from ranks_case import RanksTest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "tools/python/examples/pipeline.py"
SMALL = ["--layers", "3", "--width", "64"]


def example():
    spec = importlib.util.spec_from_file_location("pipeline_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights_of(trainer):
    """Returns the sum of the bits of each weight, by layer and name."""
    return {(trainer.first + int(name.split(".")[0]), name.split(".", 1)[1]):
            param.detach().clone().view(torch.int32).sum(dtype=torch.int64).item()
            for name, param in trainer.stage.submod.named_parameters()}


def train(rank, cut, words, first=0, last=5, saved=None):
    """Trains a stage of the example on the steps from `first` to before `last`. Returns the losses of the last rank, and the
    weights of this one. `saved`: the folder from which a state dict of each rank is loaded before, if `first` is not 0, and to
    which it is saved after."""
    pipeline = example()
    trainer = pipeline.Trainer(pipeline.parse(words), cut)
    file = pathlib.Path(saved or ".", f"{rank}.pt")
    if first > 0:
        trainer.optimizer.load_state_dict(torch.load(file, weights_only=True))
    losses = [trainer.step(number) for number in range(first, last)]
    if saved:
        torch.save(trainer.optimizer.state_dict(), file)
    weights = weights_of(trainer)
    trainer.close()
    return losses, weights


def train_all(rank, cut, cases):
    return [train(rank, cut, *case) for case in cases]


class PipelineTest(RanksTest):
    def train(self, cut, *cases):
        """Returns the losses, and the weights of all layers, of each case."""
        return [(of_ranks[-1][0], {name: bits for _, weights in of_ranks for name, bits in weights.items()})
                for of_ranks in zip(*ranks.run(len(cut) + 1, train_all, cut, cases))]

    def words(self, *words):
        return [self.store(), *SMALL, *words]

    def test_the_losses_are_those_of_torch_and_the_bits_those_of_any_cut_memory_and_process(self):
        store, saved = self.words("--pinned", "7"), str(self.folder)
        made, (expected, _), (begun, _) = self.train((2,), (self.words("--pinned", "6"),), (self.words("--memory"),),
                                                     (store, 0, 2, saved))
        losses, weights = made
        self.assertEqual(len(losses), 5)
        self.assertLess(max(abs(a - b) for a, b in zip(losses, expected, strict=True)), 1e-6)
        self.assertEqual({layer for layer, _ in weights}, set(range(5)))
        self.assertEqual(begun, losses[:2])
        self.assertEqual(self.train((2,), (store, 2, 5, saved)), [(losses[2:], weights)])
        for cut in ((1, 3), (1, 2, 4)):  # on three ranks, and on four
            self.assertEqual(self.train(cut, (self.words("--pinned", "64"),)), [made])

    def test_the_example_cuts_by_what_it_measures(self):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(EXAMPLE),
                   str(self.folder / "run"), *SMALL, "--steps", "2"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout.splitlines()[-1])
        (cut,) = told["cut"]
        self.assertEqual([stage["layers"] for stage in told["stages"]], [[0, cut], [cut, 5]])
        self.assertEqual(sum(stage["bytes"] for stage in told["stages"]), 16 * (2 * 8192 * 64 + 2 * 64 + 3 * 49984))
        self.assertEqual(len(told["losses"]), 2)
        self.assertEqual(done.stderr.count("in its store, a step"), 2, done.stderr)

    def test_cuts_are_by_time_and_then_by_bytes(self):
        best_cut = example().best_cut
        self.assertEqual(best_cut([(1, 1)] * 6, 2), (3,))
        self.assertEqual(best_cut([(1, 1)] * 6, 3), (2, 4))
        self.assertEqual(best_cut([(0, 90), (1, 1), (1, 1), (4, 9)], 2), (3,))  # by time
        # An embedding takes no time: of two cuts of the same time the one with the smaller largest stage.
        self.assertEqual(best_cut([(2, 50), (0, 40), (2, 30)], 2), (1,))
        self.assertEqual(best_cut([(2, 30), (0, 40), (2, 50)], 2), (2,))


if __name__ == "__main__":
    unittest.main()
