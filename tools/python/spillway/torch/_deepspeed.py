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

_RULES = {"adamw": _rules.AdamW, "adam": _rules.Adam, "lion": _rules.Lion, "sgd": _rules.SGD, "lamb": _rules.LAMB}
_LAMB = ("lr", "betas", "eps", "weight_decay")
_ADAM = (*_LAMB, "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
_PARAMETERS = {"adamw": _ADAM, "adam": _ADAM, "lion": ("lr", "betas", "weight_decay"),
               "sgd": ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach", "differentiable",
                       "fused"), "lamb": _LAMB}
# Parameters that are true or false.
_FLAGS = {"amsgrad", "nesterov", "maximize", "foreach", "capturable", "differentiable", "fused"}
# DeepSpeed's defaults, where those of the classes differ.
_DEFAULTS = {kind: {"weight_decay": 0.0} for kind in _RULES}
_DEFAULTS["lion"] |= {"lr": 1e-3, "betas": (0.9, 0.999)}
_DEFAULTS["lamb"] |= {"eps": 1e-8}
# What divides the model among ranks as a stage of ZeRO does. Each rank has a store of its own.
_STAGES = {0: "torch.nn.parallel.DistributedDataParallel(model)",
           1: "torch.distributed.optim.ZeroRedundancyOptimizer(params, optimizer_class=spillway.torch.AdamW, store=...), with "
              "torch.nn.parallel.DistributedDataParallel(model)",
           2: "torch.distributed.fsdp.fully_shard(model, reshard_after_forward=False)",
           3: "torch.distributed.fsdp.fully_shard(model)"}
# Stage 3 with offload_param: spillway.torch.offload does not take a model that is sharded over ranks.
_STAGE_3_OFFLOADED = "torch.distributed.fsdp.fully_shard(model, offload_policy=torch.distributed.fsdp.CPUOffloadPolicy())"
# Keys for what the trainer does itself, through settings of its own.
_TRAINERS = {"gradient_clipping", "gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu", "fp16",
             "bf16", "steps_per_print", "wall_clock_breakdown", "scheduler", "zero_allow_untested_optimizer",
             "zero_force_ds_cpu_optimizer"}


@dataclasses.dataclass
class DeepSpeedSettings:
    """The settings that spillway.torch.from_deepspeed read from a configuration."""

    store: str | list[str] | None = None  # for spillway.torch.open; None: state rests in memory
    queue_depth: int | None = None
    offload_parameters: bool = False  # whether to move weights with spillway.torch.offload
    across_ranks: str = ""  # the call of PyTorch's that stands for `stage`, if there are several ranks; "": no stage is given
    optimizer: type | None = None
    optimizer_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    trainers: list[str] = dataclasses.field(default_factory=list)  # keys that the trainer must apply itself
    without_counterpart: list[str] = dataclasses.field(default_factory=list)

    def open(self, pinned: int | str | None = None, calibrate: str = "auto") -> Run:
        """Opens a run as the configuration describes it. `pinned` and `calibrate` are those of spillway.torch.open."""
        return open_run(self.store, pinned=pinned, queue_depth=self.queue_depth, calibrate=calibrate)


def from_deepspeed(config: dict[str, Any] | str | os.PathLike[str]) -> DeepSpeedSettings:
    """Reads a DeepSpeed configuration from a dict or a JSON file: offload_optimizer, offload_param, nvme_path, pin_memory,
    aio, stage and optimizer. If the two roles have different paths, the store has a folder in each, and both roles are on both.
    If torchrun has started several ranks, each has a store of its own there. `across_ranks` names the call of PyTorch's that
    divides the model as the stage does; the trainer makes it, and then the optimizer of the parameters that the model has. For
    stage 3 with offload_param it keeps the weights in the host's memory, as `offload` takes no model that is sharded. The
    optimizer is AdamW, Adam, Lion, SGD or LAMB; what the configuration leaves out has DeepSpeed's default. LAMB does not limit
    the ratio of the norms (min_coeff, max_coeff). Keys that have no counterpart are listed in `without_counterpart`, and a
    warning names them. Raises InvalidArgument, which names the key, for a value that is not valid."""
    if isinstance(config, (str, os.PathLike)):
        try:
            config = json.loads(pathlib.Path(config).read_text())
        except ValueError as error:
            raise spillway.InvalidArgument(f"{os.fspath(config)} is not a file of JSON: {error}") from None
    settings = DeepSpeedSettings()
    missing = settings.without_counterpart
    _expect(isinstance(config, dict), "the DeepSpeed configuration", config, "a JSON object")
    for key, value in config.items():
        if key == "zero_optimization":
            _read_zero(_object(value, key), settings)
        elif key == "aio":
            _read_aio(_object(value, key), settings)
        elif key == "optimizer":
            if value is not None:
                _read_optimizer(_object(value, key), settings)
        elif key in _TRAINERS:
            settings.trainers.append(key)
        else:
            missing.append(str(key))
    if missing:
        warnings.warn("spillway.torch.from_deepspeed: no counterpart for " + "; ".join(missing), stacklevel=2)
    return settings


def _expect(is_right: bool, key: str, value: Any, expected: str) -> None:
    if not is_right:
        raise spillway.InvalidArgument(f"{key} is {value!r}: it must be {expected}")


