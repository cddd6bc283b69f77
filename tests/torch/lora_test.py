# SPDX-License-Identifier: Apache-2.0
"""A LoRA fine-tuning of transformers' Trainer with PEFT, with weights and optimizer state in the engine: accumulation,
evaluation, the best checkpoint at the end, a process that is killed and resumed, and the merge. It gives the bits of the run
that was not interrupted, and the losses of plain PyTorch."""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import spillway.torch as st  # noqa: E402
import torch  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from torch_case import DEVICE, TorchTest, since  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

STEPS, KILLED_AFTER, SAVED_EVERY = 9, 7, 3


class Text(torch.utils.data.Dataset):
    """Windows of a text of words that repeat."""

    def __init__(self, seed, windows):
        random_ = random.Random(seed)
        words = [bytes(random_.choices(b"abcdefgh", k=random_.randint(2, 5))) for _ in range(12)]
        text = b" ".join(random_.choices(words, k=windows * 16))
        self.windows = [torch.tensor(list(text[32 * i:32 * (i + 1)])) for i in range(windows)]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        return {"input_ids": self.windows[index], "labels": self.windows[index]}


class Kill(TrainerCallback):
    """Kills this process after a step, as a power failure would."""

    def __init__(self, after):
        self.after = after

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.after:
            os.kill(os.getpid(), signal.SIGKILL)


def base_model():
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                        tie_word_embeddings=True))


def finetune(folder, store=None, order="adapters first", resume=False, kill_after=None, in_memory=False):
    """Returns the losses of training and evaluation, and the weights before and after the merge."""
    run = None if in_memory else st.open(store, pinned="1MiB" if store else None, device=DEVICE, report=False)
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"])
    model = base_model()
    if run is not None and order == "weights first":
        st.offload(model, run)
    torch.manual_seed(6)
    model = get_peft_model(model, config)
    if run is not None:
        st.offload(model, run, prefix="" if order == "adapters first" else "adapters.")
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        lr_scheduler_type="cosine", warmup_steps=2, weight_decay=0.01, max_grad_norm=0.5,
        eval_strategy="steps", eval_steps=SAVED_EVERY, save_steps=SAVED_EVERY, save_total_limit=2, load_best_model_at_end=True,
        metric_for_best_model="eval_loss", greater_is_better=True,  # so that the best checkpoint is not the last one
        logging_steps=1, report_to=[], seed=3, use_cpu=DEVICE.type == "cpu",
        disable_tqdm=True)
    checkpoints = st.Checkpoints(run, folder) if store else None
    chosen = (torch.optim.AdamW, {"lr": 3e-2}) if in_memory else (st.AdamW, {"lr": 3e-2, "store": run})
    trainer = Trainer(model=model, args=arguments, train_dataset=Text(1, 64), eval_dataset=Text(2, 6),
                      optimizer_cls_and_kwargs=chosen, callbacks=[] if kill_after is None else [Kill(kill_after)])
    trainer.train(resume_from_checkpoint=resume or None)
    result = {"losses": logged(trainer, "loss"), "evaluations": logged(trainer, "eval_loss"),
              "best": pathlib.Path(trainer.state.best_model_checkpoint).name,
              "after": trainer.evaluate()["eval_loss"],
              "adapters": {name: value.clone() for name, value in model.state_dict().items() if "lora_" in name}}
    merged = model.merge_and_unload()
    result["merged"] = {name: value.detach().clone() for name, value in merged.named_parameters()}
    merged.save_pretrained(folder / "merged")
    del checkpoints
    if run is not None:
        run.close()
    return result


def logged(trainer, name):
    return [each[name] for each in trainer.state.log_history if name in each]


def in_a_process(folder, *arguments):
    done = subprocess.run([sys.executable, "-W", "ignore", __file__, str(folder), *arguments], capture_output=True, text=True,
                          timeout=300)
    return done.returncode, done.stderr


class LoraTest(TorchTest):
    makes_tensors_there = False  # the Trainer moves them

    def assert_same_run(self, first, second):
        for name in ("losses", "evaluations", "best", "after"):
            self.assertEqual(first[name], second[name], name)
        for part in ("adapters", "merged"):
            self.assertEqual(first[part].keys(), second[part].keys())
            for name, value in first[part].items():
                self.assertTrue(torch.equal(value, second[part][name]), name)

    @since(2, 6, "a torch.load that transformers trusts")
    def test_a_run_that_is_killed_and_resumed_gives_the_bits_of_the_whole_run_and_the_losses_of_pytorch(self):
        plain = finetune(self.folder / "plain", in_memory=True)
        whole = finetune(self.folder / "whole", self.store())
        self.assertEqual(len(whole["losses"]), STEPS)
        self.assertLess(whole["evaluations"][-1], 0.98 * whole["losses"][0])
        for name in ("losses", "evaluations"):
            for ours, torchs in zip(whole[name], plain[name], strict=True):
                self.assertAlmostEqual(ours, torchs, delta=1e-5 * torchs)
        self.assertEqual((whole["best"], plain["best"]), (f"checkpoint-{SAVED_EVERY}",) * 2)
        self.assertEqual(whole["after"], whole["evaluations"][0])

        # Which of the two comes first, the adapters or the move into the engine, changes no bit.
        self.assert_same_run(finetune(self.folder / "other", self.store(), order="weights first"), whole)

        store = self.store()
        status, errors = in_a_process(self.folder / "cut", store, "--kill-after", str(KILLED_AFTER))
        self.assertEqual(status, -signal.SIGKILL, errors)
        kept = sorted(each.name for each in (self.folder / "cut").iterdir())
        self.assertEqual(kept, [f"checkpoint-{step}" for step in (3, 6)])
        status, errors = in_a_process(self.folder / "cut", store, "--resume", "--result", str(self.folder / "cut.pt"))
        self.assertEqual(status, 0, errors)
        self.assert_same_run(torch.load(self.folder / "cut.pt"), whole)
        self.assert_files(whole)

    def assert_files(self, expected):
        """The merged model's files are those of the uninterrupted run, and transformers loads them."""
        files = [self.folder / name / "merged" for name in ("cut", "whole")]
        first, second = ((each / "model.safetensors").read_bytes() for each in files)
        self.assertEqual(first, second)
        self.assertEqual(*(json.loads((each / "config.json").read_text()) for each in files))
        loaded = LlamaForCausalLM.from_pretrained(files[0])
        for name, value in loaded.named_parameters():
            self.assertTrue(torch.equal(value, expected["merged"][name]), name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("store")
    parser.add_argument("--kill-after", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--result")
    flags = parser.parse_args()
    result = finetune(flags.folder, flags.store, resume=flags.resume, kill_after=flags.kill_after)
    if flags.result:
        torch.save(result, flags.result)


if __name__ == "__main__":
    if len(sys.argv) > 2 and not sys.argv[1].startswith("-"):
        main()
    else:
        unittest.main()
