# SPDX-License-Identifier: Apache-2.0
"""accelerate with weights in the engine: its checkpoints name a commit, and a run that goes on from one computes the bits of
the uninterrupted run."""

import contextlib
import gc
import io
import json
import pathlib
import shutil
import subprocess
import sys
import unittest
from unittest import mock

import spillway
import spillway.torch as st
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from hf_case import HfTest, loss_of, tiny_llama
from peft import LoraConfig, get_peft_model
from torch_case import DEVICE
from transformers import LlamaForCausalLM


class Loop:
    """A program that trains with accelerate. Its weights are in the engine of a run, or in memory (None)."""

    def __init__(self, run, lora=False, optimizer=None, accumulate=1, model=None, **more):
        self.accelerator = Accelerator(cpu=DEVICE.type == "cpu", gradient_accumulation_steps=accumulate, **more)
        model = tiny_llama() if model is None else model
        if run is not None:
            st.offload(model, run)
        if lora:
            torch.manual_seed(5)
            model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
        trained = [param for param in model.parameters() if param.requires_grad]
        if optimizer is None:
            def optimizer(params):
                return st.AdamW(params, lr=1e-2, store=run)
        made = optimizer(trained)
        schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + step))
        self.model, self.optimizer, self.schedule = self.accelerator.prepare(model, made, schedule)

    def train(self, first, last):
        losses = []
        for step in range(first, last):
            with self.accelerator.accumulate(self.model):
                loss = loss_of(self.model, step)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def weights(self):
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}


def continued(folder, store):
    """Continues in a process of its own from the checkpoint of test_another_process_goes_on."""
    run = st.open(store, pinned="1MiB", device=DEVICE, report=False)
    loop = Loop(run, model=tiny_llama(seed=99))
    loop.accelerator.load_state(folder)
    losses = loop.train(3, 6)
    torch.save((losses, loop.weights()), pathlib.Path(folder) / "result.pt")


