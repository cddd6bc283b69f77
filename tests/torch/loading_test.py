# SPDX-License-Identifier: Apache-2.0
"""Tests what load_state_dict changes and what it does not."""

import copy
import errno
import gc
import io
import os
import threading
import unittest
from unittest import mock

import spillway
import spillway.torch as st
import torch
from torch.nn import Linear, Parameter
from torch_case import DEVICE, StateTest, since, state_of, tiny_model, train, train_params


class LoadingTest(StateTest):
    def test_weights_that_the_commit_has_not_stay(self):
        for offloads in (lambda model, run: st.offload(model, run), lambda model, run: st.offload(model, run, prefix="other.")):
            store = self.store()
            run = st.open(store, pinned="4MiB")
            model = tiny_model()
            optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
            train(model, optimizer, 2)
            saved, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
            expected = train(model, optimizer, 2, first=2)
            run.close()

            run = st.open(store, pinned="4MiB")
            model = tiny_model()
            model.load_state_dict(weights)
            offloads(model, run)
            optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
            optimizer.load_state_dict(saved)
            self.assert_same(weights.values(), [each.clone() for each in model.parameters()])
            self.assertEqual(train(model, optimizer, 2, first=2), expected)
            run.close()

    def test_a_model_that_was_offloaded_after_the_commit_stays(self):
        run = st.open(self.store(), pinned="4MiB")
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), store=run)
        train(model, optimizer, 1)
        saved = optimizer.state_dict()
        teacher = st.offload(Linear(300, 300), run, prefix="teacher.")
        before = [each.clone() for each in teacher.parameters()]
        train(model, optimizer, 1, first=1)
        optimizer.load_state_dict(saved)
        self.assert_same(before, [each.clone() for each in teacher.parameters()])

    @since(2, 6, "optimizers that take names")
    def test_the_order_of_parameters_counts_and_not_their_names(self):
        store = self.store()
        model = tiny_model()
        optimizer = st.AdamW(model.named_parameters(), lr=1e-2, store=store)
        train(model, optimizer, 3)
        saved, expected = optimizer.state_dict(), state_of(optimizer)
        optimizer.run.close()
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store)
        optimizer.load_state_dict(saved)
        self.assert_same_state(expected, state_of(optimizer))
        optimizer.load_state_dict(optimizer.state_dict())
        self.assert_same_state(expected, state_of(optimizer))

    def two(self, offloaded):
        run = st.open(self.store(), pinned="4MiB")
        models = [tiny_model(torch.bfloat16), tiny_model(torch.bfloat16)]
        if offloaded:
            for number, model in enumerate(models):
                st.offload(model, run, prefix=f"{number}.")
        return run, models, [st.AdamW(model.parameters(), lr=1e-2, store=run) for model in models]

    def test_other_optimizers_of_the_run_stay(self):
        for offloaded in (False, True):
            run, models, (first, second) = self.two(offloaded)
            train(models[0], first, 1)
            train(models[1], second, 1)
            saved, begun = first.state_dict(), state_of(first)
            train(models[1], second, 5)
            train(models[0], first, 2)
            expected = state_of(second)
            weights = [each.clone() for each in models[1].parameters()]
            first.load_state_dict(saved)
            self.assert_same_state(expected, state_of(second))
            self.assert_same_state(begun, state_of(first))
            self.assert_same(weights, [each.clone() for each in models[1].parameters()])
            run.close()

    def test_where_others_could_not_be_brought_back_they_say_so(self):
        run, models, (first, second) = self.two(False)
        train(models[0], first, 1)
        train(models[1], second, 1)
        saved = first.state_dict()
        train(models[1], second, 1)
        write = run.engine.write

        def fail(*_):
            raise spillway.Unavailable("the disk is gone")

        run.engine.write = fail
        with self.assertRaises(spillway.Unavailable):
            first.load_state_dict(saved)
        run.engine.write = write
        for optimizer in (first, second):
            with self.assertRaisesRegex(spillway.FailedPrecondition, "was not loaded whole"):
                optimizer.state_dict()
        first.load_state_dict(saved)
        first.state_dict()

    def loads_beside_another(self, file_class):
        """Loads a state dict while the file that holds the other optimizer's state is of this class. Returns that optimizer
        and the state that it had."""
        run, models, (first, second) = self.two(False)
        train(models[0], first, 1)
        train(models[1], second, 1)
        saved = first.state_dict()
        train(models[1], second, 1)
        expected = state_of(second)
        file = io.BufferedRandom(file_class(self.folder / "saved", "w+"), 1 << 20)
        with mock.patch("tempfile.TemporaryFile", return_value=file):
            with self.assertRaises((OSError, spillway.ResourceExhausted)) as raised:
                first.load_state_dict(saved)
        return second, expected, raised.exception

    def test_a_full_disk_is_found_before_anything_is_lost(self):
        class Full(io.FileIO):
            def write(self, _):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        second, expected, error = self.loads_beside_another(Full)
        size = sum(second.run.engine.spec(id)["size_bytes"] for id in second.ids)
        self.assertIsInstance(error, spillway.ResourceExhausted)
        self.assertIn(f"{second.run.store} has no room for the {size} bytes", str(error))
        self.assert_same_state(expected, state_of(second))
        second.state_dict()

    def test_saved_state_that_has_become_shorter_is_not_taken(self):
        class Short(io.FileIO):
            def readinto(self, _):
                return 0

        second, _, error = self.loads_beside_another(Short)
        self.assertIsInstance(error, spillway.DataLoss)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "was not loaded whole"):
            second.state_dict()

    # A tile has 1 MiB of fp32 state with the larger budget, and 128 KiB with the smaller.
    BUDGETS = ("16MiB", "2MiB")

    def weights_of(self, params):
        return [Parameter(param.detach().clone()) for param in params]

    def take_steps(self, params, optimizer, first, steps):
        for step in range(first, first + steps):
            generator = torch.Generator(DEVICE).manual_seed(step)
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
            optimizer.step()

    def test_a_commit_is_loaded_whatever_the_budget(self):
        cases = [(st.AdamW, "fp32", torch.float32), (st.AdamW, "8bit", torch.bfloat16), (st.AdamW, "compact", torch.bfloat16),
                 (st.Adafactor, None, torch.float32)]
        for rule, state_format, dtype in cases:
            for budget, other in (self.BUDGETS, reversed(self.BUDGETS)):
                store, words = self.store(), {"state_format": state_format} if state_format else {}
                params = [Parameter(torch.ones(shape, dtype=dtype)) for shape in ((600, 1024), (3, 300, 333), (300,))]
                optimizer = rule(params, lr=0.1, store=store, pinned=budget, **words)
                self.take_steps(params, optimizer, 0, 2)
                saved, weights, expected = optimizer.state_dict(), self.weights_of(params), state_of(optimizer)
                self.take_steps(params, optimizer, 2, 1)
                optimizer.run.close()

                optimizer = rule(weights, lr=0.1, store=store, pinned=other, **words)
                own = optimizer.tile_rows()
                optimizer.load_state_dict(saved)
                self.assertEqual(optimizer.tile_rows(), own, "tiles that fit the budget")
                self.assert_same_state(expected, state_of(optimizer))
                again = optimizer.state_dict()
                self.take_steps(weights, optimizer, 2, 1)
                self.assert_same(params, weights)
                expected = state_of(optimizer)
                optimizer.run.close()

                optimizer = rule(self.weights_of(params), lr=0.1, store=store, pinned=budget, **words)
                optimizer.load_state_dict(again)
                optimizer.load_state_dict(saved)
                optimizer.run.close()

    def test_a_load_after_a_step_that_failed_saves_nothing_if_the_budget_is_the_same(self):
        for dtype in (torch.float32, torch.bfloat16):
            params = [Parameter(torch.ones(600, 1024, dtype=dtype))]
            optimizer = st.AdamW(params, lr=0.1, store=self.store(), pinned="2MiB")
            self.take_steps(params, optimizer, 0, 2)
            saved, weights, expected = optimizer.state_dict(), self.weights_of(params), state_of(optimizer)
            error = spillway.ResourceExhausted("the disk is full")
            with mock.patch.object(optimizer._engine_state, "step", side_effect=error):
                with self.assertRaisesRegex(spillway.ResourceExhausted, "the disk is full"):
                    self.take_steps(params, optimizer, 2, 1)
            with mock.patch("tempfile.TemporaryFile", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
                optimizer.load_state_dict(saved)
            self.assert_same_state(expected, state_of(optimizer))
            other = st.AdamW(weights, lr=0.1)
            other.load_state_dict(optimizer.full_state_dict())
            self.take_steps(params, optimizer, 2, 1)
            self.take_steps(weights, other, 2, 1)
            self.assert_same(params, weights)
            optimizer.run.close()

    def test_other_optimizers_stay_whatever_the_budget(self):
        for budget, other in (self.BUDGETS, reversed(self.BUDGETS)):
            store = self.store()

            def make(budget, weights):
                run = st.open(store, pinned=budget)
                return run, [st.AdamW([weight], lr=0.1, store=run, state_format=state_format)
                             for weight, state_format in zip(weights, ("fp32", "8bit"))]

            weights = [Parameter(torch.ones(600, 1024)), Parameter(torch.ones(600, 1024, dtype=torch.bfloat16))]
            run, optimizers = make(budget, weights)
            for weight, optimizer in zip(weights, optimizers):
                self.take_steps([weight], optimizer, 0, 2)
            saved, expected = [each.state_dict() for each in optimizers], [state_of(each) for each in optimizers]
            run.close()

            weights = self.weights_of(weights)
            run, (first, second) = make(other, weights)
            self.take_steps([weights[1]], second, 5, 1)
            stays = state_of(second)
            with mock.patch.object(run.engine, "restore", side_effect=spillway.Unavailable("the disk is gone")):
                with self.assertRaisesRegex(spillway.Unavailable, "the disk is gone"):
                    first.load_state_dict(saved[0])
            self.assert_same_state(stays, state_of(second))
            first.load_state_dict(saved[0])
            self.assert_same_state(expected[0], state_of(first))
            self.assert_same_state(stays, state_of(second))
            second.load_state_dict(saved[1])
            for optimizer, state in zip((first, second), expected):
                self.assert_same_state(state, state_of(optimizer))
            first.state_dict()
            run.close()

    def test_a_step_that_waited_for_a_commit_is_not_in_it(self):
        store = self.store()
        params = [Parameter(torch.ones(64)) for _ in range(2)]
        run = st.open(store, pinned="8MiB")
        first, second = (st.AdamW([param], lr=0.1, store=run) for param in params)
        self.take_steps(params[:1], first, 0, 1)
        self.take_steps(params[1:], second, 0, 1)
        commit, began = run.engine.commit, threading.Event()

        def slow_commit(user_state):
            began.set()
            thread.join(0.3)  # by then the step waits; it ends after the commit
            commit(user_state)

        def step():
            began.wait()
            self.take_steps(params[1:], second, 1, 1)

        thread = threading.Thread(target=step)
        thread.start()
        with mock.patch.object(run.engine, "commit", slow_commit):
            first.state_dict()
        thread.join()
        saved, expected = second.state_dict(), state_of(second)
        run.close()
        run = st.open(store, pinned="8MiB")
        first, second = (st.AdamW([param], lr=0.1, store=run) for param in self.weights_of(params))
        second.load_state_dict(saved)
        self.assert_same_state(expected, state_of(second))
        run.close()

    def test_a_load_that_failed_fails_again(self):
        store = self.store()
        params = [Parameter(torch.ones(600, 1024, dtype=torch.bfloat16)), Parameter(torch.ones(16, 16, dtype=torch.bfloat16))]
        optimizer = st.AdamW(params, lr=0.1, store=store, pinned="16MiB")
        self.take_steps(params, optimizer, 0, 2)
        saved = optimizer.state_dict()
        optimizer.run.close()
        optimizer = st.AdamW(self.weights_of(params), lr=0.1, store=store, pinned="512KiB")
        for _ in range(3):
            with self.assertRaises(spillway.ResourceExhausted):
                optimizer.load_state_dict(saved)
            with self.assertRaises(spillway.FailedPrecondition):
                optimizer.state_dict()
        optimizer.run.close()

    def test_a_load_of_another_optimizer_keeps_what_was_written_into_a_weight(self):
        after = []
        for other in ("64MiB", "8MiB"):
            store = self.store()

            def make(budget):
                run = st.open(store, pinned=budget)
                model = torch.nn.Linear(1024, 600, bias=False).to(torch.bfloat16)
                with torch.no_grad():
                    model.weight.fill_(1)
                st.offload(model, run)
                param = Parameter(torch.ones(16, 16))
                return run, model, param, st.AdamW([param], lr=0.1, store=run), st.AdamW(model.parameters(), lr=0.1, store=run)

            run, model, param, first, second = make("64MiB")
            self.take_steps([param], first, 0, 1)
            self.take_steps([model.weight], second, 0, 1)
            saved = first.state_dict()
            run.close()
            run, model, param, first, second = make(other)
            self.take_steps([model.weight], second, 0, 1)
            with torch.no_grad():
                model.weight.fill_(5)
            first.load_state_dict(saved)
            self.take_steps([model.weight], second, 1, 1)
            after.append(model.weight.detach().clone())
            run.close()
        self.assertGreater(after[0].min().item(), 4)
        self.assertTrue(torch.equal(*after))

    def test_a_dict_of_a_version_that_did_not_record_tiles_is_loaded_with_its_budget(self):
        store = self.store()
        param = Parameter(torch.ones(600, 1024))
        optimizer = st.AdamW([param], store=store, pinned="2MiB")
        self.take_steps([param], optimizer, 0, 1)
        saved, expected = optimizer.state_dict(), state_of(optimizer)
        del saved["spillway"]["tile_rows"]
        self.take_steps([param], optimizer, 1, 1)
        optimizer.run.close()
        optimizer = st.AdamW([param], store=store, pinned="2MiB")
        optimizer.load_state_dict(saved)
        self.assert_same_state(expected, state_of(optimizer))
        optimizer.state_dict()

    def test_optimizers_may_be_made_in_another_order(self):
        run, models, optimizers = self.two(False)
        for model, optimizer in zip(models, optimizers):
            train(model, optimizer, 1)
        saved, expected = [each.state_dict() for each in optimizers], [state_of(each) for each in optimizers]
        store = run.store
        run.close()
        del optimizers, optimizer
        run = st.open(store, pinned="4MiB")
        second = st.AdamW(models[1].parameters(), lr=1e-2, store=run)
        second.load_state_dict(saved[1])
        first = st.AdamW(models[0].parameters(), lr=1e-2, store=run)
        first.load_state_dict(saved[0])
        self.assert_same_state(expected[0], state_of(first))
        self.assert_same_state(expected[1], state_of(second))

    def test_backward_through_weights_that_a_load_replaced_raises(self):
        run = st.open(self.store(), pinned="4MiB")
        model = st.offload(tiny_model(), run)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        train(model, optimizer, 1)
        saved = optimizer.state_dict()
        train(model, optimizer, 1)
        loss = model(torch.ones(2, 32, requires_grad=True)).square().sum()
        optimizer.load_state_dict(saved)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_steps_go_with_their_parameters(self):
        empty, param = Parameter(torch.ones(0)), Parameter(torch.ones(4))
        optimizer = st.AdamW([empty, param], store=self.store())
        train_params([param], optimizer)
        saved = optimizer.state_dict()
        other = st.AdamW([Parameter(torch.ones(4)), Parameter(torch.ones(0))], store=optimizer.run)
        with self.assertRaisesRegex(spillway.InvalidArgument, "has the shape"):
            other.load_state_dict(saved)

    def test_tensors_that_could_not_all_be_loaded_are_not_committed(self):
        params = [Parameter(torch.ones(10)), Parameter(torch.ones(3, 9000))]
        theirs = torch.optim.SGD(params, lr=0.1, momentum=0.9)
        train_params(params, theirs)
        ours = st.SGD(params, lr=0.1, momentum=0.9, store=self.store(), pinned="16KiB")
        with self.assertRaises(spillway.ResourceExhausted):
            ours.load_state_dict(theirs.state_dict())
        with self.assertRaisesRegex(spillway.FailedPrecondition, "was not loaded whole"):
            ours.state_dict()

    def test_what_backward_or_a_step_has_yet_to_use_is_not_lost(self):
        run = st.open(self.store(), pinned="4MiB")
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run, gradients="engine")
        train(model, optimizer, 1)
        saved = optimizer.state_dict()
        train(model, optimizer, 1)
        model(torch.ones(2, 32)).sum().backward()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "parameter 0.0 has a gradient in the engine"):
            optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        with st.saved_tensors(run):
            loss = (torch.ones(400, 400, requires_grad=True) * 2).square().sum()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "activations of a forward"):
            optimizer.load_state_dict(saved)
        loss.backward()
        del loss
        optimizer.load_state_dict(saved)

    def test_an_activation_that_could_not_be_saved_is_not_waited_for(self):
        run = st.open(self.store(), pinned="4MiB")
        param = Parameter(torch.ones(4))
        optimizer = st.AdamW([param], store=run)
        train_params([param], optimizer)
        saved = optimizer.state_dict()
        train_params([param], optimizer)
        with mock.patch.object(run.engine, "register", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt), st.saved_tensors(run):
                (torch.ones(400, 400, requires_grad=True) * 2).sin()
        optimizer.load_state_dict(saved)
        run.close()

    def test_an_edited_weight_is_taken_after_a_load(self):
        for offloaded in (False, True):
            for reopens in (False, True):
                store = self.store()
                run = st.open(store, pinned="4MiB")

                def make(run):
                    model = Linear(64, 64, bias=False).bfloat16()
                    if offloaded:
                        st.offload(model, run)
                    return model, st.AdamW(model.parameters(), lr=1e-4, store=run)

                model, optimizer = make(run)
                train_one(model, optimizer)
                model.load_state_dict({"weight": torch.full((64, 64), 2.0).bfloat16()})
                saved = optimizer.state_dict()
                if reopens:
                    run.close()
                    run = st.open(store, pinned="4MiB")
                    model, optimizer = make(run)
                optimizer.load_state_dict(saved)
                if not offloaded:
                    model.load_state_dict({"weight": torch.full((64, 64), 2.0).bfloat16()})
                train_one(model, optimizer)
                self.assertAlmostEqual(model.weight.float().mean().item(), 2.0, delta=0.02, msg=(offloaded, reopens))
                run.close()

    def test_weights_that_operations_on_lists_write_are_taken(self):
        twos = [torch.full((8, 8), 2.0).bfloat16()]
        for write in (lambda weights: torch._foreach_copy_(weights, twos),
                      lambda weights: (torch._foreach_zero_(weights), torch._foreach_add_(weights, twos)),
                      lambda weights: (torch._foreach_mul_(weights, 0.0), torch._foreach_add_(weights, twos)),
                      lambda weights: torch._foreach_lerp_(weights, twos, 1.0)):
            run = st.open(None)
            model = st.offload(Linear(8, 8, bias=False).bfloat16(), run)
            optimizer = st.AdamW(model.parameters(), lr=1e-4, store=run)
            train_one(model, optimizer)
            with torch.no_grad():
                write([model.weight])
            train_one(model, optimizer)
            self.assertAlmostEqual(model.weight.float().mean().item(), 2.0, delta=0.02)

    def test_a_load_that_is_refused_changes_nothing(self):
        for store in (self.store(), None):
            run = st.open(store, pinned="4MiB" if store else None)
            first, second = Parameter(torch.ones(10)), Parameter(torch.ones(20))
            one, other = st.AdamW([first], store=run), st.AdamW([second], store=run)
            for param, optimizer in ((first, one), (second, other)):
                param.grad = torch.ones_like(param)
                optimizer.step()
            saved = other.state_dict()
            del other, optimizer
            gc.collect()
            expected = state_of(one)
            with self.assertRaisesRegex(spillway.Error, "has the shape|memory alone"):
                one.load_state_dict(saved)
            for wrong, why in (({}, "has no state"), ({"state": {}}, "has no param_groups"), ({"state": {}, "param_groups": [{"params": [0]}]}, "groups have no lr")):
                with self.assertRaisesRegex(spillway.InvalidArgument, why):
                    one.load_state_dict(wrong)
            self.assert_same_state(expected, state_of(one))

    def test_a_state_of_another_optimizer_of_memory_is_not_made_up(self):
        run = st.open(None)
        params = [Parameter(torch.ones(10)) for _ in range(2)]
        one, other = (st.AdamW([param], store=run) for param in params)
        for param, optimizer in zip(params, (one, other)):
            param.grad = torch.ones_like(param)
            optimizer.step()
        saved, expected = other.state_dict(), state_of(one)
        del other, optimizer
        gc.collect()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "memory alone"):
            one.load_state_dict(saved)
        self.assert_same_state(expected, state_of(one))

    def test_a_state_dict_of_no_step_begins_anew_in_any_process(self):
        store = self.store()
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store)
        saved, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
        expected = train(model, optimizer, 2)
        optimizer.load_state_dict(saved)
        model.load_state_dict(weights)
        self.assertEqual(train(model, optimizer, 2), expected)
        optimizer.run.close()
        model.load_state_dict(weights)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store)
        optimizer.load_state_dict(saved)
        self.assertEqual(train(model, optimizer, 2), expected)

    def test_a_default_device_changes_nothing(self):
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, 1)
        expected = state_of(optimizer)
        torch.set_default_device("meta")
        try:
            full = optimizer.full_state_dict()
            optimizer.load_state_dict(full)
        finally:
            torch.set_default_device(DEVICE)
        self.assert_same_state(expected, full["state"])
        self.assert_same_state(expected, state_of(optimizer))

    def test_a_step_that_fp32_does_not_have_is_kept(self):
        optimizer = st.AdamW([Parameter(torch.ones(4))], lr=0.1)
        train_params(optimizer.param_groups[0]["params"], optimizer)
        full = optimizer.full_state_dict()
        self.assertEqual(full["state"][0]["step"].dtype, torch.float32)
        full["state"][0]["step"] = torch.tensor(2**24 + 1, dtype=torch.float64)
        optimizer.load_state_dict(full)
        self.assertEqual(int(optimizer.full_state_dict()["state"][0]["step"]), 2**24 + 1)

    def test_nothing_of_the_given_dict_is_shared(self):
        param = Parameter(torch.ones(4))
        optimizer = st.AdamW([param], lr=torch.tensor(0.1))
        saved = torch.optim.AdamW([param], lr=torch.tensor(0.1)).state_dict()
        optimizer.load_state_dict(saved)
        saved["param_groups"][0]["lr"].fill_(9.0)
        self.assertAlmostEqual(float(optimizer.param_groups[0]["lr"]), 0.1, places=6)


def train_one(model, optimizer):
    train_params(model.parameters(), optimizer)


if __name__ == "__main__":
    unittest.main()
