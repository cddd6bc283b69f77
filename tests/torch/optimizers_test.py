# SPDX-License-Identifier: Apache-2.0
"""spillway.torch's optimizers beside torch.optim's: given the same gradients they do the same, wherever state rests."""

import contextlib
import gc
import io
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import spillway
import spillway.torch as st
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import seed  # noqa: E402

SHAPES = [(7, 300), (300,), (64, 33), (1,), (), (3, 5, 7)]


def make_params(dtype=torch.float32, seed_=1, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed_)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def set_gradients(params, step, scale=1.0):
    generator = torch.Generator().manual_seed(1000 + step)
    for param in params:
        param.grad = (torch.randn(param.shape, generator=generator) * scale).to(param.dtype)


def tiny_model(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(32, 200), torch.nn.LayerNorm(200), torch.nn.Tanh(),
                               torch.nn.Linear(200, 16)).to(dtype)


def train(model, optimizer, steps, first=0, clip=None, scaler=None, accumulate=1):
    """Losses of steps whose batches follow from their numbers."""
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            generator = torch.Generator().manual_seed(100 * step + part)
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
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spillway-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.stores = 0

    def store(self):
        self.stores += 1
        return str(self.folder / f"store{self.stores}")

    def assert_same(self, first, second):
        for a, b in zip(first, second):
            self.assertTrue(torch.equal(a.detach(), b.detach()))


class InDoublePrecision(torch.optim.Optimizer):
    """A rule that torch.optim has not, as its paper has it: `update(p, g, state, t)` gives the next p, in float64."""

    def __init__(self, params, update):
        super().__init__(params, {})
        self.update = update

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            if not state:
                zeros = torch.zeros(param.shape, dtype=torch.float64)
                state.update(t=0, p=param.double(), m=zeros, v=zeros.clone())
            state["t"] += 1
            state["p"] = self.update(state["p"], param.grad.double(), state, state["t"])
            param.copy_(state["p"])


def lion(p, g, state, _, lr=1e-3, decay=0.1):
    direction = torch.sign(0.9 * state["m"] + 0.1 * g)
    state["m"] = 0.99 * state["m"] + 0.01 * g
    return p * (1 - lr * decay) - lr * direction


def lamb(p, g, state, t, lr=1e-2, decay=0.1):
    state["m"] = 0.9 * state["m"] + 0.1 * g
    state["v"] = 0.999 * state["v"] + 0.001 * g * g
    u = state["m"] / (1 - 0.9 ** t) / ((state["v"] / (1 - 0.999 ** t)).sqrt() + 1e-6) + decay * p
    return p - lr * (p.norm() / u.norm() if p.dim() > 1 else 1.0) * u


def by_dimensions(params):
    """LARS takes its whole rate where there is no factor of norms, so vectors have one of their own."""
    return [{"params": [p for p in params if p.dim() > 1], "lr": 1.0}, {"params": [p for p in params if p.dim() < 2], "lr": 1e-2}]


def lars(p, g, state, _, lr=1.0, decay=0.1):
    rate = lr * (0.02 * p.norm() / (g.norm() + decay * p.norm()) if p.dim() > 1 else 1e-2)
    state["m"] = 0.9 * state["m"] + rate * (g + decay * p)
    return p - state["m"]


