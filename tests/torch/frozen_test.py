# SPDX-License-Identifier: Apache-2.0
"""Tests parameters that do not require a gradient, as the base of a model with LoRA adapters: they have no state."""

import unittest

import spillway
import spillway.torch as st
import torch
from torch.nn import Parameter
from torch_case import DEVICE, StateTest, state_of


class FrozenTest(StateTest):
    def make(self, dtype=torch.float32, frozen=True):
        """Returns a base of two parameters, of which the first is to be trained late, and an adapter."""
        generator = torch.Generator(DEVICE).manual_seed(1)
        base = [Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in ((40, 300), (300,))]
        for param in base:
            param.requires_grad_(not frozen)
        return [*base, Parameter(torch.zeros(300, 8))]

    def step(self, params, optimizer, number):
        """Takes a step with gradients that depend only on its number, of those parameters that are not frozen."""
        for at, param in enumerate(params):
            generator = torch.Generator(DEVICE).manual_seed(10 * number + at)
            gradient = torch.randn(param.shape, generator=generator).to(param.dtype)
            if param.requires_grad:
                (param * gradient).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def names(self, optimizer):
        return sorted(name.rsplit("/", 1)[1] for name in optimizer.tile_rows())

    def weights_of(self, params):
        return [param.detach().clone() for param in params]

    def write(self, params, weights):
        with torch.no_grad():
            for param, weight in zip(params, weights):
                param.copy_(weight)

    def test_state_is_made_when_the_first_gradient_arrives(self):
        for dtype, words in ((torch.float32, {}), (torch.bfloat16, {}), (torch.bfloat16, {"state_format": "compact"}),
                             (torch.bfloat16, {"state_format": "8bit"}), (torch.float32, {"gradients": "engine"})):
            whole = self.make(dtype, frozen=False)  # it has state of all, and no gradients of the base before step 2
            params = self.make(dtype)
            whole[2], params[2] = (Parameter(each[2].detach().to(dtype)) for each in (whole, params))
            one = st.AdamW(whole, lr=0.1, store=self.store(), pinned="1MiB", **words)
            two = st.AdamW(params, lr=0.1, store=self.store(), pinned="1MiB", **words)
            self.assertEqual(self.names(two), ["0.2"])
            for number in range(4):
                for param in (whole[0], params[0]):
                    param.requires_grad_(number >= 2)
                whole[1].requires_grad_(False)
                self.step(whole, one, number)
                self.step(params, two, number)
                self.assertEqual(self.names(two), ["0.0", "0.2"] if number >= 2 else ["0.2"])
            self.assert_same(whole, params)
            self.assert_same_state(state_of(one), state_of(two))
            with self.assertRaises(spillway.NotFound):
                two.run.engine.find("gradients/0.1")
            one.run.close()
            two.run.close()

    def test_a_commit_before_and_after_it_was_unfrozen_is_loaded(self):
        for dtype in (torch.float32, torch.bfloat16):
            for reopens in (False, True):
                store, params = self.store(), self.make(dtype)
                optimizer = st.AdamW(params, lr=0.1, store=store, pinned="1MiB")
                self.step(params, optimizer, 0)
                saved = [(optimizer.state_dict(), self.weights_of(params), state_of(optimizer))]
                params[0].requires_grad_(True)
                self.step(params, optimizer, 1)
                saved.append((optimizer.state_dict(), self.weights_of(params), state_of(optimizer)))
                self.step(params, optimizer, 2)
                expected = self.weights_of(params), state_of(optimizer)
                for at in (0, 1, 0):
                    state_dict, weights, state = saved[at]
                    if reopens:  # where it is frozen, as a script makes it
                        optimizer.run.close()
                        params = self.make(dtype)
                        optimizer = st.AdamW(params, lr=0.1, store=store, pinned="1MiB")
                    optimizer.load_state_dict(state_dict)
                    self.write(params, weights)
                    params[0].requires_grad_(True)
                    self.assertEqual(self.names(optimizer), ["0.0", "0.2"] if at else ["0.2"])
                    self.assert_same_state(state, state_of(optimizer))
                    for number in range(at + 1, 3):
                        self.step(params, optimizer, number)
                    self.assert_same(expected[0], params)
                    self.assert_same_state(expected[1], state_of(optimizer))
                optimizer.run.close()

    def test_another_optimizer_stays_whatever_the_order_in_which_its_states_were_made(self):
        for budget, other in (("16MiB", "1MiB"), ("1MiB", "16MiB")):
            store = self.store()

            def make(pinned):
                run = st.open(store, pinned=pinned, report=False)
                params = [Parameter(torch.ones(shape, dtype=torch.bfloat16)) for shape in ((600, 300), (500, 400))]
                params[0].requires_grad_(False)
                alone = [Parameter(torch.ones(16))]
                first, second = st.AdamW(alone, lr=0.1, store=run), st.AdamW(params, lr=0.1, store=run)
                self.step(alone, first, 0)
                self.step(params, second, 0)
                params[0].requires_grad_(True)
                self.step(params, second, 1)
                return run, alone, first, params, second

            run, alone, first, params, second = make(budget)
            saved, expected = first.state_dict(), state_of(first)
            run.close()
            run, alone, first, params, second = make(other)
            self.step(params, second, 2)
            stays = state_of(second)
            first.load_state_dict(saved)
            self.assert_same_state(stays, state_of(second))
            self.assert_same_state(expected, state_of(first))
            run.close()

    def test_a_commit_of_a_version_that_made_state_of_frozen_parameters_is_loaded(self):
        for dtype in (torch.float32, torch.bfloat16):
            for rule, words in ((st.AdamW, {}), (st.AdamW, {"state_format": "bf16"}), (st.Adafactor, {})):
                store, params = self.store(), self.make(dtype, frozen=False)
                optimizer = rule(params, lr=0.1, store=store, pinned="1MiB", **words)
                states = [each["name"] for known in optimizer._known.values()
                          for each in optimizer._engine_state.tensors(known.number)]
                params[0].requires_grad_(False)
                params[1].requires_grad_(False)
                self.step(params, optimizer, 0)
                old = optimizer.state_dict()
                weights, state = self.weights_of(params), state_of(optimizer)
                self.step(params, optimizer, 1)
                expected = self.weights_of(params)
                optimizer.run.close()

                params = self.make(dtype)
                self.write(params, weights)
                optimizer = rule(params, lr=0.1, store=store, pinned="1MiB", **words)
                optimizer.load_state_dict(old)
                self.assertEqual(self.names(optimizer), ["0.2"])
                self.assert_same_state(state, state_of(optimizer))
                self.step(params, optimizer, 1)
                self.assert_same(expected, params)
                optimizer.state_dict()
                for name in states:
                    if "/0.2/" not in name:
                        with self.assertRaises(spillway.NotFound, msg=name):  # the commit does not have it any more
                            optimizer.run.engine.forget(name)
                optimizer.run.close()

    def test_torchs_dict_has_state_of_those_that_were_trained(self):
        theirs = self.make()
        theirs[0].requires_grad_(True)
        torchs = torch.optim.AdamW(theirs, lr=0.1)
        self.step(theirs, torchs, 0)
        given = torchs.state_dict()
        self.assertEqual(list(given["state"]), [0, 2])
        params = self.make()  # the first is frozen again
        optimizer = st.AdamW(params, lr=0.1)
        wrong = {**given, "state": {0: given["state"][0], 2: {**given["state"][2], "exp_avg": torch.ones(3)}}}
        with self.assertRaisesRegex(spillway.InvalidArgument, "exp_avg of parameter 0.2 has the shape"):
            optimizer.load_state_dict(wrong)
        self.assertEqual(self.names(optimizer), ["0.2"])
        optimizer.load_state_dict(given)
        self.assertEqual(self.names(optimizer), ["0.0", "0.2"])
        expected = {index: {name: value.cpu() for name, value in of.items()} for index, of in given["state"].items()}
        self.assert_same_state(expected, state_of(optimizer))
        params[1].requires_grad_(True)  # of which the dict has no state
        self.step(params, optimizer, 1)
        self.assertEqual(optimizer.full_state_dict()["state"][1]["step"].item(), 1)
        optimizer.load_state_dict({**given, "state": {}})
        self.assertEqual(state_of(optimizer), {})


if __name__ == "__main__":
    unittest.main()
