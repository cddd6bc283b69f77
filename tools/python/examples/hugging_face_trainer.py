#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a Hugging Face causal language model with transformers' Trainer in memory that is too small for AdamW.

    hugging_face_trainer.py --model FOLDER --data TOKENS.npy --out FOLDER [--store FOLDER[,FOLDER]] [--pinned 256MiB]
                            [--gradients engine] [--offload] [--steps 50] [--resume]

TOKENS.npy is a file that `spillway-tokenize` writes. Without --store, torch.optim.AdamW is used. The last line is JSON with
the losses, the seconds, and the peaks of anonymous and of resident memory.
"""

import argparse
import json
import os
import resource
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Windows(torch.utils.data.Dataset):
    def __init__(self, path, length):
        self.tokens, self.length = numpy.load(path, mmap_mode="r"), length

    def __len__(self):
        return len(self.tokens) // self.length

    def __getitem__(self, index):
        window = torch.from_numpy(self.tokens[index * self.length:(index + 1) * self.length].astype(numpy.int64))
        return {"input_ids": window, "labels": window}


class PeakMemory(TrainerCallback):
    """The most anonymous memory at the end of a step, in MiB. Memory backed by files is not counted: the kernel can drop it."""

    peak = 0.0

    def on_step_end(self, args, state, control, **kwargs):
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        PeakMemory.peak = max(PeakMemory.peak, int(fields["RssAnon"].split()[0]) / 1024)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "data", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--store", type=lambda text: text.split(","), help="a folder, or one on each drive: nvme0/a,nvme1/a")
    parser.add_argument("--pinned", default="256MiB")
    parser.add_argument("--state-format", default="fp32")
    parser.add_argument("--gradients", default="torch", choices=("torch", "engine"))
    parser.add_argument("--offload", action="store_true", help="the weights, too, are in the store")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save-steps", type=int, default=0)
    parser.add_argument("--length", type=int, default=256)
    flags = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(flags.model, dtype=torch.float32)
    chosen = (torch.optim.AdamW, {"lr": 1e-4})
    run = None
    if flags.store:
        import spillway.torch as st
        run = st.open(flags.store, pinned=flags.pinned)
        if flags.offload:
            st.offload(model, run)
        chosen = (st.AdamW, {"lr": 1e-4, "store": run, "gradients": flags.gradients, "state_format": flags.state_format})
    arguments = TrainingArguments(
        output_dir=flags.out, max_steps=flags.steps, per_device_train_batch_size=1, learning_rate=1e-4, max_grad_norm=1.0,
        lr_scheduler_type="constant", gradient_checkpointing=True, logging_steps=1, report_to=[], use_cpu=True, seed=3,
        save_strategy="steps" if flags.save_steps else "no", save_steps=flags.save_steps or 500, save_total_limit=2,
        disable_tqdm=True)
    if run is not None and flags.save_steps:
        checkpoints = st.Checkpoints(run, flags.out)  # removes the snapshots of rotated checkpoints
        assert checkpoints
    trainer = Trainer(model=model, args=arguments, train_dataset=Windows(flags.data, flags.length),
                      optimizer_cls_and_kwargs=chosen, callbacks=[PeakMemory()])
    began = time.monotonic()
    trainer.train(resume_from_checkpoint=flags.resume or None)
    print(json.dumps({
        "losses": [each["loss"] for each in trainer.state.log_history if "loss" in each],
        "seconds": round(time.monotonic() - began, 1), "peak_anonymous_mib": round(PeakMemory.peak),
        "peak_resident_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}))


if __name__ == "__main__":
    main()