class RulesTest(TorchTest):
    RULES = {
        "adamw": (lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
                  lambda params, **more: st.AdamW(params, lr=1e-2, weight_decay=0.1, **more)),
        "adam": (lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=0.1),
                 lambda params, **more: st.Adam(params, lr=1e-2, weight_decay=0.1, **more)),
        "sgd": (lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, weight_decay=0.1),
                lambda params, **more: st.SGD(params, lr=1e-2, momentum=0.9, weight_decay=0.1, **more)),
        "rmsprop": (lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.5),
                    lambda params, **more: st.RMSprop(params, lr=1e-3, momentum=0.5, **more)),
        "adafactor": (lambda params: torch.optim.Adafactor(params, lr=1e-2),
                      lambda params, **more: st.Adafactor(params, lr=1e-2, **more)),
        "lion": (lambda params: InDoublePrecision(params, lion),
                 lambda params, **more: st.Lion(params, lr=1e-3, weight_decay=0.1, **more)),
        "lamb": (lambda params: InDoublePrecision(params, lamb),
                 lambda params, **more: st.LAMB(params, lr=1e-2, weight_decay=0.1, **more)),
        "lars": (lambda params: InDoublePrecision(params, lars),
                 lambda params, **more: st.LARS(by_dimensions(params), weight_decay=0.1, trust_coefficient=0.02, **more)),
    }

    def test_each_is_torchs_or_its_papers(self):
        shapes = [shape for shape in SHAPES if shape]  # torch's Adafactor wants a dimension
        for rule, (theirs, ours) in self.RULES.items():
            with self.subTest(rule):
                a, b = make_params(shapes=shapes), make_params(shapes=shapes)
                one, other = theirs(a), ours(b, store=self.store(), pinned="1MiB")
                for step in range(20):
                    set_gradients(a, step)
                    set_gradients(b, step)
                    one.step()
                    other.step()
                for mine, its in zip(b, a):
                    torch.testing.assert_close(mine, its, rtol=2e-5, atol=2e-6)

    def test_adamw_is_as_near_to_double_precision_as_torchs(self):
        steps = 200
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            with self.subTest(dtype):
                exact = [param.detach().double() for param in make_params(dtype)]
                m = [torch.zeros_like(p) for p in exact]
                v = [torch.zeros_like(p) for p in exact]
                params = make_params(dtype)
                ours = st.AdamW(params, lr=1e-3, weight_decay=0.1)
                # torch's own in fp32, on fp32 masters of the same gradients
                masters = [torch.nn.Parameter(param.detach().float()) for param in make_params(dtype)]
                theirs = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.1, foreach=True)
                for step in range(1, steps + 1):
                    set_gradients(params, step, 0.1)
                    for i, param in enumerate(params):
                        masters[i].grad = param.grad.float()
                        g = param.grad.double()
                        exact[i] *= 1 - 1e-3 * 0.1
                        m[i].mul_(0.9).add_(g, alpha=0.1)
                        v[i].mul_(0.999).addcmul_(g, g, value=0.001)
                        denominator = (v[i] / (1 - 0.999**step)).sqrt() + 1e-8
                        exact[i] -= 1e-3 / (1 - 0.9**step) * m[i] / denominator
                    ours.step()
                    theirs.step()
                mine = [ours._engine_state.masters(ours._known[param].number) for param in params]

                def error(values):
                    return math.sqrt(sum(((a.double() - b) ** 2).sum().item() for a, b in zip(values, exact)))

                self.assertLessEqual(error(mine), 1.1 * error([param.detach() for param in masters]))

    def test_a_tight_budget_gives_the_same_bits_as_memory(self):
        for state_format in ("fp32", "bf16", "8bit", "compact"):
            for dtype in (torch.float32, torch.bfloat16):
                if state_format == "compact" and dtype == torch.float32:
                    continue
                with self.subTest(state_format, dtype=dtype):
                    results = []
                    for store, pinned in ((None, None), (self.store(), "256KiB")):
                        model = tiny_model(dtype)
                        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store, pinned=pinned,
                                             state_format=state_format)
                        losses = train(model, optimizer, 10, clip=0.5, accumulate=2)
                        results.append((losses, [param.detach().clone() for param in model.parameters()]))
                    self.assertEqual(results[0][0], results[1][0])
                    self.assert_same(results[0][1], results[1][1])


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
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
            train(model, optimizer, 5, clip=0.5, scaler=scaler)
            before = [param.detach().clone() for param in model.parameters()]
            # An overflow: nothing is updated, and the scale falls.
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
        for dtype in (torch.float32, torch.bfloat16):
            params = make_params(dtype)
            optimizer = st.AdamW(params, lr=0.0, weight_decay=0.0, store=self.store(), pinned="1MiB")
            set_gradients(params, 1)
            optimizer.step()
            with torch.no_grad():
                for param in params:
                    param.fill_(2.0)
            set_gradients(params, 2)
            optimizer.step()
            for param in params:
                self.assertTrue(torch.equal(param, torch.full_like(param, 2.0)))

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
        optimizer.load_state_dict(saved)  # nothing has changed: as accelerate does at its start
        set_gradients(params, 1)
        optimizer.step()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "run without a store.*full_state_dict"):
            optimizer.load_state_dict(saved)
        with self.assertWarnsRegex(UserWarning, "in memory alone"):
            optimizer.state_dict()
        with self.assertRaisesRegex(spillway.Unimplemented, "use state_dict"):
            import copy
            copy.deepcopy(optimizer)
        run = st.open(self.store(), pinned="1MiB")
        with self.assertRaisesRegex(spillway.InvalidArgument, "pinned is the run's"):
            st.AdamW(make_params(), store=run, pinned="2MiB")
        layer = torch.nn.Embedding(10, 4, sparse=True)
        optimizer = st.AdamW(layer.parameters())
        layer(torch.tensor([1, 2])).sum().backward()
        with self.assertRaisesRegex(spillway.InvalidArgument, "gradient of parameter 0.0 is sparse"):
            optimizer.step()
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

    def test_words_that_would_be_ignored_are_refused(self):
        with self.assertRaisesRegex(spillway.InvalidArgument, "maximize=True: SGD"):
            st.SGD([{"params": make_params(), "maximize": True}])
        theirs = torch.optim.Adam(make_params(), amsgrad=True)
        with self.assertRaisesRegex(spillway.InvalidArgument, "amsgrad=True: Adam"):
            st.Adam(make_params()).load_state_dict(theirs.state_dict())
        params = make_params()
        optimizer = st.SGD(params[:1])
        with self.assertRaisesRegex(spillway.InvalidArgument, "make two optimizers"):
            optimizer.add_param_group({"params": params[1:], "momentum": 0.9})
        self.assertEqual(len(optimizer.param_groups), 1)
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


