# SPDX-License-Identifier: Apache-2.0
"""Tests the variants of rules (maximize, nesterov, dampening, centered, amsgrad), constants that change from step to step, and
groups whose constants differ, against torch.optim."""

import copy
import io
import math
import unittest

import spillway
import spillway.torch as st
import torch
from torch_case import DEVICE, SHAPES, StateTest, make_params, set_gradients, state_of

try:
    from torch.testing._internal import common_optimizers as database
except ModuleNotFoundError:  # expecttest, in an environment that tools/setup --torch has not made anew
    database = None

CLASSES = {"adam": (torch.optim.Adam, st.Adam), "adamw": (torch.optim.AdamW, st.AdamW), "sgd": (torch.optim.SGD, st.SGD),
           "rmsprop": (torch.optim.RMSprop, st.RMSprop)}
if hasattr(torch.optim, "Adafactor"):
    CLASSES["adafactor"] = (torch.optim.Adafactor, st.Adafactor)
FORMATS = ("fp32", "bf16", "8bit", "compact")
MATRICES = [shape for shape in SHAPES if shape]  # torch's Adafactor needs at least one dimension
# The largest mean error of a parameter's way, as a part of the way: a step between two values of a moment, as in
# tests/optim/state_conversion_test.cc.
LIMITS = {"fp32": 2e-5, "bf16": 0.008, "8bit": 0.03, "compact": 0.03}


def inputs():
    """Returns the inputs of PyTorch's own tests of its optimizers on the CPU: class, arguments, and what they test."""
    return [(name, each.kwargs, each.desc) for name in CLASSES
            for each in getattr(database, f"optim_inputs_func_{name}")(device="cpu")]


def formats_of(name):
    return ("fp32",) if name == "adafactor" else FORMATS


def copies(params, dtype):
    return [torch.nn.Parameter(param.detach().to(dtype, copy=True)) for param in params]


def take_steps(params, optimizer, steps, before=lambda step: None):
    for step in steps:
        before(step)
        set_gradients(params, step)
        optimizer.step()


def masters_of(params, optimizer):
    """Returns the parameters in fp32, as the updates have them."""
    state = optimizer.full_state_dict()["state"]
    return [state[index].get("master_weight", param.detach().float()) for index, param in enumerate(params)]


