# SPDX-License-Identifier: Apache-2.0
"""One set of training options for two trainers: the command `spillway train`, and plain PyTorch."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import time

import torch

from models import Windows, open_model, read_weights

THREADS = 2


@dataclasses.dataclass(frozen=True)
class Recipe:
    steps: int = 6
    sequence: int = 33
    batch: int = 2
    accumulate: int = 1
    lr: float = 3e-3
    warmup_steps: int = 0
    schedule: str = "constant"
    betas: tuple = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: str = "fp32"
    extra: tuple = ()  # further flags of the command, which run_torch ignores

    def flags(self):
        return ["--steps", self.steps, "--seq", self.sequence, "--batch", self.batch, "--accumulate", self.accumulate,
                "--lr", self.lr, "--warmup-steps", self.warmup_steps, "--schedule", self.schedule,
                "--betas", f"{self.betas[0]},{self.betas[1]}", "--eps", self.eps,
                "--weight-decay", self.weight_decay, "--clip", self.clip, "--precision", self.precision,
                "--threads", THREADS, *self.extra]

    def learning_rate(self, step):
        """Rises linearly from lr / warmup_steps. Then it is constant or follows a half cosine that is 0 at `steps`."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.lr
        progress = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.lr * 0.5 * (1 + math.cos(math.pi * progress))


@dataclasses.dataclass
class Result:
    log: list      # one dict per step
    weights: dict  # name -> tensor, after the last step
    summary: dict = None


def spillway_command(recipe, model, data, out):
    """The words of a run of the command. `out` is a folder for its log and its model."""
    command = [os.environ["SPILLWAY_COMMAND"], "train", "--model", model, "--data", data, "--save", out / "model",
               "--log-json", out / "log.jsonl", "--json", "--dropout", "0", *recipe.flags()]
    return [str(word) for word in command]


def read_log(out):
    """Returns the lines that are whole. A run that was killed may have begun another."""
    text = (out / "log.jsonl").read_text() if (out / "log.jsonl").exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def run_spillway(recipe, model, data, out):
    """Trains with the command. `out` is a folder that must not exist yet."""
    out.mkdir(parents=True)
    command = spillway_command(recipe, model, data, out)
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\nexited {finished.returncode}:\n{finished.stderr}")
    return Result(read_log(out), read_weights(out / "model"), json.loads(finished.stdout))


def kill_spillway(recipe, model, data, out, lines):
    """Starts the command, and kills it with SIGKILL as soon as its log has as many lines. Returns the log."""
    out.mkdir(parents=True)
    with open(out / "err", "wb") as err:
        process = subprocess.Popen(spillway_command(recipe, model, data, out), stdout=subprocess.DEVNULL, stderr=err)
        try:
            while process.poll() is None and len(read_log(out)) < lines:
                time.sleep(0.002)
        finally:
            process.kill()
            process.wait()
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"it ended by itself with {process.returncode}:\n{(out / 'err').read_text()}")
    return read_log(out)


def run_torch(recipe, model, data, skip=()):
    """Trains with PyTorch in fp32. The steps in `skip` use their windows and advance the schedule, but update nothing."""
    torch.set_num_threads(THREADS)
    network = open_model(model)
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.lr, betas=recipe.betas, eps=recipe.eps,
                                  weight_decay=recipe.weight_decay)
    windows = Windows(data, recipe.sequence)
    log = []
    for step in range(recipe.steps):
        loss = backward(network, windows, recipe)
        limit = recipe.clip if recipe.clip > 0 else math.inf
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), limit)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(step)
        if step not in skip:
            optimizer.step()
        log.append({"step": step + 1, "loss": loss, "grad_norm": norm.item(), "lr": recipe.learning_rate(step)})
    return Result(log, {name: tensor.detach() for name, tensor in network.named_parameters()})


def backward(network, windows, recipe):
    """Leaves a step's gradients in the network. Returns the mean loss of its micro-batches."""
    network.zero_grad()
    total = 0.0
    for _ in range(recipe.accumulate):
        inputs, targets = windows.take(recipe.batch)
        logits = network(inputs).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        (loss / recipe.accumulate).backward()
        total += loss.item()
    return total / recipe.accumulate
