# SPDX-License-Identifier: Apache-2.0
"""Tests state dicts that name a commit (saved, loaded, and kept as long as they are needed) and torch.optim's own."""

import contextlib
import gc
import io
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest
from unittest import mock

import spillway
import spillway.torch as st
import torch
from torch_case import DEVICE, TorchTest, make_params, set_gradients, since, tiny_model, train

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import seed  # noqa: E402


class StateDictTest(TorchTest):
    def test_an_optimizer_of_torch_does_not_take_a_state_dict_of_ours_for_one_without_state(self):
        params = make_params()
        run = st.open(self.store(), pinned="1MiB", report=False)
        self.addCleanup(run.close)
        optimizer = st.AdamW(params[:3], lr=1e-3, store=run)
        optimizer.add_param_group({"params": params[3:]})
        params[0].requires_grad_(False)
        set_gradients(params[1:], 0)
        optimizer.step()
        torch.save(optimizer.state_dict(), self.folder / "optimizer.pt")
        for saved in (torch.load(self.folder / "optimizer.pt", weights_only=True), st.last_state_dict(run)):
            self.assertEqual(list(saved["state"]), [1, 2, 3, 4, 5])
            torchs = torch.optim.AdamW([{"params": params[:3]}, {"params": params[3:]}])
            with self.assertRaisesRegex(KeyError, "step"):
                torchs.load_state_dict(saved)
            self.assertIn("load the dict into an optimizer of spillway.torch", str(saved["state"][1]))
            with self.assertRaisesRegex(spillway.InvalidArgument, "has lost its entry 'spillway'"):
                optimizer.load_state_dict({name: saved[name] for name in ("state", "param_groups")})
            optimizer.load_state_dict(saved)
            self.assertEqual(list(optimizer.full_state_dict()["state"]), [1, 2, 3, 4, 5])
        self.assertEqual(st.AdamW(make_params(), store=st.open(None, report=False)).state_dict()["state"], {})

    def saved(self, optimizer):
        """Returns the state dict, saved to a file and loaded by torch.load with weights_only."""
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
        optimizer.load_state_dict(self.saved(optimizer))  # before the first step, a state dict needs no snapshot
        self.assertEqual(optimizer.run.engine.snapshots(), [])
        for step in range(3):
            train(model, optimizer, 1, first=step)
            first = self.saved(optimizer) if step == 0 else first
            self.saved(optimizer)
        self.assertEqual(len(optimizer.run.engine.snapshots()), 2)
        with self.assertRaisesRegex(spillway.NotFound, "does not have the snapshot"):
            optimizer.load_state_dict(first)

    def test_the_checkpoint_that_was_loaded_stays_until_the_process_ends(self):
        store = self.store()

        def start():
            model = tiny_model()
            return model, st.AdamW(model.parameters(), lr=1e-2, store=store, pinned="1MiB")

        model, optimizer = start()
        train(model, optimizer, 1)
        on_disk = self.saved(optimizer)
        for _ in range(2):  # runs that end before they have saved another checkpoint
            optimizer.run.close()
            model, optimizer = start()
            optimizer.load_state_dict(on_disk)
            for step in range(1, 6):
                train(model, optimizer, 1, first=step)
                optimizer.state_dict()  # not saved
            labels = [each["label"] for each in optimizer.run.engine.snapshots()]
            self.assertEqual(len(labels), 3)
            self.assertEqual(labels[0], on_disk["spillway"]["label"])
        optimizer.load_state_dict(on_disk)
        newer = self.saved(optimizer)
        self.assertEqual(newer["spillway"]["label"], on_disk["spillway"]["label"], "nothing has changed since")
        for step in range(1, 3):
            train(model, optimizer, 1, first=step)
            newer = self.saved(optimizer)
        optimizer.load_state_dict(newer)
        for step in range(3, 6):
            train(model, optimizer, 1, first=step)
            optimizer.state_dict()
        with self.assertRaisesRegex(spillway.NotFound, r"Checkpoints\(run, FOLDER\) keeps"):
            optimizer.load_state_dict(on_disk)

    def test_a_run_that_begins_anew_keeps_the_commits_of_the_earlier_one(self):
        store = self.store()
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store, pinned="1MiB")
        train(model, optimizer, 1)
        earlier, weights = self.saved(optimizer), {name: value.clone() for name, value in model.state_dict().items()}
        expected = train(model, optimizer, 2, first=1)
        optimizer.run.close()

        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store, pinned="1MiB")
        own = []
        for step in range(4):
            train(model, optimizer, 1, first=step)
            own.append(self.saved(optimizer))
        optimizer.load_state_dict(own[-1])  # which says nothing of the earlier run's
        labels = [each["label"] for each in optimizer.run.engine.snapshots()]
        self.assertEqual(labels, [each["spillway"]["label"] for each in (earlier, *own[-2:])])
        optimizer.run.close()
        model.load_state_dict(weights)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store, pinned="1MiB")
        optimizer.load_state_dict(earlier)
        self.assertEqual(train(model, optimizer, 2, first=1), expected)

    def test_the_last_commit_gives_its_state_dict_without_a_file(self):
        store = self.store()

        def make():
            run = st.open(store, pinned="1MiB", report=False)
            models = [tiny_model(torch.bfloat16), tiny_model(torch.bfloat16)]
            return run, models, [st.AdamW(st.offload(model, run, prefix=f"{number}.").parameters(), lr=torch.tensor(0.5), store=run)
                                 for number, model in enumerate(models)]

        run, models, optimizers = make()
        with self.assertRaisesRegex(spillway.NotFound, "no state dict of an optimizer 'optimizer': it has none"):
            st.last_state_dict(run)
        for model, optimizer in zip(models, optimizers):
            train(model, optimizer, 2)
        saved = [optimizer.state_dict() for optimizer in optimizers]
        run.close()
        run, models, optimizers = make()
        last = [st.last_state_dict(run, name) for name in ("optimizer", "optimizer.1")]
        self.assertEqual(last, [json.loads(json.dumps(each, default=float)) | {"state": each["state"]} for each in saved])
        for optimizer, state_dict in zip(optimizers, last):
            optimizer.load_state_dict(state_dict)
        expected = train(models[1], optimizers[1], 1, first=2)
        with mock.patch.object(run.engine, "snapshot", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            optimizers[1].state_dict()
        expected += train(models[1], optimizers[1], 1, first=3)
        run.close()
        run, models, optimizers = make()
        optimizers[1].load_state_dict(st.last_state_dict(run, "optimizer.1"))
        self.assertEqual(train(models[1], optimizers[1], 1, first=3), expected[1:])
        optimizers[0].param_groups[0]["what"] = object()
        optimizers[1].state_dict()
        with self.assertRaisesRegex(spillway.NotFound, "it has none"):
            st.last_state_dict(run)
        run.close()

    def test_each_snapshot_that_is_dropped_is_named(self):
        model = tiny_model()
        run = st.open(self.store(), pinned="1MiB", report=False)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        said = io.StringIO()
        labels = []
        with contextlib.redirect_stderr(said):
            for step in range(4):
                train(model, optimizer, 1, first=step)
                labels.append(optimizer.state_dict()["spillway"]["label"])
        self.assertEqual(re.findall("dropped snapshot (.*):", said.getvalue()), labels[:2])
        self.assertEqual(said.getvalue().count("\n"), 2)

    def test_an_optimizer_begins_anew_unless_a_state_dict_is_loaded(self):
        for dtype in (torch.float32, torch.bfloat16):
            store = self.store()
            expected = tiny_model(dtype)
            losses = train(expected, st.AdamW(expected.parameters(), lr=1e-2), 3)
            run = st.open(store, pinned="1MiB")
            for _ in range(2):  # the second time, the run has the state of an optimizer that is gone
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
        # An optimizer takes the state that its dict names, even if optimizers are made in another order.
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
        model.load_state_dict(weights)  # after the optimizer's state was loaded
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
        for name, value, what in (
                ("step", torch.tensor(math.nan), "step of .*0.1 is nan"), ("step", -1, "step of .* is -1"),
                ("step", torch.ones(2), "a number of at least 0"), ("step", "3", "a number of at least 0"),
                ("exp_avg", [1.0], "exp_avg of .*0.1 is a list"), ("exp_avg", None, "has no exp_avg"),
                ("exp_avg", torch.ones(300).to_sparse(), "exp_avg of .*0.1 .* no address")):
            bad = {index: dict(state, exp_avg=state["exp_avg"] + 1) for index, state in before.items()}
            bad[1][name] = value
            with self.subTest(name=name, value=value), self.assertRaisesRegex(spillway.InvalidArgument, what):
                optimizer.load_state_dict({"state": bad, "param_groups": wrong["param_groups"]})
        for state in (None, []):
            with self.assertRaisesRegex(spillway.InvalidArgument, "should be a dict"):
                optimizer.load_state_dict({"state": state, "param_groups": wrong["param_groups"]})
        after = optimizer.full_state_dict()["state"]
        for index in before:
            for name, value in before[index].items():
                self.assertTrue(torch.equal(value, after[index][name]))

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

    def test_a_copy_of_the_store_that_was_trained_on_has_other_commits(self):
        store = self.store()

        def go_on(store, saved):
            model = tiny_model()
            optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store, pinned="1MiB")
            if saved is not None:
                optimizer.load_state_dict(saved)
            train(model, optimizer, 1)
            saved = self.saved(optimizer)
            optimizer.run.close()
            return saved

        first = go_on(store, None)
        shutil.copytree(store, f"{store}.copy")
        second, other = go_on(store, first), go_on(f"{store}.copy", first)
        self.assertEqual(second["spillway"]["commit"], other["spillway"]["commit"])
        for store, saved in ((f"{store}.copy", second), (store, other)):
            with self.assertRaisesRegex(spillway.NotFound, "another copy of the store, or before the store was put back"):
                go_on(store, saved)
            go_on(store, first)

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
                self.assertTrue(torch.equal(out[index][name].cpu(), value.cpu()), name)
        theirs.load_state_dict(ours.full_state_dict())
        for step in range(3, 6):
            for params, optimizer in ((theirs_params, theirs), (ours_params, ours)):
                set_gradients(params, step)
                optimizer.step()
        for mine, its in zip(ours_params, theirs_params):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)

    def test_the_ids_in_the_groups_say_whose_state_it_is(self):
        shapes = [(8, 8), (8, 8), (8, 8)]
        params = make_params(shapes=shapes)
        theirs = torch.optim.AdamW([{"params": params[:1]}, {"params": params[1:]}])
        set_gradients(params, 1)
        theirs.step()
        state, groups = theirs.state_dict()["state"], theirs.state_dict()["param_groups"]
        for ids in (["a", "b", "c"], [2, 0, 1], [30, 10, 20]):
            of = dict(zip(ids, (state[0], state[1], state[2])))
            given = {"state": {id: of[id] for id in reversed(ids)},
                     "param_groups": [{**groups[0], "params": ids[:1]}, {**groups[1], "params": ids[1:]}]}
            ours = st.AdamW([{"params": params[:1]}, {"params": params[1:]}])
            ours.load_state_dict(given)
            for index, of in ours.full_state_dict()["state"].items():
                for name, value in of.items():
                    self.assertTrue(torch.equal(value.cpu(), state[index][name].cpu()), (ids, name))
        expected = ours.full_state_dict()["state"]
        for wrong, why in (({**given["state"], "d": state[0]}, "state of the parameter 'd', and none of its groups has that id"),
                           ({0: state[0]}, "state of the parameter 0, and none.*their 3 ids begin with 30, 10, 20")):
            with self.assertRaisesRegex(spillway.InvalidArgument, why):
                ours.load_state_dict({**given, "state": wrong})
        with self.assertRaisesRegex(spillway.InvalidArgument, "two parameters of the id 1"):
            ours.load_state_dict({"state": {}, "param_groups": [{**groups[0], "params": [1]}, {**groups[1], "params": [1, 2]}]})
        for index, of in ours.full_state_dict()["state"].items():
            for name, value in of.items():
                self.assertTrue(torch.equal(value, expected[index][name]))

    def test_torchs_dicts_of_other_rules_go_in_and_come_out(self):
        for theirs_class, ours_class, words in ((torch.optim.SGD, st.SGD, {"lr": 1e-2, "momentum": 0.9}),
                                                (torch.optim.SGD, st.SGD, {"lr": 1e-2}),
                                                (torch.optim.RMSprop, st.RMSprop, {"momentum": 0.5}),
                                                (torch.optim.Adam, st.Adam, {}), (torch.optim.AdamW, st.AdamW, {})):
            self.exchange(theirs_class, ours_class, words)

    @since(2, 5, "Adafactor")
    def test_torchs_dicts_of_adafactor_go_in_and_come_out(self):
        self.exchange(torch.optim.Adafactor, st.Adafactor, {})

    def exchange(self, theirs_class, ours_class, words):
        theirs_params, ours_params = make_params(), make_params()
        theirs, ours = theirs_class(theirs_params, **words), ours_class(ours_params, **words)
        for step in range(3):
            set_gradients(theirs_params, step)
            theirs.step()
        with torch.no_grad():
            for mine, its in zip(ours_params, theirs_params):
                mine.copy_(its)
        ours.load_state_dict(theirs.state_dict())
        out = ours.full_state_dict()["state"]
        for index, of in theirs.state_dict()["state"].items():
            for name, value in of.items():
                if value is not None and name != "step":
                    self.assertTrue(torch.equal(out[index][name].cpu(), value.cpu()), name)
        theirs.load_state_dict(ours.full_state_dict())
        for params, optimizer in ((theirs_params, theirs), (ours_params, ours)):
            set_gradients(params, 3)
            optimizer.step()
        for mine, its in zip(ours_params, theirs_params):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)
        # A dict of an optimizer that has loaded none goes into one of torch.optim.
        ours_params = make_params()
        ours = ours_class(ours_params, **words)
        set_gradients(ours_params, 0)
        ours.step()
        theirs_params = [torch.nn.Parameter(param.detach().clone()) for param in ours_params]
        theirs = theirs_class(theirs_params, **words)
        theirs.load_state_dict(ours.full_state_dict())
        for params, optimizer in ((theirs_params, theirs), (ours_params, ours)):
            set_gradients(params, 1)
            optimizer.step()
        for mine, its in zip(ours_params, theirs_params):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)

    def test_a_full_dict_of_any_format_goes_on(self):
        """Gives the bits of the uninterrupted run, except in formats whose codes share scales and are rounded once more."""
        cases = [(st.AdamW, state_format) for state_format in ("fp32", "bf16", "8bit", "compact")] + [(st.Adafactor, None)]
        for dtype in (torch.float32, torch.bfloat16):
            for rule, state_format in cases:
                if dtype == torch.float32 and state_format == "compact":
                    continue
                words = {"lr": 1e-2, **({"state_format": state_format} if state_format else {})}
                model = tiny_model(dtype)
                optimizer = rule(model.parameters(), store=self.store(), pinned="1MiB", **words)
                train(model, optimizer, 3)
                weights = {name: value.clone() for name, value in model.state_dict().items()}
                file = io.BytesIO()
                torch.save(optimizer.full_state_dict(), file)
                expected = train(model, optimizer, 3, first=3)
                optimizer.run.close()

                file.seek(0)
                again = tiny_model(dtype)
                again.load_state_dict(weights)
                optimizer = rule(again.parameters(), **words)
                optimizer.load_state_dict(torch.load(file, weights_only=True))
                losses = train(again, optimizer, 3, first=3)
                if state_format in ("8bit", "compact"):
                    for mine, other in zip(losses, expected):
                        self.assertAlmostEqual(mine, other, delta=0.01 * other)
                else:
                    self.assertEqual(losses, expected, (dtype, state_format))
                    self.assert_same(model.parameters(), again.parameters())

    CHILD = """
import sys, torch, spillway.torch as st
sys.path.insert(0, {tests!r})
from optimizers_test import tiny_model, train
torch.set_default_device({device!r})
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
        code = self.CHILD.format(tests=str(here), store=store, file=file, device=str(DEVICE))
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


if __name__ == "__main__":
    unittest.main()