class StateDictTest(TorchTest):
    def saved(self, optimizer):
        """As a file that torch.load takes without running code."""
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        self.assertLess(file.tell(), 100_000)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def test_a_run_resumes_at_the_uninterrupted_runs_bits(self):
        for dtype in (torch.float32, torch.bfloat16):
            store = self.store()
            model = tiny_model(dtype)
            optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store, pinned="256KiB")
            train(model, optimizer, 4)
            weights = {name: value.clone() for name, value in model.state_dict().items()}
            saved = self.saved(optimizer)
            expected = train(model, optimizer, 4, first=4)
            optimizer.run.close()
            del optimizer

            again = tiny_model(dtype)
            again.load_state_dict(weights)
            optimizer = st.AdamW(again.parameters(), lr=5.0, store=store, pinned="256KiB")
            optimizer.load_state_dict(saved)
            self.assertEqual(optimizer.param_groups[0]["lr"], 1e-2)
            self.assertEqual(train(again, optimizer, 4, first=4), expected)
            self.assert_same(model.parameters(), again.parameters())

    def test_the_newest_two_stay(self):
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=self.store(), pinned="1MiB")
        optimizer.load_state_dict(self.saved(optimizer))  # before the first step: nothing is kept for it
        self.assertEqual(optimizer.run.engine.snapshots(), [])
        for step in range(3):
            train(model, optimizer, 1, first=step)
            first = self.saved(optimizer) if step == 0 else first
            self.saved(optimizer)
        self.assertEqual(len(optimizer.run.engine.snapshots()), 2)
        with self.assertRaisesRegex(spillway.NotFound, "has no snapshot .* any more"):
            optimizer.load_state_dict(first)

    def test_an_optimizer_begins_anew_unless_a_state_dict_is_loaded(self):
        for dtype in (torch.float32, torch.bfloat16):
            store = self.store()
            expected = tiny_model(dtype)
            losses = train(expected, st.AdamW(expected.parameters(), lr=1e-2), 3)
            run = st.open(store, pinned="1MiB")
            for _ in range(2):  # with the state of an optimizer that is gone, and then with a stored one, at hand
                model = tiny_model(dtype)
                optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
                self.assertEqual(train(model, optimizer, 3), losses)
                optimizer.state_dict()
                del optimizer
            run.close()
            run = st.open(store, pinned="1MiB")
            model = tiny_model(dtype)
            self.assertEqual(train(model, st.AdamW(model.parameters(), lr=1e-2, store=run), 3), losses)
            run.close()

    def test_two_optimizers_of_a_run_have_states_of_their_own(self):
        store = self.store()

        def make():
            run = st.open(store, pinned="1MiB")
            models = [tiny_model(), tiny_model()]
            return run, models, [st.AdamW(model.parameters(), lr=rate, store=run) for model, rate in zip(models, (1e-2, 1e-3))]

        run, models, optimizers = make()
        expected = []
        for rate in (1e-2, 1e-3):
            alone = tiny_model()
            expected.append(train(alone, st.AdamW(alone.parameters(), lr=rate), 5))
        first = [train(model, optimizer, 3) for model, optimizer in zip(models, optimizers)]
        self.assertEqual(first, [losses[:3] for losses in expected])
        saved = [optimizer.state_dict() for optimizer in optimizers]
        self.assertEqual(saved[0]["spillway"]["label"], saved[1]["spillway"]["label"])
        weights = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
        with self.assertRaisesRegex(spillway.FailedPrecondition, "is another optimizer's"):
            optimizers[0].load_state_dict(saved[1])
        run.close()
        del run, models, optimizers

        run, models, optimizers = make()
        for model, weight in zip(models, weights):
            model.load_state_dict(weight)
        for optimizer, state in zip(optimizers, saved):
            optimizer.load_state_dict(state)
        again = [train(model, optimizer, 2, first=3) for model, optimizer in zip(models, optimizers)]
        self.assertEqual(again, [losses[3:] for losses in expected])
        # Made in the other order, each takes the state that its dict names.
        del optimizers, optimizer
        gc.collect()
        second = st.AdamW(models[1].parameters(), lr=1e-3, store=run)
        models[1].load_state_dict(weights[1])
        second.load_state_dict(saved[1])
        self.assertEqual(train(models[1], second, 2, first=3), expected[1][3:])
        run.close()

    def test_loading_the_same_weights_again_keeps_the_master_weights(self):
        store = self.store()
        model = tiny_model(torch.bfloat16)
        optimizer = st.AdamW(model.parameters(), lr=1e-3, store=store, pinned="1MiB")
        train(model, optimizer, 3)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        saved = self.saved(optimizer)
        expected = train(model, optimizer, 3, first=3)
        optimizer.load_state_dict(saved)
        model.load_state_dict(weights)  # after the optimizer's
        self.assertEqual(train(model, optimizer, 3, first=3), expected)

    def test_a_refused_state_dict_changes_nothing(self):
        params = make_params()
        optimizer = st.AdamW(params, store=self.store(), pinned="1MiB")
        set_gradients(params, 1)
        optimizer.step()
        before = optimizer.full_state_dict()["state"]
        wrong = optimizer.state_dict()
        wrong["spillway"] = {**wrong["spillway"], "name": "optimizer.7", "label": "torch-99"}
        with self.assertRaises(spillway.NotFound):
            optimizer.load_state_dict(wrong)
        short = {"state": {0: {"step": 1, "exp_avg": torch.ones(7, 300)}}, "param_groups": wrong["param_groups"]}
        with self.assertRaisesRegex(spillway.InvalidArgument, "has no exp_avg_sq"):
            optimizer.load_state_dict(short)
        after = optimizer.full_state_dict()["state"]
        for index in before:
            for name, value in before[index].items():
                self.assertTrue(torch.equal(value, after[index][name]))

    def test_snapshots_live_as_long_as_a_file_names_them(self):
        run = st.open(self.store(), pinned="1MiB")
        folder = self.folder / "checkpoints"
        (folder / "deep/er").mkdir(parents=True)
        checkpoints = st.Checkpoints(run, folder)
        (folder / "gone.pt").symlink_to("nowhere")
        (folder / "odd.bin").write_bytes(bytes(range(256)))
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        for step in range(8):
            train(model, optimizer, 1, first=step)
            whole = {"model": {"big": torch.zeros(1 << 19)}, "optimizer": optimizer.state_dict()}
            torch.save(whole, folder / "latest.pt")
            if step == 2:
                torch.save(whole, folder / "deep/er/best.ckpt")
        checkpoints.drop_gone()
        self.assertLessEqual(len(checkpoints.labels()), 4)
        optimizer.load_state_dict(torch.load(folder / "deep/er/best.ckpt", weights_only=True)["optimizer"])
        (folder / "deep/er/best.ckpt").unlink()
        optimizer.load_state_dict(torch.load(folder / "latest.pt", weights_only=True)["optimizer"])
        run.close()

    def test_another_store_is_told(self):
        params = make_params()
        optimizer = st.AdamW(params, store=self.store(), pinned="1MiB")
        set_gradients(params, 1)
        optimizer.step()
        saved = self.saved(optimizer)
        for other in (st.AdamW(make_params(), store=self.store(), pinned="1MiB"), st.AdamW(make_params())):
            with self.assertRaisesRegex(spillway.FailedPrecondition, "a copied checkpoint does not carry the state"):
                other.load_state_dict(saved)
        shorter = st.AdamW(make_params()[:2], store=self.store(), pinned="1MiB")
        with self.assertRaisesRegex(spillway.InvalidArgument, r"groups of \[6\] parameters, and the optimizer of \[2\]"):
            shorter.load_state_dict(saved)

    def test_torchs_dict_goes_in_and_comes_out_bit_for_bit(self):
        theirs_params, ours_params = make_params(), make_params()
        theirs = torch.optim.AdamW(theirs_params, lr=1e-2)
        for step in range(3):
            set_gradients(theirs_params, step)
            theirs.step()
        ours = st.AdamW(ours_params, lr=1e-2, store=self.store(), pinned="1MiB")
        with torch.no_grad():
            for mine, its in zip(ours_params, theirs_params):
                mine.copy_(its)
        ours.load_state_dict(theirs.state_dict())
        out = ours.full_state_dict()["state"]
        for index, of in theirs.state_dict()["state"].items():
            for name, value in of.items():
                self.assertTrue(torch.equal(out[index][name], value), name)
        theirs.load_state_dict(ours.full_state_dict())
        for step in range(3, 6):
            for params, optimizer in ((theirs_params, theirs), (ours_params, ours)):
                set_gradients(params, step)
                optimizer.step()
        for mine, its in zip(ours_params, theirs_params):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)

    CHILD = """
import sys, torch, spillway.torch as st
sys.path.insert(0, {tests!r})
from optimizers_test import tiny_model, train
model = tiny_model()
optimizer = st.AdamW(model.parameters(), lr=1e-2, store={store!r}, pinned="256KiB")
step = 0
while True:
    torch.save((model.state_dict(), optimizer.state_dict(), step), {file!r} + ".new")
    import os; os.replace({file!r} + ".new", {file!r})
    print(step, flush=True)
    train(model, optimizer, 1, first=step)
    step += 1
"""

    def test_a_killed_run_resumes_at_its_last_checkpoint(self):
        import random
        chance = random.Random(seed.draw_seed())
        store, file = self.store(), str(self.folder / "checkpoint.pt")
        here = pathlib.Path(__file__).parent
        code = self.CHILD.format(tests=str(here), store=store, file=file)
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ)
        for _ in range(chance.randrange(2, 8)):
            self.assertTrue(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        weights, saved, step = torch.load(file, weights_only=True)
        model = tiny_model()
        model.load_state_dict(weights)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store, pinned="256KiB")
        optimizer.load_state_dict(saved)
        resumed = train(model, optimizer, 3, first=step)
        whole = tiny_model()
        expected = train(whole, st.AdamW(whole.parameters(), lr=1e-2), step + 3)
        self.assertEqual(resumed, expected[step:])
        self.assert_same(model.parameters(), whole.parameters())


