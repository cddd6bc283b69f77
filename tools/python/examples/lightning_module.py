#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A LightningModule whose optimizer keeps its state in a store: only `configure_optimizers` changes.

    lightning_module.py STORE[,STORE] --out FOLDER [--steps 20] [--resume] [--memory]

It trains a small network on random numbers from a fixed seed, and saves a checkpoint every tenth step. --resume continues
from the newest one. --memory uses torch.optim.AdamW instead, for comparison. The last line is JSON with the loss of each
batch and the number of steps.
"""

import argparse
import json
import pathlib
import warnings

import lightning
import torch


class Squares(torch.utils.data.Dataset):
    """Random vectors, and a fixed layer's outputs for them as targets."""

    def __init__(self, size=640):  # an epoch is ten steps of two batches
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(size, 64, generator=generator)
        self.targets = torch.tanh(self.inputs @ torch.randn(64, 64, generator=generator) / 8)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Module(lightning.LightningModule):
    def __init__(self, store, out):
        super().__init__()
        self.store, self.out, self.losses = store, out, []
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64))

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.network(inputs), targets)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        if self.store is None:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        else:
            import spillway.torch as st
            run = st.open(self.store, pinned="4MiB")
            st.Checkpoints(run, self.out)  # keeps each checkpoint's state as long as its file exists
            optimizer = st.AdamW(self.parameters(), lr=1e-3, store=run)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=lambda text: text.split(","), help="a folder, or one on each drive: nvme0/a,nvme1/a")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=20, help="in all, those before a resume included")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--memory", action="store_true", help="torch.optim.AdamW; the store is not touched")
    flags = parser.parse_args()

    warnings.filterwarnings("ignore", module="lightning")
    lightning.seed_everything(7)
    module = Module(None if flags.memory else flags.store, flags.out)
    saved = sorted(pathlib.Path(flags.out).glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    if flags.resume and not saved:
        parser.error(f"--resume: {flags.out} has no checkpoint (*.ckpt): one is made every tenth step")
    checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(flags.out, "{step}", every_n_train_steps=10, save_top_k=-1)
    trainer = lightning.Trainer(max_steps=flags.steps, accelerator="cpu", devices=1, logger=False, callbacks=[checkpoints],
                                enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
                                accumulate_grad_batches=2)
    data = torch.utils.data.DataLoader(Squares(), batch_size=32, num_workers=2, persistent_workers=True)
    trainer.fit(module, data, ckpt_path=saved[-1] if flags.resume else None)
    print(json.dumps({"losses": module.losses, "steps": trainer.global_step}))


if __name__ == "__main__":
    main()
