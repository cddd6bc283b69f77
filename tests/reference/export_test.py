# SPDX-License-Identifier: Apache-2.0
"""A model that `spillway snapshot export` writes opens in transformers, and has the weights of the snapshot's step."""

import json
import os
import subprocess
import unittest

import numpy
import torch
import transformers

from models import read_weights
from recipe import Recipe, run_spillway
from reference_case import ReferenceCase

SEQUENCE = 33
WINDOWS = 6


def spillway(*words):
    finished = subprocess.run([os.environ["SPILLWAY_COMMAND"], *map(str, words)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"spillway {' '.join(map(str, words))}\nexited {finished.returncode}:\n{finished.stderr}")
    return finished.stdout


@torch.no_grad()
def mean_loss(network, data):
    """Returns the mean loss of the first validation windows, which are the windows that `spillway eval` takes."""
    tokens = torch.from_numpy(numpy.load(data / "valid.npy").astype(numpy.int64))
    losses = []
    for begin in range(0, WINDOWS * SEQUENCE, SEQUENCE):
        window = tokens[begin : begin + SEQUENCE + 1]
        logits = network(window[None, :-1]).logits[0].float()
        losses.append(torch.nn.functional.cross_entropy(logits, window[1:]).item())
    return sum(losses) / len(losses)


class Export(ReferenceCase):
    def check(self, shape, precision):
        model, data = self.make(shape)
        store, exported = self.folder / "store", self.folder / "exported"
        extra = ("--store", store, "--device-bytes", "4MiB", "--pinned-bytes", "8MiB", "--commit-every", "1")
        first = run_spillway(Recipe(steps=2, precision=precision, extra=extra), model, data, self.folder / "two")
        spillway("snapshot", "create", store, "two")
        run_spillway(Recipe(steps=4, precision=precision, extra=(*extra, "--resume")), model, data,
                     self.folder / "four")
        spillway("snapshot", "export", store, "two", "--save", exported, "--model", model)

        network = transformers.AutoModelForCausalLM.from_pretrained(exported, torch_dtype=torch.float32)
        loss = mean_loss(network, data)
        evaluated = json.loads(spillway("eval", "--model", exported, "--data", data, "--seq", SEQUENCE,
                                        "--batches", WINDOWS, "--json"))
        self.assertEqual(evaluated["windows"], WINDOWS)
        self.assert_near(evaluated["loss"], loss, 1e-4, "loss of the exported model")
        weights = read_weights(exported)
        self.assertEqual(sorted(weights), sorted(first.weights))
        for name, weight in weights.items():
            self.assertTrue(torch.equal(weight, first.weights[name]), name)
        self.assertFalse(all(torch.equal(weight, read_weights(model)[name]) for name, weight in weights.items()))

    def test_fp32(self):
        self.check("untied_grouped", "fp32")

    def test_fp16_amp_tied(self):
        self.check("many_tiles_tied", "fp16-amp")


if __name__ == "__main__":
    unittest.main()