class ReportTest(TorchTest):
    """What a run prints at its first step and at its end."""

    SIZE = 1 << 20  # of a parameter's 4 MiB: 8 MiB of moments

    def printed(self, steps, after=None, **words):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            run = st.open(self.folder / "run", pinned="4MiB", **words)
            params = [torch.nn.Parameter(torch.zeros(self.SIZE))]
            optimizer = st.AdamW(params, store=run)
            for step in range(steps):
                params[0].grad = torch.ones(self.SIZE)
                optimizer.step()
                self.assertEqual(err.getvalue().count("\n"), int(words.get("report", True)), "one line, at the first step")
            run.close()
            run.close()
        return err.getvalue().splitlines()

    def test_both_lines_say_what_is_saved_and_the_last_what_a_step_takes(self):
        first, last = self.printed(5)
        self.assertIn(f"8.0 MiB rest in {self.folder / 'run'}, at most 4.0 MiB of them in memory: at least 4.0 MiB saved", first)
        found = re.search(r"5 steps; [\d.e-]+ s, ([\d.]+) MB read and ([\d.]+) MB written a step; 8.0 MiB rested in the store "
                          r"and ([\d.]+) MiB of memory: ([\d.]+) MiB saved$", last)
        self.assertTrue(found, last)
        read, written, memory, saved = map(float, found.groups())
        # What stays in memory between steps is not moved; what the first step left to do is done in the other four.
        for moved in (read, written):
            self.assertLessEqual(moved, (8 + 4 / 4) * 1.048576 + 0.01)
            self.assertGreaterEqual(moved, (4 - 4 / 4) * 1.048576 - 0.01)
        self.assertLessEqual(memory, 4.0)
        self.assertAlmostEqual(saved, 8.0 - memory, delta=0.11)

    def test_of_one_step_no_rate_is_known_and_of_none_nothing_is_said(self):
        self.assertNotIn("a step", self.printed(1)[1])
        self.assertEqual(self.printed(0), [])

    def test_it_can_be_left_out(self):
        self.assertEqual(self.printed(2, report=False), [])

    def test_a_program_that_closes_nothing_prints_its_end(self):
        script = ("import torch, spillway.torch as st\n"
                  "p = torch.nn.Parameter(torch.ones(1000))\n"
                  f"o = st.SGD([p], momentum=0.9, store={str(self.folder / 'left')!r})\n"
                  "for _ in range(3):\n    p.grad = torch.ones(1000)\n    o.step()\n")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        self.assertIn("spillway.torch: 3 steps; ", done.stderr)

    def test_an_optimizer_that_is_gone_before_its_run_is_counted(self):
        script = ("import torch, spillway.torch as st\n"
                  "def main():\n"
                  "    p = torch.nn.Parameter(torch.ones(1 << 20))\n"
                  f"    o = st.AdamW([p], store={str(self.folder / 'local')!r}, pinned='4MiB')\n"
                  "    for _ in range(3):\n        p.grad = torch.ones(1 << 20)\n        o.step()\n"
                  "main()\n")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        self.assertIn("8.0 MiB rested in the store", done.stderr)

    def test_nobody_has_to_read_it(self):
        closed = io.StringIO()
        closed.close()
        with contextlib.redirect_stderr(closed):
            with st.open(self.folder / "unread") as run:
                params = make_params()
                set_gradients(params, 0)
                st.AdamW(params, store=run).step()

    def test_without_a_store_nothing_is_claimed(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), st.open() as run:
            params = make_params()
            optimizer = st.AdamW(params, store=run)
            for step in range(2):
                set_gradients(params, step)
                optimizer.step()
        self.assertIn("none is saved", err.getvalue())
        self.assertNotIn("saved\n", err.getvalue().replace("none is saved", ""))


if __name__ == "__main__":
    unittest.main()
