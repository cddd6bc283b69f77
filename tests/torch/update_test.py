# SPDX-License-Identifier: Apache-2.0
"""Tests updates that fail or are broken off, and parameters that an optimizer does not know."""

import contextlib
import functools
import gc
import subprocess
import sys
import threading
import unittest
import warnings
from unittest import mock

import spillway
import spillway.torch as st
import torch
from torch.nn import Linear, Parameter
from torch_case import StateTest, state_of, tiny_model, train_params


class UpdateTest(StateTest):
    def test_a_run_is_closed_and_a_process_ends_during_a_step(self):
        code = """
import faulthandler, sys, threading, spillway, torch, spillway.torch as st
faulthandler.enable()
run = st.open(None, report=False)
param = torch.nn.Parameter(torch.zeros(4 << 20))
optimizer = st.AdamW([param], store=run)
param.grad = torch.ones_like(param)
begun, errors = threading.Event(), []
def work():
    try:
        while True:
            begun.set()
            optimizer.step()
    except spillway.FailedPrecondition as error:
        errors.append(error)
thread = threading.Thread(target=work, daemon=True)
thread.start()
begun.wait()
if sys.argv[1] == "close":
    run.close()
    thread.join()
    assert "closed" in str(errors[0]), errors
"""
        for how in ("close", "exit"):
            ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code, how], capture_output=True, text=True, timeout=300)
            self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_after_an_update_that_failed_nothing_is_updated_twice(self):
        small, large = Parameter(torch.ones(10)), Parameter(torch.ones(3, 9000))
        optimizer = st.SGD([small, large], lr=1.0, momentum=0.9, store=self.store(), pinned="16KiB")
        small.grad, large.grad = torch.ones_like(small), torch.ones_like(large)
        with self.assertRaises(spillway.ResourceExhausted):
            optimizer.step()
        after = small.detach().clone()
        for again in (optimizer.step, optimizer.state_dict, optimizer.full_state_dict):
            with self.assertRaisesRegex(spillway.FailedPrecondition, "of another step, since an update failed"):
                again()
        self.assertTrue(torch.equal(small, after))

    def test_a_state_dict_waits_for_the_step_of_another_thread(self):
        run = st.open(self.store(), pinned="4MiB")
        params = [Parameter(torch.ones(600)), Parameter(torch.ones(600))]
        first, second = (st.AdamW([param], store=run) for param in params)
        for param in params:
            param.grad = torch.ones_like(param)
        first.step()
        begun, commits, errors = threading.Event(), threading.Event(), []
        step, none = second._engine_state.step, run.leasing.none
        state = second._engine_state.tensors(0)[0]["id"]

        def slow_step(piece):
            with run.engine.acquire_host(state, access="read-write"):  # as the library's step holds leases
                begun.set()
                commits.wait()
            step(piece)

        @contextlib.contextmanager
        def entered():
            threading.Timer(0.05, commits.set).start()  # if it does not wait for the step, it finds the lease at once
            with none():
                yield

        def take_step():
            try:
                second.step()
            except Exception as error:
                errors.append(error)

        with mock.patch.object(second._engine_state, "step", slow_step), mock.patch.object(run.leasing, "none", entered):
            thread = threading.Thread(target=take_step)
            thread.start()
            begun.wait()
            try:
                saved = first.state_dict()
            finally:
                commits.set()
                thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(second._known[params[1]].step, 1)
        second.step()
        expected = state_of(second)
        first.load_state_dict(saved)
        self.assert_same_state(expected, state_of(second))
        run.close()

    def test_a_state_dict_is_of_the_whole_step_of_another_thread(self):
        run = st.open(self.store(), pinned="4MiB")
        self.addCleanup(run.close)
        params = [Parameter(torch.ones(600)), Parameter(torch.ones(600))]
        optimizer = st.AdamW(params, store=run)
        train_params(params, optimizer)
        begun, commits, is_saved, saved = threading.Event(), threading.Event(), threading.Event(), []
        step, none = optimizer._engine_state.step, run.leasing.none

        def slow_step(piece):
            if begun.is_set():
                is_saved.wait(0.3)  # a state dict that does not wait for the second piece is made now
            begun.set()
            commits.wait()
            step(piece)

        @contextlib.contextmanager
        def entered():
            threading.Timer(0.05, commits.set).start()  # by then it waits for the step
            with none():
                yield

        def save():
            begun.wait()
            saved.append(optimizer.state_dict())
            is_saved.set()

        thread = threading.Thread(target=save)
        thread.start()
        with mock.patch.object(optimizer._engine_state, "step", slow_step), mock.patch.object(run.leasing, "none", entered), \
                mock.patch("spillway.torch._staging.PIECE_BYTES", 1), \
                mock.patch("spillway.torch._staging.is_apart", lambda _: True):
            train_params(params, optimizer)
            thread.join()
        expected = state_of(optimizer)
        self.assertEqual(saved[0]["spillway"]["steps"], [[2, 2]])
        train_params(params, optimizer)
        optimizer.load_state_dict(saved[0])
        self.assert_same_state(expected, state_of(optimizer))

    def test_a_parameter_that_is_not_known_is_not_left_out_in_silence(self):
        param, empty = Parameter(torch.ones(4)), Parameter(torch.ones(0))
        optimizer = st.AdamW([param, empty])
        for each in (param, empty):
            each.grad = torch.ones_like(each)
        optimizer.step()
        optimizer.param_groups[0]["params"][0] = grown = Parameter(torch.ones(6))
        grown.grad = torch.ones_like(grown)
        with self.assertRaisesRegex(spillway.FailedPrecondition, r"a parameter of \(6,\) was put into a group"):
            optimizer.step()
        optimizer.param_groups[0]["params"][0] = param
        empty.data = torch.ones(4)  # which has had no step
        empty.grad = torch.ones(4)
        optimizer.step()
        self.assertFalse(torch.equal(empty, torch.ones(4)))

    def test_a_group_that_is_refused_registers_nothing(self):
        good, bad = Parameter(torch.ones(4)), Parameter(torch.ones(4, dtype=torch.float64))
        first = Parameter(torch.ones(4))
        optimizer = st.AdamW([first], update="backward")
        with self.assertRaisesRegex(spillway.InvalidArgument, "float64"):
            optimizer.add_param_group({"params": [good, bad]})
        (good.sum() + first.sum()).backward()
        good.grad = None
        optimizer.step()
        optimizer.add_param_group({"params": [good]})
        good.sum().backward()
        optimizer.step()
        self.assertFalse(torch.equal(good, torch.ones(4)))

    def test_a_group_that_fails_midway_leaves_nothing_behind(self):
        for more in ({"update": "backward"}, {"gradients": "engine"}):
            first, good = Parameter(torch.ones(4)), Parameter(torch.ones(4, dtype=torch.bfloat16))
            large = Parameter(torch.ones(1, 40000, dtype=torch.bfloat16))
            run = st.open(self.store(), pinned="64KiB")
            optimizer = st.AdamW([first], lr=0.1, store=run, **more)
            ids = list(optimizer.ids)
            try:
                optimizer.add_param_group({"params": [good, large]})
                self.fail("a tile of the large parameter's state does not fit")
            except spillway.ResourceExhausted as error:
                kept = error  # and with it all that the failed call refers to
            for param in (good, large):
                self.assertFalse(optimizer.knows(param))
                self.assertFalse(param._post_accumulate_grad_hooks)
            self.assertEqual(optimizer.ids, ids)
            for name in ("optimizer/1.0/master", "optimizer/1.0/exp_avg", "optimizer/1.1/master", "optimizer/1.1/exp_avg",
                         "gradients/1.0", "gradients/1.1"):
                with self.assertRaises(spillway.NotFound):
                    run.engine.find(name)
            (first.sum() + good.float().sum()).backward()
            good.grad = None
            optimizer.step()
            optimizer.add_param_group({"params": [good]})
            del kept
            gc.collect()
            good.float().sum().backward()
            optimizer.step()
            self.assertFalse(torch.equal(good, torch.ones_like(good)))
            optimizer.state_dict()
            run.close()

    def test_an_optimizer_that_could_not_be_made_leaves_nothing_behind(self):
        fits = Parameter(torch.ones(4))
        for wrong, more in ((Parameter(torch.ones(4, dtype=torch.float64)), {}),
                            (Parameter(torch.ones(1, 40000, dtype=torch.bfloat16)), {"gradients": "engine"}),
                            (Parameter(torch.ones(4)), {"state_format": "int4"}),
                            (Parameter(torch.ones(4)), {"betas": (0.9, "0.x")})):
            for is_own in (True, False):
                store = self.store()
                run = store if is_own else st.open(store, pinned="64KiB")
                words = {"store": run, **({"pinned": "64KiB"} if is_own else {})}
                try:
                    st.AdamW([{"params": [fits]}, {"params": [wrong]}], **words, **more)
                    self.fail("this cannot be")
                except (spillway.Error, ValueError) as error:
                    kept = error
                optimizer = st.AdamW([fits], **words)  # the store is not in use
                self.assertEqual(list(optimizer.tile_rows()), ["optimizer/0.0"])
                del kept
                gc.collect()
                train_params([fits], optimizer)
                optimizer.state_dict()
                optimizer.run.close()

    def test_an_optimizer_before_offload_is_refused(self):
        run = st.open(None)
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), store=run)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "make the optimizer after offload"):
            st.offload(model, run)
        # An optimizer of another run is found at its next step.
        st.offload(model, st.open(None))
        model(torch.ones(2, 32)).sum().backward()
        with self.assertRaisesRegex(spillway.InvalidArgument, "of another run"):
            optimizer.step()
        del optimizer

    def test_gradients_that_backward_has_used_are_not_dropped_in_silence(self):
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), lr=1e-2, update="backward")

        def backward():
            model(torch.ones(2, 32)).square().sum().backward()

        def drop_and_backward():
            model.zero_grad()
            backward()

        def weights():
            return [param.detach().clone() for param in model.parameters()]

        def step_twice():
            with self.assertRaisesRegex(spillway.FailedPrecondition, "gradient was dropped or replaced between backward"):
                optimizer.step()
            optimizer.step()

        saved = optimizer.full_state_dict()
        for again in (drop_and_backward, optimizer.zero_grad):
            for end in (step_twice, lambda: optimizer.load_state_dict(saved)):
                before = weights()
                backward()
                updated = weights()
                self.assertFalse(torch.equal(before[0], updated[0]))
                with self.assertRaisesRegex(spillway.FailedPrecondition, r"was updated in an earlier backward, and step\(\) was"):
                    again()
                self.assert_same(weights(), updated)
                model.zero_grad()
                end()
                optimizer.zero_grad()

    def test_a_gradient_that_backward_has_used_is_not_dropped_or_replaced_before_a_step(self):
        def drop(model):
            model[0].weight.grad = None

        def replace(model):
            model[0].weight.grad = torch.ones_like(model[0].weight)

        for change in (drop, replace, torch.nn.Module.zero_grad):
            model = tiny_model()
            optimizer = st.AdamW(model.parameters(), update="backward")
            for is_changed in (False, True):
                model(torch.ones(2, 32)).square().sum().backward()
                if is_changed:
                    change(model)
                    with self.assertRaisesRegex(spillway.FailedPrecondition, "parameter 0.0: its gradient was dropped or"):
                        optimizer.step()
                    model.zero_grad()
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    optimizer.step()
            self.assertEqual(optimizer.state_dict()["spillway"]["steps"], [[2] * 6])

    def test_a_step_that_found_a_gradient_of_no_backward_can_be_repeated(self):
        first, last = Linear(8, 8), Linear(8, 1)
        optimizer = st.AdamW([*first.parameters(), *last.parameters()], update="backward")
        first(torch.ones(1, 8)).sum().backward()
        last.weight.grad = torch.ones_like(last.weight)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "has a gradient that no backward gave"):
            optimizer.step()
        last.weight.grad = None
        optimizer.step()
        self.assertTrue(all(param.grad is None for param in first.parameters()))

    def test_what_backward_has_used_is_not_changed_before_a_step(self):
        def set_rate(optimizer, _):
            optimizer.param_groups[0]["lr"] = 1e-3

        def set_betas(optimizer, _):
            optimizer.param_groups[0]["betas"] = (0.8, 0.999)

        def schedule(_, scheduler):
            scheduler.step()

        def clamp(optimizer, _):
            with torch.no_grad():
                optimizer.param_groups[0]["params"][2].clamp_(-0.1, 0.1)

        for is_offloaded in (False, True):
            for change, error in ((set_rate, "lr of its group was changed from 0.01 to 0.001"), (set_betas, "beta1 of its"),
                                  (schedule, "lr of its"), (clamp, "0.2: the weight was written")):
                run = st.open(None, report=False)
                model = st.offload(tiny_model(), run) if is_offloaded else tiny_model()
                optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run, update="backward")
                scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
                for is_changed in (False, True):
                    model(torch.ones(2, 32)).square().sum().backward()
                    if is_changed:
                        change(optimizer, scheduler)
                        with self.assertRaisesRegex(spillway.FailedPrecondition, error):
                            optimizer.step()
                    optimizer.step()
                    scheduler.step()
                    clamp(optimizer, None)
                    set_rate(optimizer, None)
                    set_betas(optimizer, None)
                    optimizer.param_groups[0].update(lr=1e-2, betas=(0.9, 0.999))
                optimizer.state_dict()
                run.close()

    def test_a_backward_through_another_optimizers_parameters_is_told(self):
        torch.manual_seed(3)
        generator, critic = Linear(8, 8), Linear(8, 1)
        of_generator, of_critic = (st.Adam(model.parameters(), update="backward") for model in (generator, critic))

        def step(freezes):
            made = generator(torch.ones(4, 8))
            critic.zero_grad()
            critic(made.detach()).sum().backward()
            of_critic.step()
            before = critic.weight.detach().clone()
            generator.zero_grad()
            critic.requires_grad_(not freezes)
            critic(made).sum().backward()
            of_generator.step()
            critic.requires_grad_(True)
            return torch.equal(critic.weight, before)

        for _ in range(2):
            self.assertTrue(step(freezes=True))
        self.assertFalse(step(freezes=False))
        with self.assertRaisesRegex(spillway.FailedPrecondition, "during another model's backward"):
            step(freezes=False)

    def test_a_gradient_that_another_optimizer_has_in_the_engine_is_refused(self):
        run, layer = st.open(None, report=False), Linear(2, 2)
        engine = st.AdamW(layer.parameters(), store=run, gradients="engine")
        memory = st.SGD(layer.parameters(), lr=0.1, store=run)
        layer(torch.ones(1, 2)).sum().backward()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "gradient of parameter 0.0 .* another optimizer with gradients="):
            memory.step()
        engine.step()

    def test_a_view_of_a_gradient_in_the_engine_is_used_as_it_reads(self):
        results = []
        for make in (torch.optim.AdamW, st.AdamW, functools.partial(st.AdamW, gradients="engine")):
            layer = Linear(2, 2, bias=False)
            torch.nn.init.zeros_(layer.weight)
            optimizer = make(layer.parameters(), lr=0.1)
            (layer.weight[0, 1] * 3).backward()
            layer.weight.grad = layer.weight.grad.t()
            optimizer.step()
            results.append(layer.weight.detach().clone())
        torchs, memory, engine = results
        self.assertTrue(torch.equal(memory, engine))
        torch.testing.assert_close(engine, torchs)  # which rounds otherwise on some CPUs

    def test_a_sparse_tensor_of_weights_has_values_of_its_own(self):
        run = st.open(None)
        layer = st.offload(Linear(1, 100, bias=False), run)
        index = torch.arange(100)
        values = layer.weight.detach().reshape(-1)
        sparse = torch.sparse_coo_tensor(torch.stack([index, index]), values, (100, 100))
        before = sparse.to_dense().clone()
        with torch.no_grad():
            layer.weight.fill_(7.0)
        self.assertTrue(torch.equal(sparse.to_dense(), before))


if __name__ == "__main__":
    unittest.main()