class VariantsTest(StateTest):
    def assert_close(self, params, theirs):
        for mine, its in zip(params, theirs, strict=True):
            torch.testing.assert_close(mine.detach(), its.detach(), rtol=2e-5, atol=2e-6)

    @unittest.skipIf(database is None, "PyTorch's database of optimizers cannot be imported")
    def test_every_input_of_pytorchs_database_is_taken(self):
        """In fp32 the parameters are torch.optim's to rounding. In 16 bits, the master weights are near those of torch.optim in
        fp32, with the same gradients."""
        self.assertGreater(len(inputs()), 25)
        for name, words, what in inputs():
            theirs_class, ours_class = CLASSES[name]
            with self.subTest(name, what=what):
                a, b = make_params(shapes=MATRICES), make_params(shapes=MATRICES)
                theirs, ours = theirs_class(a, **copy.deepcopy(words)), ours_class(b, **copy.deepcopy(words))
                take_steps(a, theirs, range(10))
                take_steps(b, ours, range(10))
                self.assert_close(b, a)
            for state_format in formats_of(name):
                with self.subTest(name, what=what, state_format=state_format):
                    self.compare_in_16_bits(name, words, state_format)

    def compare_in_16_bits(self, name, words, state_format):
        theirs_class, ours_class = CLASSES[name]
        more = {} if name == "adafactor" else {"state_format": state_format}
        params = make_params(torch.bfloat16, shapes=MATRICES)
        first = [param.detach().float() for param in params]
        exact = copies(params, torch.float32)
        theirs, ours = theirs_class(exact, **copy.deepcopy(words)), ours_class(params, **copy.deepcopy(words), **more)
        for step in range(10):
            set_gradients(params, step)
            for mine, its in zip(params, exact):
                its.grad = mine.grad.float()
            ours.step()
            theirs.step()
        way = error = 0.0
        for begin, its, mine in zip(first, exact, masters_of(params, ours)):
            way += (its.detach() - begin).abs().sum().item()
            error += (mine.to(its.device) - its.detach()).abs().sum().item()
        self.assertGreater(way, 0)
        self.assertLess(error / way, LIMITS[state_format])

    def cases_with_momentum(self):
        return [("sgd", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}),
                ("sgd", {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
                ("sgd", {"lr": 0.01, "momentum": 0.9, "dampening": 0.5}),
                ("rmsprop", {"lr": 0.01, "momentum": 0.9}), ("rmsprop", {"lr": 0.01, "momentum": 0.9, "centered": True})]

    def test_a_scheduler_may_take_the_momentum_to_zero_and_back(self):
        for name, words in self.cases_with_momentum():
            with self.subTest(name, **words):
                results = []
                for of in CLASSES[name]:
                    params = make_params()
                    optimizer = of(params, **words)
                    schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.001, 0.01, step_size_up=3, step_size_down=2,
                                                                 base_momentum=0.0, max_momentum=0.9)
                    seen = []
                    for step in range(12):
                        set_gradients(params, step)
                        optimizer.step()
                        schedule.step()
                        seen.append(optimizer.param_groups[0]["momentum"])
                    self.assertIn(0.0, [round(each, 12) for each in seen])
                    results.append(params)
                self.assert_close(*reversed(results))

    def test_a_momentum_of_zero_leaves_the_buffer_as_it_is(self):
        for name, words in self.cases_with_momentum():
            for state_format in FORMATS:
                with self.subTest(name, state_format=state_format, **words):
                    params = make_params(torch.bfloat16)
                    optimizer = CLASSES[name][1](params, **words, state_format=state_format)
                    take_steps(params, optimizer, range(2))
                    before = state_of(optimizer)
                    optimizer.param_groups[0]["momentum"] = 0
                    take_steps(params, optimizer, range(2, 4))
                    after = state_of(optimizer)
                    for index in before:
                        self.assertTrue(torch.equal(before[index]["momentum_buffer"], after[index]["momentum_buffer"]))
                        self.assertFalse(torch.equal(before[index]["master_weight"], after[index]["master_weight"]))

    def scheduled(self, optimizer):
        """Returns a function that sets the momentum for a step: none in steps 0, 1, 5 and 6."""
        def momentum(step):
            optimizer.param_groups[0]["momentum"] = 0.0 if step in (0, 1, 5, 6) else 0.8
        return momentum

    def test_momentum_may_begin_later(self):
        """As in torch.optim.SGD, whose buffer is then the first gradient, without dampening."""
        for words in ({}, {"dampening": 0.5}, {"weight_decay": 0.1, "maximize": True}):
            a, b = make_params(), make_params()
            theirs, ours = torch.optim.SGD(a, lr=0.1, **words), st.SGD(b, lr=0.1, **words)
            take_steps(a, theirs, range(10), self.scheduled(theirs))
            take_steps(b, ours, range(10), self.scheduled(ours))
            self.assert_close(b, a)

    def test_momentum_that_begins_later_is_kept_in_commits_and_full_dicts(self):
        for state_format in FORMATS:
            for begun in (1, 3, 6):
                with self.subTest(state_format, begun=begun):
                    self.go_on_after(begun, state_format)

    def go_on_after(self, begun, state_format):
        def make(params, store=None):
            return st.SGD(params, lr=0.1, dampening=0.25, state_format=state_format, store=store, pinned="1MiB")

        params, store = make_params(torch.bfloat16), self.store()
        optimizer = make(params, store)
        take_steps(params, optimizer, range(begun), self.scheduled(optimizer))
        weights = [param.detach().clone() for param in params]
        saved, full, files = optimizer.state_dict(), optimizer.full_state_dict(), [io.BytesIO(), io.BytesIO()]
        for file, of in zip(files, (saved, full)):
            torch.save(of, file)
            file.seek(0)
        take_steps(params, optimizer, range(begun, 10), self.scheduled(optimizer))
        expected = state_of(optimizer)
        # In the same optimizer, which has another state by now, and in a new one.
        with torch.no_grad():
            for param, weight in zip(params, weights):
                param.copy_(weight)
        optimizer.load_state_dict(saved)
        take_steps(params, optimizer, range(begun, 10), self.scheduled(optimizer))
        self.assert_same_state(state_of(optimizer), expected)
        optimizer.run.close()
        again = copies(weights, torch.bfloat16)
        optimizer = make(again, store)
        optimizer.load_state_dict(torch.load(files[0], weights_only=True))
        take_steps(again, optimizer, range(begun, 10), self.scheduled(optimizer))
        self.assert_same_state(state_of(optimizer), expected)
        optimizer.run.close()
        again = copies(weights, torch.bfloat16)
        optimizer = make(again)
        optimizer.load_state_dict(torch.load(files[1], weights_only=True))
        take_steps(again, optimizer, range(begun, 10), self.scheduled(optimizer))
        if state_format in ("fp32", "bf16"):  # the other formats round what they load
            self.assert_same_state(state_of(optimizer), expected)

    def groups(self, name, params):
        """Returns groups whose constants differ, and so the state of their parameters."""
        words = {"sgd": ({}, {"momentum": 0.9}, {"momentum": 0.5, "nesterov": True}),
                 "rmsprop": ({"centered": True}, {"momentum": 0.9}, {"momentum": 0.5, "centered": True, "maximize": True}),
                 "adam": ({}, {"amsgrad": True}, {"amsgrad": True, "maximize": True}),
                 "adamw": ({"amsgrad": True}, {}, {"maximize": True})}[name]
        return [{"params": params[2 * i:2 * i + 2], **each} for i, each in enumerate(words)]

    def test_groups_may_differ(self):
        for name in ("sgd", "rmsprop", "adam", "adamw"):
            with self.subTest(name):
                theirs_class, ours_class = CLASSES[name]
                a, b = make_params(), make_params()
                take_steps(a, theirs_class(self.groups(name, a), lr=0.01), range(8))
                take_steps(b, ours_class(self.groups(name, b), lr=0.01, store=self.store(), pinned="1MiB"), range(8))
                self.assert_close(b, a)

    def test_groups_that_differ_go_on_from_a_commit(self):
        for name in ("sgd", "rmsprop", "adam", "adamw"):
            for state_format in FORMATS:
                with self.subTest(name, state_format=state_format):
                    def make(params, store):
                        return CLASSES[name][1](self.groups(name, params), lr=0.01, state_format=state_format, store=store,
                                                pinned="1MiB")

                    params, store = make_params(torch.bfloat16), self.store()
                    optimizer = make(params, store)
                    take_steps(params, optimizer, range(3))
                    weights, saved = [param.detach().clone() for param in params], optimizer.state_dict()
                    take_steps(params, optimizer, range(3, 6))
                    expected = state_of(optimizer)
                    optimizer.run.close()
                    again = copies(weights, torch.bfloat16)
                    optimizer = make(again, store)
                    optimizer.load_state_dict(saved)
                    take_steps(again, optimizer, range(3, 6))
                    self.assert_same(params, again)
                    self.assert_same_state(state_of(optimizer), expected)
                    optimizer.run.close()

    def test_two_optimizers_of_a_run_keep_what_each_has_when_one_goes_back(self):
        run = st.open(self.store(), pinned="2MiB")
        self.addCleanup(run.close)
        sets = [make_params(torch.bfloat16), make_params(torch.bfloat16, seed_=2)]
        first = st.SGD(sets[0], lr=0.1, state_format="compact", store=run)
        second = st.SGD(sets[1], lr=0.1, state_format="compact", store=run)
        take_steps(sets[0], first, range(2))
        take_steps(sets[1], second, range(2))
        saved = first.state_dict()
        second.param_groups[0]["momentum"] = 0.9  # its state is another one than the commit's
        take_steps(sets[1], second, range(2, 4))
        before = state_of(second)
        first.load_state_dict(saved)
        self.assert_same_state(state_of(second), before)
        take_steps(sets[1], second, range(4, 6))

    def test_amsgrad_and_centered_may_begin_later(self):
        for name, word, begins in (("adam", "amsgrad", "max_exp_avg_sq"), ("rmsprop", "centered", "grad_avg")):
            theirs_class, ours_class = CLASSES[name]
            a, b = make_params(), make_params()
            theirs, ours = theirs_class(a, lr=0.01), ours_class(b, lr=0.01)
            take_steps(a, theirs, range(3))
            take_steps(b, ours, range(3))
            for param in a:
                theirs.state[param][begins] = torch.zeros_like(param)
            for optimizer in (theirs, ours):
                optimizer.param_groups[0][word] = True
            take_steps(a, theirs, range(3, 8))
            take_steps(b, ours, range(3, 8))
            self.assert_close(b, a)

    def test_state_grows_with_weights_and_gradients_in_the_engine(self):
        results = []
        for in_engine in (False, True):
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to(torch.bfloat16)
            run = st.open(self.store(), pinned="4MiB", device=DEVICE)
            self.addCleanup(run.close)
            if in_engine:
                st.offload(model, run)
            optimizer = st.AdamW(model.parameters(), lr=0.01, store=run, gradients="engine" if in_engine else "torch")
            for step in range(6):
                optimizer.param_groups[0]["amsgrad"] = step >= 3
                batch = torch.randn(4, 8, generator=torch.Generator(DEVICE).manual_seed(step)).to(torch.bfloat16)
                model(batch).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            results.append(state_of(optimizer))
        self.assert_same_state(*results)
        self.assertIn("max_exp_avg_sq", results[0][0])

    def test_torchs_dicts_go_in_and_come_out(self):
        for name, words in (("adam", {"amsgrad": True}), ("adamw", {"amsgrad": True, "maximize": True}),
                            ("sgd", {"lr": 0.01, "momentum": 0.9, "dampening": 0.5}),
                            ("sgd", {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
                            ("rmsprop", {"centered": True}), ("rmsprop", {"centered": True, "momentum": 0.5})):
            with self.subTest(name, **words):
                theirs_class, ours_class = CLASSES[name]
                a, b = make_params(), make_params()
                theirs, ours = theirs_class(a, **words), ours_class(b)
                take_steps(a, theirs, range(4))
                with torch.no_grad():
                    for mine, its in zip(b, a):
                        mine.copy_(its)
                ours.load_state_dict(theirs.state_dict())  # the groups' words come with it
                out, given = ours.full_state_dict(), theirs.state_dict()
                for index, of in given["state"].items():
                    mine = [key for key in out["state"][index] if key in of or key not in ("step", "grad_var")]
                    self.assertEqual(mine, list(of), "the names, in torch.optim's order")
                    for key, value in of.items():
                        torch.testing.assert_close(out["state"][index][key].to(value.device), value, rtol=1e-6, atol=0)
                self.assertEqual({**given["param_groups"][0], "params": None, "decoupled_weight_decay": None},
                                 {**out["param_groups"][0], "params": None, "decoupled_weight_decay": None})
                theirs.load_state_dict(out)
                take_steps(a, theirs, range(4, 8))
                take_steps(b, ours, range(4, 8))
                self.assert_close(b, a)

    def test_a_full_dict_of_a_centered_rule_goes_on_bit_for_bit(self):
        for state_format in ("fp32", "bf16"):
            params = make_params()
            ours = st.RMSprop(params, lr=0.01, centered=True, momentum=0.5, state_format=state_format)
            take_steps(params, ours, range(4))
            full, again = ours.full_state_dict(), copies(params, torch.float32)
            other = st.RMSprop(again, lr=0.01, centered=True, momentum=0.5, state_format=state_format)
            other.load_state_dict(full)
            self.assert_same_state(state_of(other), state_of(ours))

    def test_a_variance_of_other_values_than_the_square_is_not_taken(self):
        params = make_params()
        theirs, ours = torch.optim.RMSprop(params, centered=True), st.RMSprop(copies(params, torch.float32), centered=True)
        take_steps(ours.param_groups[0]["params"], ours, range(3))
        theirs.load_state_dict(ours.full_state_dict())  # it keeps grad_var, and does not know what it is
        take_steps(params, theirs, range(3, 6))
        ours.load_state_dict(theirs.state_dict())
        for index, of in ours.full_state_dict()["state"].items():
            its = theirs.state_dict()["state"][index]
            torch.testing.assert_close(of["square_avg"].to(its["square_avg"].device), its["square_avg"], rtol=1e-6, atol=0)

    def test_a_steady_gradient_leaves_a_centered_step_finite(self):
        for state_format in FORMATS:
            param = torch.nn.Parameter(torch.zeros(300, dtype=torch.bfloat16))
            optimizer = st.RMSprop([param], lr=1e-3, centered=True, alpha=0.5, state_format=state_format)
            for _ in range(60):
                param.grad = torch.full_like(param, 0.3)
                optimizer.step()
            self.assertTrue(torch.isfinite(param).all(), state_format)

    def test_dicts_of_older_versions_are_loaded(self):
        later = ("amsgrad", "nesterov", "dampening", "centered", "maximize", "foreach", "fused", "capturable", "differentiable")
        for ours_class, words in ((st.SGD, {"momentum": 0.9}), (st.SGD, {}), (st.RMSprop, {"momentum": 0.9}), (st.AdamW, {})):
            params, store = make_params(torch.bfloat16), self.store()
            optimizer = ours_class(params, lr=0.01, **words, store=store, pinned="1MiB", state_format="compact")
            take_steps(params, optimizer, range(3))
            weights, saved = [param.detach().clone() for param in params], optimizer.state_dict()
            for word in later:
                saved["param_groups"][0].pop(word, None)
            del saved["spillway"]["moments"], saved["spillway"]["momentum"]
            take_steps(params, optimizer, range(3, 5))
            expected = state_of(optimizer)
            optimizer.run.close()
            again = copies(weights, torch.bfloat16)
            optimizer = ours_class(again, lr=0.01, **words, store=store, pinned="1MiB", state_format="compact")
            optimizer.load_state_dict(saved)
            take_steps(again, optimizer, range(3, 5))
            self.assert_same_state(state_of(optimizer), expected)
            optimizer.run.close()

    def test_words_that_change_nothing_are_accepted(self):
        harmless = {"adam": ("foreach", "fused", "capturable", "differentiable"), "sgd": ("foreach", "fused", "differentiable"),
                    "rmsprop": ("foreach", "capturable", "differentiable"), "adafactor": ("foreach",)}
        harmless["adamw"] = harmless["adam"]
        for name, (_, ours_class) in CLASSES.items():
            plain = make_params(shapes=MATRICES)
            take_steps(plain, ours_class(plain), range(2))
            for word in harmless[name]:
                for value in (True, False, None) if word in ("foreach", "fused") else (False,):
                    params = make_params(shapes=MATRICES)
                    optimizer = ours_class(params, **{word: value})
                    self.assertEqual(optimizer.param_groups[0][word], value)
                    take_steps(params, optimizer, range(2))
                    self.assert_same(plain, params)

    def test_words_that_would_change_something_are_refused(self):
        for name, word, why in (("adam", "capturable", "a CUDA graph cannot record it"),
                                ("rmsprop", "capturable", "a CUDA graph cannot record it"),
                                ("adamw", "differentiable", "autograd does not see the update"),
                                ("sgd", "differentiable", "autograd does not see the update")):
            ours_class = CLASSES[name][1]
            params = make_params()
            with self.assertRaisesRegex(spillway.InvalidArgument, f"{word}=True: .*{why}"):
                ours_class(params, **{word: True})
            optimizer = ours_class(params[:1])
            with self.assertRaisesRegex(spillway.InvalidArgument, why):
                optimizer.add_param_group({"params": params[1:], word: True})
            saved = optimizer.full_state_dict()
            saved["param_groups"][0][word] = True
            with self.assertRaisesRegex(spillway.InvalidArgument, why):
                optimizer.load_state_dict(saved)
        for words in ({"nesterov": True}, {"nesterov": True, "momentum": 0.9, "dampening": 0.5}):
            for of in (torch.optim.SGD, st.SGD):
                with self.assertRaisesRegex(ValueError, "Nesterov momentum requires a momentum and zero dampening"):
                    of(make_params(), **words)
        with self.assertRaisesRegex(spillway.InvalidArgument, "dampening=0.5 with nesterov"):
            st.SGD([{"params": make_params(), "dampening": 0.5}], momentum=0.9, nesterov=True)
        with self.assertRaisesRegex(spillway.InvalidArgument, "use spillway.torch.AdamW"):
            st.Adam(make_params(), decoupled_weight_decay=True)
        with self.assertRaisesRegex(ValueError, "Tensor lr must be 1-element"):
            st.SGD(make_params(), lr=torch.tensor([0.1, 0.2]))

    def test_arguments_have_torchs_positions(self):
        for name, arguments in (("sgd", (0.1, 0.9, 0.25, 0.01)), ("sgd", (0.1, 0.9, 0, 0.01, True)),
                                ("adam", (0.1, (0.8, 0.9), 1e-6, 0.1, True)), ("adamw", (0.1, (0.8, 0.9), 1e-6, 0.1, True)),
                                ("rmsprop", (0.1, 0.9, 1e-6, 0.1, 0.5, True, False, None, True, False))):
            theirs_class, ours_class = CLASSES[name]
            theirs, ours = theirs_class(make_params(), *arguments), ours_class(make_params(), *arguments)
            for word, value in ours.defaults.items():
                self.assertEqual(value, theirs.defaults[word], (name, word))

    def test_a_scheduler_changes_a_learning_rate_that_is_a_tensor(self):
        results = []
        for of in CLASSES["sgd"]:
            params = make_params()
            optimizer = of(params, lr=torch.tensor(0.1), momentum=0.5)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            for step in range(4):
                set_gradients(params, step)
                optimizer.step()
                schedule.step()
            self.assertIsInstance(optimizer.param_groups[0]["lr"], torch.Tensor)
            results.append(params)
        self.assert_close(*reversed(results))

    def test_maximize_gives_the_bits_of_the_negated_gradient(self):
        for ours_class, words in ((st.Lion, {}), (st.LAMB, {}), (st.LARS, {}), (st.AdamW, {}), (st.SGD, {"momentum": 0.9}),
                                  (st.RMSprop, {"centered": True}), (st.Adafactor, {})):
            along, against = make_params(shapes=MATRICES), make_params(shapes=MATRICES)
            first, second = ours_class(along, maximize=True, **words), ours_class(against, **words)
            for step in range(3):
                set_gradients(along, step)
                for one, other in zip(along, against):
                    other.grad = -one.grad
                first.step()
                second.step()
            self.assert_same(along, against)
            self.assertTrue(all(math.isfinite(param.sum()) for param in along))


if __name__ == "__main__":
    unittest.main()