class AccelerateTest(HfTest):
    def run_of(self, store=None):
        run = st.open(self.store() if store is None else store, pinned="1MiB", device=DEVICE, report=False)
        self.addCleanup(run.close)
        return run

    def assert_resumes(self, safe_serialization=True, again=True, **more):
        """Asserts that a run that goes back to a checkpoint goes on as the run without one. Returns the checkpoint's files."""
        plain = Loop(None, **more)
        expected = plain.train(0, 6), plain.weights()
        run, folder = self.run_of(), self.folder / "ck"
        loop = Loop(run, **more)
        losses = loop.train(0, 3)
        loop.accelerator.save_state(folder, safe_serialization=safe_serialization)
        size = sum(each.stat().st_size for each in folder.iterdir())
        for _ in range(2 if again else 1):
            self.assertEqual(losses + loop.train(3, 6), expected[0])
            self.assert_same_weights(loop.weights(), expected[1])
            loop.accelerator.load_state(folder)
        self.assertEqual(losses + loop.train(3, 6), expected[0])
        run.close()
        store = run.store
        del loop, run
        gc.collect()
        run = self.run_of(store)
        loop = Loop(run, model=tiny_llama(seed=99) if not more.get("lora") else None, **more)
        loop.accelerator.load_state(folder)
        self.assertEqual(losses + loop.train(3, 6), expected[0])
        self.assert_same_weights(loop.weights(), expected[1])
        run.close()
        names = {each.name for each in folder.iterdir()}
        shutil.rmtree(folder)
        return names, size

    def test_a_checkpoint_is_gone_back_to(self):
        names, size = self.assert_resumes()
        self.assertIn("model.safetensors", names)
        weights = sum(param.numel() * 4 for param in tiny_llama().parameters())
        self.assertLess(size, weights / 2)  # neither weights nor moments
        names, _ = self.assert_resumes(safe_serialization=False)
        self.assertIn("pytorch_model.bin", names)

    def test_with_gradient_accumulation(self):
        self.assert_resumes(accumulate=3)

    def test_with_adapters_in_memory(self):
        self.assert_resumes(lora=True)

    def test_with_an_optimizer_of_torch(self):
        for rate in (0.5, 0.25):
            self.assert_resumes(optimizer=lambda params: torch.optim.SGD(params, lr=rate, foreach=False))
        self.assert_resumes(lora=True, optimizer=lambda params: torch.optim.AdamW(params, lr=1e-2))

    def test_another_process_goes_on(self):
        plain = Loop(None)
        expected = plain.train(0, 6)
        run, folder = self.run_of(), self.folder / "ck"
        loop = Loop(run)
        self.assertEqual(loop.train(0, 3), expected[:3])
        loop.accelerator.save_state(folder)
        loop.train(3, 4)
        run.close()
        code = f"import accelerate_test; accelerate_test.continued({str(folder)!r}, {run.store!r})"
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=500)
        losses, weights = torch.load(folder / "result.pt")
        self.assertEqual(losses, expected[3:])
        self.assert_same_weights(weights, plain.weights())

    def test_checkpoints_before_the_first_step(self):
        run, folder = self.run_of(), self.folder / "ck"
        loop = Loop(run)
        loop.accelerator.save_state(folder)
        losses = loop.train(0, 3)
        loop.accelerator.load_state(folder)
        self.assert_same_weights(loop.weights(), tiny_llama().state_dict())
        self.assertEqual(loop.train(0, 3), losses)

    def test_a_run_in_memory_has_its_weights_in_the_file(self):
        run, folder = st.open(None, device=DEVICE, report=False), self.folder / "ck"
        loop = Loop(run, optimizer=lambda params: torch.optim.SGD(params, lr=0.5, foreach=False))
        loop.train(0, 2)
        loop.accelerator.save_state(folder)
        saved, expected = loop.weights(), loop.train(2, 4)
        del saved["lm_head.weight"]
        self.assert_same_weights({name: value for name, value in self.weights_in(folder).items() if name in saved}, saved)
        again = Loop(st.open(None, device=DEVICE, report=False), model=tiny_llama(seed=99),
                     optimizer=lambda params: torch.optim.SGD(params, lr=0.5, foreach=False))
        again.accelerator.load_state(folder)
        self.assertEqual(again.train(2, 4), expected)

    def test_a_checkpoint_of_a_model_in_memory_is_loaded(self):
        plain, folder = Loop(None, optimizer=lambda params: torch.optim.SGD(params, lr=0.5)), self.folder / "ck"
        plain.train(0, 2)
        plain.accelerator.save_state(folder)
        run = self.run_of()
        loop = Loop(run, model=tiny_llama(seed=99), optimizer=lambda params: torch.optim.SGD(params, lr=0.5, foreach=False))
        loop.accelerator.load_state(folder)
        self.assertEqual(loop.train(2, 4), plain.train(2, 4))
        loop.accelerator.save_state(folder)
        plain.accelerator.save_state(folder)
        self.assertFalse((folder / "spillway.bin").exists())
        loop.accelerator.load_state(folder)
        self.assertEqual(loop.train(4, 5), plain.train(4, 5))

    def test_two_models_of_a_run(self):
        def make(run):
            accelerator = Accelerator(cpu=DEVICE.type == "cpu")
            torch.manual_seed(1)
            models = [torch.nn.Linear(4, 4).to(DEVICE), torch.nn.Linear(4, 4).to(DEVICE), torch.nn.Linear(4, 4).to(DEVICE)]
            if run is not None:
                st.offload(models[0], run, prefix="first.")
                st.offload(models[2], run, prefix="second.")
            optimizers = [st.AdamW(model.parameters(), lr=0.1, store=run) for model in models]
            return accelerator, *zip(*[accelerator.prepare(*each) for each in zip(models, optimizers)])

        def train(models, optimizers, step):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step)).to(DEVICE)
            for model in models:
                x = model(x).tanh()
            x.sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            return x.sum().item()

        accelerator, *plain = make(None)
        expected = [train(*plain, step) for step in range(4)]
        run, folder = self.run_of(), self.folder / "ck"
        accelerator, *made = make(run)
        self.assertEqual([train(*made, step) for step in range(2)], expected[:2])
        accelerator.save_state(folder)
        for _ in range(2):
            self.assertEqual([train(*made, step) for step in range(2, 4)], expected[2:])
            accelerator.load_state(folder)

    def test_a_commit_that_is_not_there_is_said(self):
        run, folder = self.run_of(), self.folder / "ck"
        loop = Loop(run)
        loop.train(0, 1)
        loop.accelerator.save_state(folder)
        elsewhere = self.run_of()
        other = Loop(elsewhere)
        before = other.weights()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "names commit 1 of the store that was in .*Open that store"):
            other.accelerator.load_state(folder)
        self.assert_same_weights(other.weights(), before)
        memory = Loop(None)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "leaves weights of the model in the store .*offload it"):
            memory.accelerator.load_state(folder)
        with contextlib.redirect_stderr(io.StringIO()) as err:
            for step in range(1, 4):
                loop.train(step, step + 1)
                loop.accelerator.save_state(self.folder / f"ck{step}")
        self.assertIn("dropped snapshot", err.getvalue())
        before = loop.weights()
        with self.assertRaisesRegex(spillway.NotFound, "does not have the snapshot .*Checkpoints"):
            loop.accelerator.load_state(folder)
        self.assert_same_weights(loop.weights(), before)
        (self.folder / "ck3" / "spillway.bin").unlink()
        with self.assertRaisesRegex(RuntimeError, "size mismatch"):  # never weights that are not there
            loop.accelerator.load_state(self.folder / "ck3")
        with self.assertRaisesRegex(RuntimeError, "size mismatch"):
            tiny_llama().load_state_dict(self.weights_in(folder), strict=False)

    def test_gradients_that_wait_are_not_lost(self):
        run, folder = self.run_of(), self.folder / "ck"
        loop = Loop(run, optimizer=lambda params: st.AdamW(params, lr=1e-2, store=run, gradients="engine"))
        loop.train(0, 1)
        loop.accelerator.save_state(folder)
        loop.train(1, 2)
        loop.accelerator.backward(loss_of(loop.model, 2))
        before, gradient = loop.weights(), loop.model.lm_head.weight.grad.clone()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "has a gradient in the engine.*step"):
            loop.accelerator.load_state(folder)
        self.assert_same_weights(loop.weights(), before)
        self.assertTrue(torch.equal(loop.model.lm_head.weight.grad, gradient))
        loop.optimizer.zero_grad()
        loop.accelerator.load_state(folder)
        self.assertFalse(torch.equal(loop.model.lm_head.weight, before["lm_head.weight"]))

    def test_libraries_may_be_imported_late(self):
        folder, store = self.folder / "ck", self.store()
        code = f"""if True:
            import torch, spillway.torch as st
            run = st.open({store!r}, pinned="1MiB", device={str(DEVICE)!r}, report=False)
            model = st.offload(torch.nn.Linear(4, 4), run)
            optimizer = st.SGD(model.parameters(), lr=0.1, store=run)
            from accelerate import Accelerator
            accelerator = Accelerator(cpu={DEVICE.type == "cpu"})
            model, optimizer = accelerator.prepare(model, optimizer)
            model(torch.ones(2, 4, device={str(DEVICE)!r})).sum().backward()
            optimizer.step()
            accelerator.save_state({str(folder)!r})"""
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=500)
        self.assertTrue((folder / "spillway.bin").exists())

    def test_a_model_under_other_names_is_said(self):
        run, folder = self.run_of(), self.folder / "ck"
        loop = Loop(run)
        loop.train(0, 1)
        loop.accelerator.save_state(folder)
        other = Accelerator(cpu=DEVICE.type == "cpu").prepare(st.offload(tiny_llama(), run, prefix="other."))
        accelerator = Accelerator(cpu=DEVICE.type == "cpu")
        accelerator.prepare(other)
        accelerator._models = [other]
        with self.assertRaisesRegex(spillway.FailedPrecondition, "as weights/model.embed_tokens.weight in its store, and the "
                                                                 "model as weights/other.model.embed.*prefix="):
            accelerator.load_state(folder)

    def test_checkpoints_keep_the_commits_that_files_name(self):
        for optimizer in (None, lambda params: torch.optim.SGD(params, lr=0.5, foreach=False)):
            out = self.folder / f"out {optimizer is None}"
            run = self.run_of()
            checkpoints = st.Checkpoints(run, out)
            loop = Loop(run, optimizer=optimizer, project_config=ProjectConfiguration(
                project_dir=str(out), automatic_checkpoint_naming=True, total_limit=4))
            weights = []
            with contextlib.redirect_stderr(io.StringIO()):
                for step in range(6):
                    loop.train(step, step + 1)
                    loop.accelerator.save_state()
                    weights.append(loop.weights())
            self.assertIn(len(checkpoints.labels()), (4, 5))
            for step in (2, 5, 3):
                loop.accelerator.load_state(out / "checkpoints" / f"checkpoint_{step}")
                self.assert_same_weights(loop.weights(), weights[step])

    def test_save_model_writes_what_accelerate_writes(self):
        plain, loop = Loop(None), Loop(self.run_of())
        for each, name in ((plain, "plain"), (loop, "ours")):
            each.train(0, 2)
            each.accelerator.save_model(each.model, self.folder / name, max_shard_size="10MB")
        self.assert_same_weights(self.weights_in(self.folder / "ours"), self.weights_in(self.folder / "plain"))
        with self.assertRaisesRegex(spillway.Unimplemented, "safetensors"):
            loop.accelerator.save_model(loop.model, self.folder / "ours", safe_serialization=False)
        unwrapped = loop.accelerator.unwrap_model(loop.model)
        unwrapped.save_pretrained(self.folder / "hf", is_main_process=loop.accelerator.is_main_process,
                                  save_function=loop.accelerator.save, state_dict=loop.accelerator.get_state_dict(loop.model))
        self.assert_same_weights(LlamaForCausalLM.from_pretrained(self.folder / "hf").state_dict(), plain.weights())

    def test_nothing_is_copied(self):
        run, folder = self.run_of(), self.folder / "ck"
        loop = Loop(run, lora=True)
        loop.train(0, 1)
        run.engine.commit()
        with mock.patch("spillway.torch._tensor.Home.leased", side_effect=AssertionError("a weight is read")):
            loop.accelerator.save_state(folder)
        header = (folder / "model.safetensors").read_bytes()
        size = int.from_bytes(header[:8], "little")
        names = json.loads(header[8:8 + size])
        self.assertEqual({entry["dtype"] for name, entry in names.items() if "base_layer" in name}, {"U8"})
        self.assertEqual({entry["dtype"] for name, entry in names.items() if "lora_" in name}, {"F32"})


if __name__ == "__main__":
    unittest.main()
