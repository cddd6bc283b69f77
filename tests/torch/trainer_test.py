# SPDX-License-Identifier: Apache-2.0
"""Tests Hugging Face's Trainer with spillway.torch: training, checkpoints, and a run that is resumed."""

import json
import os
import pathlib
import shutil
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import spillway  # noqa: E402
import spillway.torch as st  # noqa: E402
import torch  # noqa: E402
from torch_case import DEVICE, TorchTest, since  # noqa: E402
from transformers import (EarlyStoppingCallback, LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback,  # noqa: E402
                          TrainingArguments)


def tiny_llama():
    torch.manual_seed(11)
    return LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                        tie_word_embeddings=True))


class Windows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 128, (32,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class TrainerTest(TorchTest):
    makes_tensors_there = False  # the Trainer moves them

    def arguments(self, steps, **more):
        return TrainingArguments(
            max_steps=steps, per_device_train_batch_size=2, learning_rate=1e-3, report_to=[], seed=3,
            use_cpu=DEVICE.type == "cpu", disable_tqdm=True, lr_scheduler_type="constant",
            **({"output_dir": str(self.folder / "out"), "max_grad_norm": 1.0, "save_steps": 2, "save_total_limit": 2,
                "logging_steps": 1} | more))

    def trained(self, steps, offloaded=False, resume=None, run=None, optimizer=None, **more):
        model = tiny_llama()
        optimizer = {"lr": 1e-3, **(optimizer or {})}
        if run is not None:
            if offloaded:
                st.offload(model, run)
            optimizer["store"] = run
        trainer = Trainer(model=model, args=self.arguments(steps, **more), train_dataset=Windows(),
                          optimizer_cls_and_kwargs=(st.AdamW, optimizer))
        trainer.train(resume_from_checkpoint=resume)
        losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
        self.norms = [each["grad_norm"] for each in trainer.state.log_history if "grad_norm" in each]
        return losses, {name: value.detach().clone() for name, value in model.named_parameters()}

    def assert_same_run(self, first, second):
        self.assertEqual(first[0], second[0])
        for name, value in first[1].items():
            self.assertTrue(torch.equal(value, second[1][name]), name)

    def test_a_tight_budget_trains_as_memory_does(self):
        expected = self.trained(6, save_strategy="no")
        self.assertEqual(len(expected[0]), 6)
        for offloaded in (False, True):
            run = st.open(self.store(), pinned="1MiB", device=DEVICE)
            got = self.trained(6, offloaded, run=run, save_strategy="no", gradient_accumulation_steps=1,
                               dataloader_num_workers=2)
            self.assert_same_run(got, expected)
            run.close()

    def test_updates_in_backward_without_a_clip_train_as_memory_does_and_log_the_norm(self):
        expected = self.trained(4, save_strategy="no", max_grad_norm=0.0)
        norms = self.norms
        self.assertEqual(len(norms), 4)
        for offloaded in (False, True):
            run = st.open(self.store(), pinned="1MiB", device=DEVICE)
            got = self.trained(4, offloaded, run=run, optimizer={"update": "backward"}, save_strategy="no", max_grad_norm=0.0)
            self.assert_same_run(got, expected)
            for ours, theirs in zip(self.norms, norms, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=1e-6 * theirs)
            run.close()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "clipping, .* need update='step'"):
            self.trained(4, run=st.open(None, device=DEVICE), optimizer={"update": "backward"}, max_grad_norm=100.0)

    @since(2, 6, "a torch.load that transformers trusts")
    def test_a_checkpoint_is_resumed_and_old_ones_free_their_snapshots(self):
        expected = self.trained(8, save_strategy="no")
        for offloaded in (False, True):
            with self.subTest(offloaded=offloaded):
                self.resume(offloaded, expected)
                shutil.rmtree(self.folder / "out")

    def resume(self, offloaded, expected):
        run = st.open(self.store(), pinned="1MiB", device=DEVICE)
        checkpoints = st.Checkpoints(run, self.folder / "out")
        self.trained(6, offloaded, run=run)
        kept = sorted(each.name for each in (self.folder / "out").iterdir() if each.is_dir())
        self.assertEqual(kept, ["checkpoint-4", "checkpoint-6"])
        size = (self.folder / "out/checkpoint-6/optimizer.pt").stat().st_size
        self.assertLess(size, 1_000_000)
        first = checkpoints.labels()
        checkpoints.drop_gone()
        self.assertLess(len(checkpoints.labels()), len(first))
        self.assertLessEqual(len(checkpoints.labels()), 4)  # those of two checkpoints, and the newest two
        store = run.store
        run.close()

        run = st.open(store, pinned="1MiB", device=DEVICE)
        resumed = self.trained(8, offloaded, run=run, resume=str(self.folder / "out/checkpoint-4"))
        self.assertEqual(resumed[0][-4:], expected[0][-4:])
        for name, value in expected[1].items():
            self.assertTrue(torch.equal(value, resumed[1][name]), name)
        run.close()

    def test_generation_early_stopping_and_checkpointing_are_as_in_memory(self):
        class Generates(TrainerCallback):
            def __init__(self):
                self.tokens = []

            def on_evaluate(self, args, state, control, model=None, **kwargs):
                prompt = torch.arange(5, device=model.device)[None]
                self.tokens.append(model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0).tolist())

        few = torch.utils.data.Subset(Windows(), range(8))
        results = []
        for run in (None, st.open(self.store(), pinned="1MiB", device=DEVICE)):
            model, generates, out = tiny_llama().to(DEVICE), Generates(), self.folder / f"out{len(results)}"
            if run is not None:
                st.offload(model, run)
                checkpoints = st.Checkpoints(run, out)
            optimizer = st.AdamW(model.parameters(), lr=1e-3, store=run)
            arguments = self.arguments(8, gradient_checkpointing=True, bf16=True, gradient_accumulation_steps=2, eval_steps=2,
                                       eval_strategy="steps", load_best_model_at_end=True, save_total_limit=1,
                                       metric_for_best_model="eval_loss", greater_is_better=True, output_dir=str(out))
            trainer = Trainer(model=model, args=arguments, train_dataset=Windows(), eval_dataset=few,
                              optimizers=(optimizer, None), callbacks=[generates, EarlyStoppingCallback(2)])
            trainer.train()
            logged = [{name: value for name, value in each.items() if name in ("loss", "grad_norm", "eval_loss")}
                      for each in trainer.state.log_history]
            results.append((logged, generates.tokens, trainer.state.global_step, trainer.predict(few).predictions.tolist()))
            kept = sorted(each.name for each in out.iterdir())
            self.assertEqual(kept, ["checkpoint-2"])  # the best; it stopped at 6
        checkpoints.drop_gone()
        self.assertLessEqual(len(checkpoints.labels()), 2)  # its commit, and the newest
        self.assertEqual(results[0], results[1])
        run.close()

    def test_an_offloaded_model_saves_itself_as_transformers_does(self):
        model, plain = tiny_llama(), tiny_llama()
        st.offload(model, st.open(None, device=DEVICE))
        model.save_pretrained(self.folder / "ours", is_main_process=True, save_function=torch.save)
        plain.save_pretrained(self.folder / "theirs")
        ours, theirs = (json.loads((self.folder / name / "config.json").read_text()) for name in ("ours", "theirs"))
        self.assertEqual(ours, theirs)
        loaded = LlamaForCausalLM.from_pretrained(self.folder / "ours")
        self.assert_same(loaded.parameters(), plain.parameters())
        with self.assertRaisesRegex(spillway.Unimplemented, "push_to_hub"):
            model.save_pretrained(self.folder / "ours", push_to_hub=True)


if __name__ == "__main__":
    unittest.main()
