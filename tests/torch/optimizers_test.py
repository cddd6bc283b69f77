# SPDX-License-Identifier: Apache-2.0
"""Tests what every optimizer of spillway.torch does as a torch.optim.Optimizer, wherever its state is stored."""

import collections
import contextlib
import gc
import os
import signal
import subprocess
import sys
import unittest
import warnings
import weakref
from unittest import mock

import spillway
import spillway.torch as st
import torch
from torch_case import DEVICE, TorchTest, make_params, set_gradients, since, tiny_model, train


class Wrapper(torch.Tensor):
    """A tensor that holds another one, as a DTensor does, and has no memory of its own."""

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        out = func(*[each.held if isinstance(each, Wrapper) else each for each in args], **(kwargs or {}))
        return Wrapper(out) if isinstance(out, torch.Tensor) else out


class OptimizerTest(TorchTest):
    def test_groups_and_schedulers_are_followed(self):
        results = []
        for ours in (False, True):
            params = make_params()
            groups = [{"params": params[:2], "lr": 1e-1}, {"params": params[2:], "weight_decay": 0.0}]
            make = (lambda: st.AdamW(groups, lr=1e-2, store=self.store(), pinned="1MiB")) if ours else (
                lambda: torch.optim.AdamW(groups, lr=1e-2))
            optimizer = make()
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
            for step in range(6):
                set_gradients(params, step)
                optimizer.step()
                schedule.step()
            results.append(params)
        for mine, its in zip(*results):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)

    def test_frozen_absent_and_late_parameters(self):
        params = make_params()
        params[0].requires_grad_(False)
        before = [param.detach().clone() for param in params]
        optimizer = st.AdamW(params[:3], lr=1e-2, store=self.store(), pinned="1MiB")
        set_gradients(params, 1)
        params[0].grad = params[1].grad = None
        optimizer.step()
        self.assert_same(params[:2], before[:2])
        self.assertFalse(torch.equal(params[2], before[2]))
        optimizer.add_param_group({"params": params[3:], "lr": 1e-3})
        set_gradients(params, 2)
        optimizer.step()
        self.assertFalse(torch.equal(params[5], before[5]))
        with self.assertRaisesRegex(ValueError, "some parameters appear in more than one"):
            optimizer.add_param_group({"params": [params[2]]})

    def in_pieces(self, size_bytes):
        """Makes updates treat weights and gradients as if they were on a GPU, with pieces of `size_bytes`."""
        patches = contextlib.ExitStack()
        patches.enter_context(mock.patch("spillway.torch._staging.PIECE_BYTES", size_bytes))
        for module in ("_staging", "_optimizer"):
            patches.enter_context(mock.patch(f"spillway.torch.{module}.is_apart", lambda _: True))
        return patches

    def test_in_pieces_the_bits_are_the_same(self):
        for dtype in (torch.float32, torch.bfloat16):
            for update in ("step", "backward"):
                whole, pieces = tiny_model(dtype), tiny_model(dtype)
                train(whole, st.AdamW(whole.parameters(), lr=1e-2, update=update), 4)
                with self.in_pieces(10_000):
                    train(pieces, st.AdamW(pieces.parameters(), lr=1e-2, update=update), 4)
                self.assert_same(whole.parameters(), pieces.parameters())

    def test_updates_in_backward_are_over_when_backward_is(self):
        model = tiny_model()
        before = [param.detach().clone() for param in model.parameters()]
        with self.in_pieces(1 << 30):
            optimizer = st.AdamW(model.parameters(), lr=1e-2, update="backward")
            model(torch.ones(8, 32)).square().mean().backward()
            for param, old in zip(model.parameters(), before):
                self.assertFalse(torch.equal(param, old))
            optimizer.step()

    def test_a_backward_that_fails_does_not_end_training(self):
        class Fail(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise ValueError("no")

        results = []
        for in_pieces in (False, True):
            model = tiny_model()
            with self.in_pieces(1 << 30) if in_pieces else contextlib.nullcontext():
                optimizer = st.AdamW(model.parameters(), lr=1e-2, update="backward")
                train(model, optimizer, 1)
                first, *others = model
                with self.assertRaisesRegex(ValueError, "no"):  # the layers after Fail are updated before it raises
                    torch.nn.Sequential(*others)(Fail.apply(first(torch.ones(8, 32)))).square().mean().backward()
                optimizer.zero_grad()
                train(model, optimizer, 2, first=1)
            results.append([param.detach().clone() for param in model.parameters()])
        self.assert_same(*results)

    def most_alive(self, params):
        """Takes a step, and returns the largest number of weights' copies that there were at a time."""
        optimizer = st.AdamW(params, lr=1e-2)
        alive, most = [], 0
        step = optimizer._engine_state.step

        def count(piece):
            nonlocal most
            alive.extend(weakref.ref(update["weight"].untyped_storage()) for update in piece)
            most = max(most, len({id(each()) for each in alive if each() is not None}))
            step(piece)

        with mock.patch.object(optimizer._engine_state, "step", count):
            optimizer.step()
        self.assertEqual(len(alive), len(params))
        return most

    def test_memory_of_pieces_is_given_back(self):
        params = [torch.nn.Parameter(torch.ones(1000)) for _ in range(10)]
        for param in params:
            param.grad = torch.ones(1000)
        with self.in_pieces(8192):
            self.assertLessEqual(self.most_alive(params), 2)

    def test_copies_of_weights_that_are_not_contiguous_are_given_back(self):
        images = [torch.randn(8, 4, 3, 3) for _ in range(10)]
        results = []
        for memory_format in (torch.contiguous_format, torch.channels_last):
            params = [torch.nn.Parameter(image.to(memory_format=memory_format, copy=True)) for image in images]
            for param, image in zip(params, images):
                param.grad = (2 * image).to(memory_format=memory_format)
            with mock.patch("spillway.torch._staging.PIECE_BYTES", 2 * images[0].nbytes):
                most = self.most_alive(params)
            results.append(params)
        self.assertLessEqual(most, 2)
        self.assert_same(*results)

    def test_an_error_between_two_pieces_is_remembered(self):
        params = make_params()
        with self.in_pieces(1):
            optimizer = st.AdamW(params, lr=1e-2)
            set_gradients(params, 1)
            step, pieces = optimizer._engine_state.step, []

            def fail_at_the_third(piece):
                pieces.append(piece)
                if len(pieces) == 3:
                    raise spillway.InvalidArgument("no")
                step(piece)

            before = [param.detach().clone() for param in params]
            with mock.patch.object(optimizer._engine_state, "step", fail_at_the_third):
                with self.assertRaisesRegex(spillway.InvalidArgument, "no"):
                    optimizer.step()
            changed = [not torch.equal(param, old) for param, old in zip(params, before)]
            self.assertEqual(changed, [True, True] + [False] * (len(params) - 2))
            with self.assertRaisesRegex(spillway.FailedPrecondition, "an update failed"):
                optimizer.step()

    def test_closures_and_hooks_run(self):
        params = make_params()
        optimizer = st.AdamW(params, lr=1e-2)
        seen = []
        optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
        optimizer.register_step_post_hook(lambda *_: seen.append("post"))

        def closure():
            optimizer.zero_grad()
            loss = sum(param.square().sum() for param in params)
            loss.backward()
            seen.append("closure")
            return loss

        loss = optimizer.step(closure)
        self.assertGreater(loss.item(), 0)
        self.assertEqual(seen, ["pre", "closure", "post"])
        self.assertIsInstance(optimizer, torch.optim.Optimizer)

    def test_grad_scaler_scales_and_skips(self):
        results = []
        for ours in (False, True):
            model = tiny_model()
            optimizer = (st.AdamW(model.parameters(), lr=1e-2, store=self.store(), pinned="1MiB") if ours
                         else torch.optim.AdamW(model.parameters(), lr=1e-2))
            scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, growth_interval=3)
            train(model, optimizer, 5, clip=0.5, scaler=scaler)
            before = [param.detach().clone() for param in model.parameters()]
            # In an overflow nothing is updated, and the scale falls.
            optimizer.zero_grad()
            scaler.scale(model(torch.full((2, 32), 1e30)).square().mean() * 1e30).backward()
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            self.assert_same(model.parameters(), before)
            self.assertLess(scaler.get_scale(), scale)
            train(model, optimizer, 3, first=9, scaler=scaler)
            results.append([param.detach() for param in model.parameters()])
        for mine, its in zip(*results):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-6)

    def test_grad_scaler_itself_skips_an_overflow_unless_gradients_are_fp16(self):
        for dtype, is_ours in ((torch.float32, False), (torch.float16, True)):
            params, steps = make_params(dtype), []
            frozen = torch.nn.Parameter(torch.ones(4, dtype=torch.float16), requires_grad=False)
            optimizer = st.SGD([*params, frozen], lr=1.0)
            optimizer.register_step_post_hook(lambda *_: steps.append(1))
            self.assertEqual(optimizer._step_supports_amp_scaling, is_ours)
            scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0)
            scaler.scale(torch.ones(()))  # makes the scale
            before = [param.detach().clone() for param in params]
            for scaled in (2.0, float("inf")):
                for param in params:
                    param.grad = torch.full_like(param, scaled)
                scaler.step(optimizer)
                scaler.update()
                self.assertTrue(all(torch.equal(param, old - 1) for param, old in zip(params, before)))
            self.assertEqual(len(steps), 2 if is_ours else 1, "accelerate and Trainer count the calls of step()")

    def test_a_step_that_raises_leaves_nothing_of_grad_scaler(self):
        params = make_params(torch.float16)
        optimizer = st.SGD(params, lr=1.0)
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0)
        scaler.scale(torch.ones(()))
        set_gradients(params, 1)
        with mock.patch.object(optimizer._engine_state, "step", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                scaler.step(optimizer)
        self.assertFalse(hasattr(optimizer, "grad_scale") or hasattr(optimizer, "found_inf"))

    def test_gradients_and_weights_may_lie_anywhere(self):
        a, b = make_params(shapes=[(40, 30)]), make_params(shapes=[(40, 30)])
        b[0].data = b[0].data.t().contiguous().t()  # the same values, column by column
        one, other = st.AdamW(a, lr=1e-2), st.AdamW(b, lr=1e-2)
        for step in range(4):
            set_gradients(a, step)
            b[0].grad = a[0].grad.t().contiguous().t()
            one.step()
            other.step()
        self.assert_same(a, b)
        self.assertEqual(b[0].stride(), (1, 40))

    def test_autograd_notices_that_weights_have_changed(self):
        param = torch.nn.Parameter(torch.ones(300))
        optimizer = st.AdamW([param], lr=1e-2)
        loss = (param * param).sum()
        param.grad = torch.ones(300)
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_a_weight_changed_behind_its_back_is_taken(self):
        def fill(param):
            with torch.no_grad():
                param.fill_(2.0)

        def replace(param):
            param.data = torch.full_like(param.data, 2.0)

        for dtype in (torch.float32, torch.bfloat16):
            for change in (fill, replace, lambda param: param.data.fill_(2.0)):
                for rule in (st.AdamW, st.LAMB, st.Adafactor):
                    params = make_params(dtype)
                    optimizer = rule(params, lr=0.0, weight_decay=0.0, store=self.store(), pinned="1MiB")
                    set_gradients(params, 1)
                    optimizer.step()
                    for param in params:
                        change(param)
                    set_gradients(params, 2)
                    optimizer.step()
                    for param in params:
                        self.assertTrue(torch.equal(param, torch.full_like(param, 2.0)))

    def test_a_part_of_a_weight_that_is_changed_is_taken_and_the_rest_stays(self):
        params, untouched = make_params(torch.bfloat16), make_params(torch.bfloat16)
        optimizers = [st.AdamW(each, lr=1e-4) for each in (params, untouched)]
        for step in range(6):
            for each, optimizer in zip((params, untouched), optimizers):
                set_gradients(each, step)
                optimizer.step()
            if step == 2:
                params[0].data[3] = 0.5
        self.assertFalse(torch.equal(params[0][3], untouched[0][3]))
        for row in (0, 1, 2, 4, 5, 6):
            self.assertTrue(torch.equal(params[0][row], untouched[0][row]))
        self.assert_same(params[1:], untouched[1:])

    def test_what_cannot_be_is_named(self):
        with self.assertRaisesRegex(spillway.InvalidArgument, "parameter 0.0 is torch.float64"):
            st.AdamW([torch.nn.Parameter(torch.ones(3, dtype=torch.float64))])
        with self.assertRaisesRegex(spillway.InvalidArgument, "state_format is 'int4'.*fp32, bf16, 8bit, compact"):
            st.AdamW(make_params(), state_format="int4")
        with self.assertRaisesRegex(spillway.InvalidArgument, "gradients is 'disk'.*torch, engine"):
            st.AdamW(make_params(), gradients="disk")
        params = make_params()
        optimizer = st.AdamW(params)
        saved = optimizer.state_dict()
        optimizer.load_state_dict(saved)  # before any step, as accelerate does when it starts
        set_gradients(params, 1)
        optimizer.step()
        with self.assertWarnsRegex(UserWarning, "in memory alone"):
            saved = optimizer.state_dict()
        set_gradients(params, 2)
        optimizer.step()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "run without a store.*full_state_dict"):
            optimizer.load_state_dict(saved)
        with self.assertRaisesRegex(spillway.Unimplemented, "use state_dict"):
            import copy
            copy.deepcopy(optimizer)
        run = st.open(self.store(), pinned="1MiB")
        with self.assertRaisesRegex(spillway.InvalidArgument, "pinned is the run's"):
            st.AdamW(make_params(), store=run, pinned="2MiB")
        for gradients in ("torch", "engine"):
            layer = torch.nn.Embedding(10, 4, sparse=True)
            optimizer = st.AdamW(layer.parameters(), gradients=gradients)
            with self.assertRaisesRegex(spillway.InvalidArgument, "gradient of parameter 0.0 is sparse"):
                layer(torch.tensor([1, 2])).sum().backward()
                optimizer.step()
        for words in ({"lr": -1.0}, {"lr": float("nan")}, {"weight_decay": -1.0}):
            with self.assertRaisesRegex(ValueError, "(lr|weight_decay) is (-1.0|nan): it must be at least 0"):
                st.AdamW(make_params(), **words)
        param = torch.nn.Parameter(torch.ones(4))
        optimizer = st.AdamW([param])
        param.data = param.data.to(torch.bfloat16)
        param.grad = torch.ones(4, dtype=torch.bfloat16)
        with self.assertRaisesRegex(spillway.InvalidArgument, "torch.bfloat16 now, and was .* torch.float32"):
            optimizer.step()


    def test_a_parameter_of_another_shape_is_refused(self):
        memory = torch.zeros(64)
        param = torch.nn.Parameter(torch.ones(64))
        optimizer = st.SGD([param], lr=1.0)
        param.data = memory[:8]
        param.grad = torch.ones(8)
        with self.assertRaisesRegex(spillway.InvalidArgument, r"is \(8,\), torch.float32 now, and was \(64,\)"):
            optimizer.step()
        self.assertEqual(memory.abs().sum().item(), 0)

    def test_tensors_without_an_address_are_refused(self):
        def freed(tensor):
            tensor.untyped_storage().resize_(0)
            return tensor

        for dtype in (torch.float32, torch.bfloat16):
            ones = torch.ones(64, dtype=dtype)
            with self.assertRaisesRegex(spillway.InvalidArgument, "parameter 0.0 is a Wrapper.* no address"):
                st.AdamW([torch.nn.Parameter(Wrapper(ones))])
            param = torch.nn.Parameter(ones.clone())
            optimizer = st.AdamW([param], lr=0.1)
            param.grad = torch.ones(64, dtype=dtype)
            optimizer.step()
            after, expected = param.detach().clone(), optimizer.full_state_dict()
            for gradient in (Wrapper(ones), freed(ones.clone()), freed(torch.ones(80, dtype=dtype)[16:])):
                param.grad = gradient
                with self.assertRaisesRegex(spillway.InvalidArgument, "the gradient of parameter 0.0 is a .* no address"):
                    optimizer.step()
                self.assertTrue(torch.equal(param, after))
            param.grad = torch.ones(64, dtype=dtype)
            param.data = freed(ones.clone())
            with self.assertRaisesRegex(spillway.InvalidArgument, "parameter 0.0 is a Parameter.* no address"):
                optimizer.step()
            param.data = after
            wrong = optimizer.full_state_dict()
            wrong["state"][0]["exp_avg"] = Wrapper(torch.ones(64))
            with self.assertRaisesRegex(spillway.InvalidArgument, "exp_avg of parameter 0.0 is a Wrapper.* no address"):
                optimizer.load_state_dict(wrong)
            optimizer.load_state_dict(expected)
            optimizer.step()

    def test_code_that_looks_for_state_in_memory_is_told(self):
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
        for update in ("step", "backward"):
            model = tiny_model()
            optimizer = st.AdamW(model.parameters(), lr=1e-2, update=update)
            for steps in (0, 2):
                train(model, optimizer, steps)
                optimizer.zero_grad()
                before, weights = optimizer.full_state_dict(), [param.detach().clone() for param in model.parameters()]
                for call in (lambda: get_optimizer_state_dict(model, optimizer),
                             lambda: set_optimizer_state_dict(model, optimizer, optim_state_dict=before)):
                    with self.assertRaisesRegex(spillway.Unimplemented, "rests in the engine.*full_state_dict"):
                        call()
                after = optimizer.full_state_dict()
                self.assertEqual(before["param_groups"], after["param_groups"])
                self.assertEqual(before["state"].keys(), after["state"].keys())
                for index, of in before["state"].items():
                    for name, value in of.items():
                        self.assertTrue(torch.equal(value, after["state"][index][name]))
                self.assert_same(weights, model.parameters())
                self.assertTrue(all(param.grad is None for param in model.parameters()))
        with self.assertRaisesRegex(spillway.Unimplemented, "full_state_dict"):
            optimizer.state[next(model.parameters())]
        self.assertEqual(list(optimizer.state.items()), [])

    def test_code_that_would_drop_state_is_told_how(self):
        def assign(optimizer):
            optimizer.state = collections.defaultdict(dict)

        def set_item(optimizer):
            optimizer.state[params[0]] = {}

        for store in (None, self.store()):
            params = make_params()
            optimizer = st.AdamW(params, lr=1e-2, store=store)
            set_gradients(params, 1)
            optimizer.step()
            expected = optimizer.full_state_dict()["state"]
            for change in (lambda optimizer: optimizer.state.clear(), lambda optimizer: optimizer.state.pop(params[0], None),
                           lambda optimizer: optimizer.state.update({params[0]: {}}),
                           lambda optimizer: optimizer.state.setdefault(params[0], {}), assign, set_item):
                with self.assertRaisesRegex(spillway.Unimplemented, r"load_state_dict\({'state': {}, 'param_groups': "):
                    change(optimizer)
            for index, of in optimizer.full_state_dict()["state"].items():
                for name, value in of.items():
                    self.assertTrue(torch.equal(value, expected[index][name]))
            optimizer.load_state_dict({"state": {}, "param_groups": optimizer.state_dict()["param_groups"]})
            self.assertEqual(optimizer.full_state_dict()["state"], {})
            fresh = [torch.nn.Parameter(param.detach().clone()) for param in params]
            other = st.AdamW(fresh, lr=1e-2)
            for each, of in ((params, optimizer), (fresh, other)):
                set_gradients(each, 2)
                of.step()
            self.assert_same(params, fresh)
            optimizer.run.close()

    def test_words_that_would_be_ignored_are_refused(self):
        with self.assertRaisesRegex(spillway.InvalidArgument, "nesterov=True: RMSprop"):
            st.RMSprop([{"params": make_params(), "nesterov": True}])
        theirs = torch.optim.Adam(make_params(), amsgrad=True)
        with self.assertRaisesRegex(spillway.InvalidArgument, "amsgrad=True: LAMB"):
            st.LAMB(make_params()).load_state_dict(theirs.state_dict())
        for words, is_refused in (({"weight_decay": 0.1}, True), ({"weight_decay": 0}, False)):
            saved = torch.optim.Adam(make_params(), **words).state_dict()
            saved["param_groups"][0]["decoupled_weight_decay"] = False  # which PyTorch records since 2.7
            with contextlib.ExitStack() as stack:
                if is_refused:
                    stack.enter_context(self.assertRaisesRegex(spillway.InvalidArgument, "Use spillway.torch.Adam"))
                st.AdamW(make_params()).load_state_dict(saved)
            st.Adam(make_params()).load_state_dict(saved)
        params = make_params()
        optimizer = st.SGD(params[:1])
        with self.assertRaisesRegex(spillway.InvalidArgument, "momentum=0.9: AdamW of spillway.torch has no momentum"):
            st.AdamW([{"params": params, "momentum": 0.9}])
        with self.assertRaisesRegex(spillway.InvalidArgument, "amsgrad=True: SGD of spillway.torch has no amsgrad"):
            optimizer.add_param_group({"params": params[1:], "amsgrad": True})
        self.assertEqual(len(optimizer.param_groups), 1)

    def test_a_parameter_twice_in_a_group_is_refused(self):
        params = make_params()
        optimizer = st.SGD(params[:1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with self.assertRaisesRegex(spillway.InvalidArgument, "parameter 1.2 is in the group already, as 1.0"):
                optimizer.add_param_group({"params": [params[1], params[2], params[1]]})
        optimizer.add_param_group({"params": params[1:]})

    def test_groups_are_removed_and_added(self):
        results = []
        for make in (torch.optim.SGD, lambda *args, **words: st.SGD(*args, store=self.store(), **words)):
            params = make_params()
            optimizer = make(params[:2], lr=0.1, momentum=0.9)
            for step, group in enumerate((params[2:4], params[1:3], params[4:])):
                set_gradients(params, step)
                optimizer.step()
                optimizer.param_groups.clear() if step == 0 else optimizer.param_groups.pop()
                optimizer.add_param_group({"params": group})
            set_gradients(params, 3)
            optimizer.step()
            results.append(params)
        self.assertEqual(list(optimizer.tile_rows()), [f"optimizer/{name}" for name in ("0.0", "0.1", "1.0", "1.1", "2.0", "2.1")])
        for mine, its in zip(*results):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)

    def test_a_parameter_of_a_removed_group_is_not_updated(self):
        results = []
        for make in (torch.optim.AdamW, lambda *args, **words: st.AdamW(*args, update="backward", **words)):
            params = make_params(shapes=[(8,), (9,)])
            optimizer = make([{"params": [param]} for param in params], lr=0.1)
            removed = []
            for step in range(4):
                sum(param.square().sum() for param in params).backward()
                optimizer.step()
                for param in params:
                    param.grad = None
                if step == 0:
                    removed.append(optimizer.param_groups.pop())
                elif step == 2:
                    optimizer.add_param_group({"params": removed[0]["params"]})
            results.append(params)
        for mine, its in zip(*results):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)

    def test_a_state_dict_is_loaded_after_groups_were_removed(self):
        for more in ({}, {"gradients": "engine"}, {"update": "backward"}):
            store, params = self.store(), make_params()
            optimizer = st.AdamW(params[:2], lr=0.1, store=store, **more)

            def step(params):
                sum(param.square().sum() for param in params).backward()
                optimizer.step()
                optimizer.zero_grad()

            step(params[:2])
            saved, weights = optimizer.state_dict(), [param.detach().clone() for param in params]
            step(params[:2])
            optimizer.run.close()
            again = [torch.nn.Parameter(weight.clone()) for weight in weights]
            optimizer = st.AdamW(again[2:4], lr=0.1, store=store, **more)  # under the names that the dict has
            optimizer.param_groups.clear()
            optimizer.add_param_group({"params": again[:2]})
            optimizer.load_state_dict(saved)
            step(again[:2])
            self.assert_same(params[:2], again[:2])
            optimizer.add_param_group({"params": again[2:4]})
            step(again[:4])
            self.assertFalse(torch.equal(again[2], weights[2]))
            optimizer.run.close()

    def test_a_store_that_another_optimizer_has_says_how_it_is_closed(self):
        store, params = self.store(), make_params()
        optimizer = st.AdamW(params, store=store)
        with self.assertRaisesRegex(spillway.FailedPrecondition, r"must be deleted, with its schedulers.*optimizer.run.close\(\)"):
            st.AdamW(params, store=store)
        optimizer.run.close()
        st.AdamW(params, store=store).run.close()

    @since(2, 6, "optimizers that take names")
    def test_two_parameters_of_one_name_are_refused(self):
        params = make_params()
        with self.assertRaisesRegex(spillway.InvalidArgument, "two parameters are called w"):
            st.SGD([{"params": [("w", params[0])]}, {"params": [("w", params[1])]}])

    def test_an_optimizer_that_is_gone_leaves_nothing_behind(self):
        run = st.open(self.store(), pinned="1MiB")
        for more in ({"gradients": "engine"}, {"update": "backward"}):
            model, plain = tiny_model(), tiny_model()
            first = st.AdamW(model.parameters(), lr=1.0, store=run, **more)
            with self.assertRaisesRegex(spillway.FailedPrecondition, "has a hook already"):
                st.AdamW(model.parameters(), store=run, **more)
            train(tiny_model(), st.AdamW(tiny_model().parameters()), 1)
            del first
            gc.collect()
            self.assertFalse(any(param._post_accumulate_grad_hooks for param in model.parameters()))
            losses = train(model, st.AdamW(model.parameters(), lr=1e-2, store=run, **more), 3)
            self.assertEqual(losses, train(plain, st.AdamW(plain.parameters(), lr=1e-2), 3))
            model.zero_grad()
        gc.collect()
        with self.assertRaises(spillway.NotFound):
            run.engine.find("optimizer/0.0/exp_avg")
        run.close()

    def test_a_gradient_of_an_optimizer_that_is_gone_stays_apart_from_the_next_ones(self):
        results = []
        for make in (lambda params: torch.optim.SGD(params, lr=0.1),
                     lambda params: st.AdamW(params, lr=0.1, store=run, gradients="engine")):
            run = st.open(self.store(), pinned="1MiB")
            self.addCleanup(run.close)
            param = torch.nn.Parameter(torch.ones(8))
            for is_dropped in (True, False):
                optimizer = make([param])
                (param * 3).sum().backward()
                del optimizer
                gc.collect()
                optimizer = make([param])
                if is_dropped:
                    optimizer.zero_grad()
                (param * 2).sum().backward()
                results.append(param.grad.clone())
                optimizer.step()
                optimizer.zero_grad()
                del optimizer
                gc.collect()
        self.assert_same(results[:2], results[2:])

    def test_ctrl_c_in_a_step_ends_a_process_without_a_handler(self):
        code = """
import os, signal, torch, spillway.torch as st
signal.signal(signal.SIGINT, signal.SIG_DFL)
param = torch.nn.Parameter(torch.ones(4))
optimizer = st.AdamW([param])
param.grad = torch.ones(4)
inner = optimizer._engine_state.step
def interrupted(updates):
    inner(updates)
    os.kill(os.getpid(), signal.SIGINT)
    print("the update is complete", flush=True)
optimizer._engine_state.step = interrupted
optimizer.step()
print("the program went on", flush=True)
"""
        ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
        self.assertEqual((ended.returncode, ended.stdout), (-signal.SIGINT, "the update is complete\n"), ended.stderr)

    def test_ctrl_c_in_a_step_comes_after_it(self):
        params = make_params()
        optimizer = st.AdamW(params)
        set_gradients(params, 1)
        inner = optimizer._engine_state.step

        def interrupted(updates):
            inner(updates)
            os.kill(os.getpid(), signal.SIGINT)

        optimizer._engine_state.step = interrupted
        with self.assertRaises(KeyboardInterrupt):
            optimizer.step()
        self.assertEqual(optimizer._known[params[0]].step, 1)
        self.assertEqual(optimizer.run.report.steps, 1, "the step has ended, too")

    def test_ctrl_c_in_backward_leaves_no_gradient_that_was_used(self):
        for in_pieces in (False, True):
            with self.in_pieces(1) if in_pieces else contextlib.nullcontext():
                params = make_params(shapes=[(8,), (9,)])
                optimizer = st.AdamW(params, update="backward")
                inner = optimizer._engine_state.step

                def interrupted(updates):
                    inner(updates)
                    signal.raise_signal(signal.SIGINT)

                with mock.patch.object(optimizer._engine_state, "step", interrupted), self.assertRaises(KeyboardInterrupt):
                    sum(param.sum() for param in params).backward()
                for param in params:
                    if optimizer._known[param].step > 0:
                        with self.assertRaisesRegex(spillway.FailedPrecondition, "was used by its update in backward"):
                            param.grad.clone()
                self.assertTrue(any(known.step > 0 for known in optimizer._known.values()))


if __name__ == "__main__":
    unittest.main()
