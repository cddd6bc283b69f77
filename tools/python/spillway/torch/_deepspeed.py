# SPDX-License-Identifier: Apache-2.0
"""Reads a DeepSpeed configuration: where state rests, and which optimizer is used."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import warnings
from typing import Any

import spillway
from spillway.torch import _rules
from spillway.torch._run import Run, open_run

_RULES = {"adamw": _rules.AdamW, "adam": _rules.Adam, "lion": _rules.Lion, "sgd": _rules.SGD}
# Keys for what the trainer does itself, through settings of its own.
_TRAINERS = {"gradient_clipping", "gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu", "fp16",
             "bf16", "steps_per_print", "wall_clock_breakdown", "scheduler", "zero_allow_untested_optimizer",
             "zero_force_ds_cpu_optimizer"}


@dataclasses.dataclass
class DeepSpeedSettings:
    """The settings that spillway.torch.from_deepspeed read from a configuration."""

    store: str | None = None  # for spillway.torch.open; None: state rests in memory
    queue_depth: int | None = None
    offload_parameters: bool = False  # whether to move weights with spillway.torch.offload
    optimizer: type | None = None
    optimizer_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    trainers: list[str] = dataclasses.field(default_factory=list)  # keys that the trainer must apply itself
    without_counterpart: list[str] = dataclasses.field(default_factory=list)

    def open(self, pinned: int | str | None = None) -> Run:
        """Opens a run as the configuration describes it."""
        return open_run(self.store, pinned=pinned, queue_depth=self.queue_depth)


def from_deepspeed(config: dict[str, Any] | str | os.PathLike[str]) -> DeepSpeedSettings:
    """Reads a DeepSpeed configuration from a dict or a JSON file: offload_optimizer, offload_param, nvme_path, pin_memory,
    aio and optimizer. Keys that have no counterpart are listed in `without_counterpart`, and a warning names them."""
    if not isinstance(config, dict):
        config = json.loads(pathlib.Path(config).read_text())
    settings = DeepSpeedSettings()
    missing = settings.without_counterpart
    for key, value in config.items():
        if key == "zero_optimization":
            _read_zero(value, settings)
        elif key == "aio":
            for word, number in value.items():
                if word == "queue_depth":
                    settings.queue_depth = int(number)
                else:
                    missing.append(f"aio.{word}: the engine chooses itself, by what was measured of the device if it was")
        elif key == "optimizer":
            _read_optimizer(value, settings)
        elif key in _TRAINERS:
            settings.trainers.append(key)
        else:
            missing.append(key)
    if missing:
        warnings.warn("spillway.torch.from_deepspeed: no counterpart for " + "; ".join(missing), stacklevel=2)
    return settings


def _read_zero(zero: dict[str, Any], settings: DeepSpeedSettings) -> None:
    missing = settings.without_counterpart
    for key, value in zero.items():
        if key not in ("offload_optimizer", "offload_param"):
            if key == "stage" and value in (0, 1, 2, 3):
                continue  # stages divide state among processes; here one process holds all of it
            missing.append(f"zero_optimization.{key}")
            continue
        place = f"zero_optimization.{key}"
        device = value.get("device", "cpu")
        if device not in ("nvme", "cpu", "none"):
            raise spillway.InvalidArgument(f"{place}.device is {device!r}: it must be nvme, cpu or none")
        if key == "offload_param" and device != "none":
            settings.offload_parameters = True
        if device == "nvme":
            path = value.get("nvme_path")
            if not path:
                raise spillway.InvalidArgument(f"{place}.device is nvme, and there is no {place}.nvme_path")
            store = os.path.join(os.fspath(path), "spillway")
            if settings.store not in (None, store):
                raise spillway.InvalidArgument(f"{place}.nvme_path is {path}, and the other role's is another: one store "
                                               "holds both")
            settings.store = store
        for word, given in value.items():
            if word in ("device", "nvme_path"):
                continue
            if word == "pin_memory" and given:
                continue  # memory is always pinned, as far as the machine allows
            missing.append(f"{place}.{word}={given}: give spillway.torch.open pinned= bytes of memory")


def _read_optimizer(optimizer: dict[str, Any], settings: DeepSpeedSettings) -> None:
    kind = str(optimizer.get("type", "")).lower()
    if kind not in _RULES:
        raise spillway.InvalidArgument(f"optimizer.type is {optimizer.get('type')!r}: there are {', '.join(_RULES)}")
    parameters = optimizer.get("params", {})
    if kind == "adam" and parameters.get("adam_w_mode", True):
        kind = "adamw"  # in DeepSpeed, too, Adam is AdamW by default
    settings.optimizer = _RULES[kind]
    settings.optimizer_arguments["weight_decay"] = 0.0  # DeepSpeed's default
    known = {"lr", "betas", "eps", "weight_decay", "momentum"}
    for word, value in parameters.items():
        if value == "auto":
            continue  # the trainer sets the value
        if word in known:
            settings.optimizer_arguments[word] = tuple(value) if isinstance(value, list) else value
        elif word not in ("torch_adam", "adam_w_mode"):
            settings.without_counterpart.append(f"optimizer.params.{word}")
