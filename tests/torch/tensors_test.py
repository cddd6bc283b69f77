# SPDX-License-Identifier: Apache-2.0
"""State dicts of tensors that stay in the store (checkpoint="tensors"), in one process."""

import collections
import copy
import unittest

import spillway
import spillway.torch as st
import torch
from torch_case import SHAPES, StateTest, make_params, set_gradients, state_of

RULES = {"AdamW": {}, "Adam": {"amsgrad": True}, "SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.5, "centered": True},
         "Adafactor": {}, "Lion": {}, "LAMB": {}, "LARS": {}}
FORMATS = [(torch.float32, {}), (torch.bfloat16, {}), (torch.bfloat16, {"state_format": "bf16"}),
           (torch.bfloat16, {"state_format": "compact"}), (torch.bfloat16, {"state_format": "8bit"})]


class TensorsTest(StateTest):
    def trained(self, which, dtype=torch.float32, steps=3, **words):
        params = make_params(dtype, shapes=[shape for shape in SHAPES if shape])
        optimizer = which(params, lr=1e-2, **words)
        for step in range(steps):
            self.step(params, optimizer, step)
        return params, optimizer

    def step(self, params, optimizer, number):
        set_gradients(params, number)
        optimizer.step()
        optimizer.zero_grad()

    def ours(self, name, dtype=torch.float32, steps=3, **words):
        return self.trained(getattr(st, name), dtype, steps, store=self.store(), pinned="1MiB", checkpoint="tensors",
                            **RULES[name], **words)

    def assert_torchs_state(self, optimizer, of=None):
        """Checks that the entries of the state dict have what full_state_dict() has."""
        entries = (of or optimizer.state_dict())["state"]
        expected = optimizer.full_state_dict()["state"]
        for index, state in expected.items():
            state.pop("grad_var", None)
            if optimizer._kind == "sgd":
                state.pop("step")
            self.assertEqual(state.keys(), entries[index].keys())
            for name, value in state.items():
                self.assertTrue(torch.equal(value, entries[index][name].clone()), (index, name))

    def test_it_is_saved_and_loaded_by_every_rule(self):
        for name in RULES:
            with self.subTest(name):
                params, optimizer = self.ours(name)
                self.assert_torchs_state(optimizer)
                torch.save({"optimizer": optimizer.state_dict(), "params": params}, self.folder / "saved.pt")
                saved = torch.load(self.folder / "saved.pt", weights_only=True)
                expected = state_of(optimizer)
                again, other = self.ours(name, steps=1)
                with torch.no_grad():
                    for param, value in zip(again, saved["params"], strict=True):
                        param.copy_(value)
                other.load_state_dict(saved["optimizer"])
                self.assert_torchs_state(other, saved["optimizer"])
                if name != "RMSprop":  # its variance is computed from the square and the mean
                    found = state_of(other)
                    for state in (*expected.values(), *found.values()) if name == "SGD" else ():
                        state.pop("step")  # torch.optim.SGD has none
                    self.assert_same_state(expected, found)
                self.step(params, optimizer, 3)
                self.step(again, other, 3)
                for mine, its in zip(params, again, strict=True):
                    torch.testing.assert_close(mine, its, rtol=0, atol=0 if name != "RMSprop" else 1e-6)
                if name not in ("Lion", "LAMB", "LARS"):
                    theirs, torchs = self.trained(getattr(torch.optim, name), steps=1, **RULES[name])
                    with torch.no_grad():
                        for param, value in zip(theirs, saved["params"], strict=True):
                            param.copy_(value)
                    torchs.load_state_dict(saved["optimizer"])
                    self.step(theirs, torchs, 3)
                    for mine, its in zip(params, theirs, strict=True):
                        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)

    def test_what_is_written_into_the_entries_is_in_the_store(self):
        for dtype, words in FORMATS:
            with self.subTest(f"{dtype} {words}"):
                _, optimizer = self.ours("AdamW", dtype, **words)
                given = {index: {name: value.clone() for name, value in state.items()}
                         for index, state in optimizer.state_dict()["state"].items()}
                again, other = self.ours("AdamW", dtype, steps=0, **words)
                entries = other.state_dict()
                for index, state in given.items():
                    for name, value in state.items():
                        half = value.numel() // 2  # in two parts, as of two ranks
                        flat = entries["state"][index][name].view(-1)
                        if name == "step":
                            entries["state"][index][name].copy_(value)
                        else:
                            flat[:half].copy_(value.view(-1)[:half])
                            flat[half:].copy_(value.view(-1)[half:])
                with self.assertRaisesRegex(spillway.FailedPrecondition, "a state dict was not loaded whole"):
                    self.step(again, other, 3)
                with self.assertRaisesRegex(spillway.FailedPrecondition, "a state dict was not loaded whole"):
                    other.state_dict()["state"][0]["exp_avg"].clone()
                other.load_state_dict(entries)
                _, whole = self.ours("AdamW", dtype, steps=0, **words)
                whole.load_state_dict({**entries, "state": given})  # it may round, but once
                self.assert_same_state(state_of(whole), state_of(other))
                if words.get("state_format") not in ("8bit", "compact"):
                    self.assert_same_state(given, state_of(other))
                self.step(again, other, 3)

    def test_state_says_what_there_is_and_is_not_changed(self):
        params, optimizer = self.ours("AdamW", steps=0)
        self.assertTrue(optimizer.state)
        self.assertEqual(list(optimizer.state[params[0]]), ["step", "exp_avg", "exp_avg_sq"])
        with self.assertRaisesRegex(spillway.InvalidArgument, "is not the optimizer's"):
            optimizer.state[torch.ones(3)]
        with self.assertRaises(spillway.Unimplemented):
            optimizer.state.clear()
        with self.assertRaises(spillway.Unimplemented):
            optimizer.state = collections.defaultdict(dict)
        with self.assertRaisesRegex(spillway.Unimplemented, "have all of the optimizer's state in memory"):
            copy.deepcopy(optimizer.state_dict())
        with self.assertRaisesRegex(spillway.InvalidArgument, "checkpoint is 'all': it must be one of tensors, commit"):
            optimizer.checkpoint = "all"
        optimizer.checkpoint = None
        self.assertEqual(optimizer.checkpoint, "commit")
        with self.assertRaisesRegex(spillway.Unimplemented, "checkpoint='tensors'"):
            bool(optimizer.state)

    def test_the_kind_may_change_between_saves(self):
        params, optimizer = self.ours("AdamW")
        tensors = {"optimizer": optimizer.state_dict(), "params": params}
        torch.save(tensors, self.folder / "tensors.pt")
        optimizer.checkpoint = "commit"
        commit, weights = optimizer.state_dict(), [param.detach().clone() for param in params]
        self.assertIn("spillway", commit)
        self.step(params, optimizer, 3)
        expected = [param.detach().clone() for param in params]
        saved = torch.load(self.folder / "tensors.pt", weights_only=True)["optimizer"]
        for state_dict in (commit, saved, commit):
            optimizer.load_state_dict(state_dict)
            with torch.no_grad():
                for param, weight in zip(params, weights, strict=True):
                    param.copy_(weight)
            self.step(params, optimizer, 3)
            self.assert_same(expected, params)


if __name__ == "__main__":
    unittest.main()
