# SPDX-License-Identifier: Apache-2.0
"""What accelerate's Accelerator does with models whose weights are in the engine.

save_state leaves these weights in the store: it commits, and writes the file `spillway.bin`, which names the commit. In the
model's own file each of these weights is a few bytes of text, which no other program takes for the weight, because its shape
is another. load_state brings the store's weights to that commit. The optimizer's state dict names the same commit.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

import spillway
import torch
from spillway.torch._offload import write_weights
from spillway.torch._run import Run
from spillway.torch._tensor import EngineTensor

_FILE = "spillway.bin"


def has_weights_in_engine(model: torch.nn.Module) -> bool:
    return any(isinstance(param, EngineTensor) for param in model.parameters())


def save_state(method: Callable[..., Any], accelerator: Any, *args: Any, **kwargs: Any) -> Any:
    """Accelerator.save_state."""

    def leave_in_store(_: Any, state_dicts: list[dict[str, Any]], folder: str) -> None:
        commits: dict[str, dict[str, Any]] = {}
        left = [_leave(state_dict, commits) for state_dict in state_dicts]
        path = pathlib.Path(folder, _FILE)
        if commits and accelerator.is_main_process:
            torch.save({"commits": commits, "weights": left}, path)
        elif accelerator.is_main_process:
            path.unlink(missing_ok=True)  # of an earlier checkpoint in this folder

    with contextlib.closing(_Hook(accelerator.register_save_state_pre_hook(leave_in_store))):
        return method(accelerator, *args, **kwargs)


def _leave(state_dict: dict[str, Any], commits: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Replaces each weight in the engine in a state dict by a text that says where it is: in a commit that this makes, and
    adds to `commits`, by the store's id. Returns the id of the store, and the name there, of each. Without a store the weight
    is replaced by a copy in memory."""
    left: dict[str, tuple[str, str]] = {}
    copies: dict[Any, torch.Tensor] = {}  # of which tied names have the same one
    for name, value in list(state_dict.items()):
        if not isinstance(value, EngineTensor):
            continue
        home = value._home
        if home.run.store is None:
            key = (id(home), value.size(), value.stride(), value.storage_offset())
            if key not in copies:
                copies[key] = value.detach().clone()
            state_dict[name] = copies[key]
            continue
        store = home.engine.store_id
        if store not in commits:
            home.run.check_no_backward()
            commits[store] = home.run.keep_commit(of_weights=True)
        left[name] = (store, home.name)
        text = f"{home.name} is in the store {store}, in the commit {commits[store]['label']}, which {_FILE} names"
        state_dict[name] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return left


def load_state(method: Callable[..., Any], accelerator: Any, *args: Any, **kwargs: Any) -> Any:
    """Accelerator.load_state. Optimizers of spillway.torch, which it loads after the models, bring the weights to their commit
    together with their state. It remains for this to bring those that no optimizer's commit had."""
    brought: list[tuple[torch.nn.Module, Run, dict[str, Any]]] = []

    def stand_in(models: list[Any], folder: str) -> None:
        path = pathlib.Path(folder, _FILE)
        file = torch.load(path, weights_only=True) if path.exists() else {"commits": {}, "weights": []}
        for number, model in enumerate(models):
            left = file["weights"][number] if number < len(file["weights"]) else {}
            runs = {param._home.run for param in model.parameters() if isinstance(param, EngineTensor)}
            if runs or left:
                models[number] = _StandIn(model, left)
            for store in {store for store, _ in left.values()}:
                run = _run_of(model, runs, file["commits"][store])
                run.restored.clear()
                brought.append((model, run, file["commits"][store]))

    with contextlib.closing(_Hook(accelerator.register_load_state_pre_hook(stand_in))):
        result = method(accelerator, *args, **kwargs)
    for model, run, kept in brought:
        run.bring_weights(kept)
        for param in model.parameters():
            if isinstance(param, EngineTensor):  # autograd must see that it has changed
                torch.autograd.graph.increment_version(param)
    return result


def _run_of(model: torch.nn.Module, runs: set[Run], kept: dict[str, Any]) -> Run:
    """Returns the run whose store has a commit of a checkpoint. Raises if there is none, it has not the commit, or going there
    would lose what is yet to be used."""
    if not runs:
        raise spillway.FailedPrecondition(
            f"the checkpoint leaves weights of the model in the store {kept['store']}, and the model is in memory: offload it "
            f"(spillway.torch.offload) to a run over that store first, or save its weights with save_model()")
    of_store = [run for run in runs if run.engine.store_id == kept["store_id"]]
    run = (of_store or list(runs))[0]
    run.check(kept)
    if not run.is_at(kept):
        run.check_nothing_waits()
    return run


def save_model(method: Callable[..., Any], accelerator: Any, model: torch.nn.Module, save_directory: Any,
               max_shard_size: Any = "10GB", safe_serialization: bool = True) -> Any:
    """Accelerator.save_model. It writes one file, whatever `max_shard_size` is."""
    if not has_weights_in_engine(model):
        return method(accelerator, model, save_directory, max_shard_size, safe_serialization)
    if not safe_serialization:
        raise spillway.Unimplemented("save_model(safe_serialization=False) of a model in the engine: it writes a file of "
                                     "safetensors")
    if accelerator.is_main_process:
        write_weights(save_directory, accelerator.get_state_dict(model))
    return None


class _Hook:
    """A hook's handle that contextlib.closing can close."""

    def __init__(self, handle: Any):
        self.close = handle.remove


class _StandIn:
    """What load_state loads in place of a model whose weights `left` were left in the store."""

    def __init__(self, model: torch.nn.Module, left: dict[str, tuple[str, str]]):
        self._model, self._left = model, left

    def state_dict(self) -> dict[str, Any]:
        """Returns the model's, in which safetensors looks for names that share memory. For those of weights in the engine that
        the file has, a tensor of one element stands for each weight."""
        there = self._model.state_dict()
        stand_ins: dict[int, torch.Tensor] = {}
        for name, value in there.items():
            if name in self._left:
                there[name] = torch.empty(0, device="meta")  # shares with none
            elif isinstance(value, EngineTensor):
                there[name] = stand_ins.setdefault(id(value._home), torch.empty(1))
        return there

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, **more: Any) -> Any:
        there = self._model.state_dict()
        for name, (_, of) in self._left.items():
            has = there.get(name)
            if not isinstance(has, EngineTensor) or has._home.name != of:
                here = f"as {has._home.name}" if isinstance(has, EngineTensor) else "does not have it in the engine"
                raise spillway.FailedPrecondition(f"the checkpoint has {name} as {of} in its store, and the model {here}: "
                                                  "offload the model as when the checkpoint was saved (prefix=)")
        given = {name: value for name, value in state_dict.items() if name not in self._left}
        result = self._model.load_state_dict(given, strict=False, **more)
        missing = [name for name in result.missing_keys if name not in self._left]
        if strict and (missing or result.unexpected_keys):
            raise RuntimeError(f"the checkpoint does not fit {type(self._model).__name__}: it has no {missing}, and "
                               f"{result.unexpected_keys} that the model does not have")
        return type(result)(missing, result.unexpected_keys)