def _object(value: Any, key: str) -> dict[str, Any]:
    """Returns a JSON object; null counts as one without keys."""
    _expect(value is None or isinstance(value, dict), key, value, "a JSON object")
    return value or {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read_aio(aio: dict[str, Any], settings: DeepSpeedSettings) -> None:
    for word, value in aio.items():
        if word != "queue_depth":
            settings.without_counterpart.append(f"aio.{word}: the engine chooses itself, by what was measured of the device if "
                                                "it was")
        elif value not in (None, "auto"):
            _expect(type(value) is int and value >= 1, "aio.queue_depth", value, "an integer from 1 on, or \"auto\"")
            settings.queue_depth = value


def _read_zero(zero: dict[str, Any], settings: DeepSpeedSettings) -> None:
    folders = dict.fromkeys(("offload_optimizer", "offload_param"))  # the order of a store's folders must not change
    for key, value in zero.items():
        place = f"zero_optimization.{key}"
        if key in folders:
            if value is not None:
                folders[key] = _read_offload(_object(value, place), place, key == "offload_param", settings)
        elif key == "stage":
            _expect(_is_number(value) and value in _STAGES, place, value, "0, 1, 2 or 3")
            settings.across_ranks = _STAGES[int(value)]
        else:
            settings.without_counterpart.append(place)
    if settings.offload_parameters and settings.across_ranks == _STAGES[3] and not _is_alone():
        settings.across_ranks, settings.offload_parameters = _STAGE_3_OFFLOADED, False
        if folders["offload_param"] is not None:
            settings.without_counterpart.append("zero_optimization.offload_param.device=nvme: the weights of a model that is "
                                                "sharded over ranks rest in the host's memory")
    store = list(dict.fromkeys(folder for folder in folders.values() if folder is not None))
    settings.store = store if len(store) > 1 else store[0] if store else None


def _read_offload(offload: dict[str, Any], place: str, is_parameters: bool, settings: DeepSpeedSettings) -> str | None:
    """Reads where a role rests. Returns the store's folder; None: in memory."""
    given = {word: value for word, value in offload.items() if value is not None}
    device = given.pop("device", "cpu")
    _expect(device in ("nvme", "cpu", "none"), f"{place}.device", device, "nvme, cpu or none")
    if is_parameters and device != "none":
        settings.offload_parameters = True
    path = given.pop("nvme_path", None)
    if device == "nvme":
        if not path:
            raise spillway.InvalidArgument(f"{place}.device is nvme, and there is no {place}.nvme_path")
        _expect(isinstance(path, (str, os.PathLike)), f"{place}.nvme_path", path, "the path of a folder")
    for word, value in given.items():
        if word == "pin_memory":
            _expect(isinstance(value, bool), f"{place}.pin_memory", value, "true or false")
            if not value:
                settings.without_counterpart.append(f"{place}.{word}={value}: memory is pinned as far as the machine allows")
            continue
        settings.without_counterpart.append(f"{place}.{word}={value}: give spillway.torch.open pinned= bytes of memory")
    if device != "nvme":
        return None
    return os.path.join(os.fspath(path), "spillway" if _is_alone() else "spillway-{rank}")


def _is_alone() -> bool:
    """Returns whether torchrun has not started several ranks."""
    return os.environ.get("WORLD_SIZE", "1") == "1"


def _read_optimizer(optimizer: dict[str, Any], settings: DeepSpeedSettings) -> None:
    kind = str(optimizer.get("type", "")).lower()
    if kind not in _RULES:
        raise spillway.InvalidArgument(f"optimizer.type is {optimizer.get('type')!r}: there are {', '.join(_RULES)}")
    # The trainer sets what is "auto".
    parameters = {word: value for word, value in _object(optimizer.get("params"), "optimizer.params").items()
                  if value not in (None, "auto")}
    if kind in ("adam", "adamw"):
        parameters.pop("torch_adam", None)
        is_decoupled = parameters.pop("adam_w_mode", True)
        _expect(isinstance(is_decoupled, bool), "optimizer.params.adam_w_mode", is_decoupled, "true or false")
        if kind == "adam" and is_decoupled:
            kind = "adamw"  # in DeepSpeed, too, Adam is AdamW by default
    settings.optimizer = _RULES[kind]
    settings.optimizer_arguments = dict(_DEFAULTS[kind])
    if kind == "lamb":
        limits = [parameters.pop(word, default) for word, default in (("min_coeff", 0.01), ("max_coeff", 10.0))]
        settings.without_counterpart.append("optimizer.params.min_coeff and max_coeff, which limit the ratio of the norms to "
                                            f"{limits[0]} to {limits[1]}: spillway.torch.LAMB does not limit it")
    for word, value in parameters.items():
        place = f"optimizer.params.{word}"
        if word not in _PARAMETERS[kind]:
            settings.without_counterpart.append(place)
        elif word == "betas":
            _expect(isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_number, value)), place, value,
                    "two numbers")
            settings.optimizer_arguments[word] = tuple(value)
        elif word in _FLAGS:
            _expect(isinstance(value, bool), place, value, "true or false")
            settings.optimizer_arguments[word] = value
        else:
            _expect(_is_number(value), place, value, "a number")
            settings.optimizer_arguments[word] = value
