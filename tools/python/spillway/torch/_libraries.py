# SPDX-License-Identifier: Apache-2.0
"""Methods of transformers, PEFT and accelerate that write or load a model's weights, for weights in the engine, and those of
PyTorch's ZeroRedundancyOptimizer that gather or load state, for state in the engine.

These methods take each weight's address, or pickle it. wrap() wraps them where they are defined, so that they work on models
that the libraries make later, too. For a model without weights in the engine they do what they did. _accelerate.py has those
of accelerate, _zero_redundancy.py those of ZeroRedundancyOptimizer.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import spillway
from spillway.torch import _accelerate, _zero_redundancy
from spillway.torch._offload import save_pretrained
from spillway.torch._tensor import EngineTensor


def _given(method: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Returns the arguments of a call of a method by name."""
    given = dict(inspect.signature(method).bind(*args, **kwargs).arguments)
    more = given.pop("kwargs", {})
    return {**given, **more}


def _in_memory(state_dict: Mapping[str, Any], picked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state dict with copies in memory of those tensors that `picked`, made from it, has."""
    ids = {id(value) for value in picked.values() if isinstance(value, EngineTensor)}
    return {name: value.detach().clone() if id(value) in ids else value for name, value in state_dict.items()}


def _save_model(method: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """PreTrainedModel.save_pretrained, which Trainer's checkpoints call, too."""
    if not _accelerate.has_weights_in_engine(model):
        return method(model, *args, **kwargs)
    given = _given(method, model, *args, **kwargs)
    state_dict = given.get("state_dict")
    if getattr(model, "_hf_peft_config_loaded", False):  # it writes adapters alone
        state_dict = model.state_dict() if state_dict is None else state_dict
        picked = model.get_adapter_state_dict(state_dict=state_dict)
        return method(**{**given, "state_dict": _in_memory(state_dict, picked)})
    # These do not change what is written.
    ways = ("self", "save_directory", "is_main_process", "state_dict", "safe_serialization", "max_shard_size", "save_function")
    defaults = inspect.signature(method).parameters
    lost = [word for word, value in given.items()
            if word not in ways and value and not (word in defaults and value == defaults[word].default)]
    if lost:
        raise spillway.Unimplemented(f"save_pretrained({lost[0]}=...) of a model in the engine: "
                                     "spillway.torch.save_pretrained writes one file of safetensors")
    if given.get("is_main_process", True):
        save_pretrained(model, given["save_directory"], state_dict)
    return None


def _save_adapters(method: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """PeftModel.save_pretrained. It picks weights of the model's state dict, which are few. These get copies in memory."""
    from peft import get_peft_model_state_dict

    given = _given(method, model, *args, **kwargs)
    state_dict = given.get("state_dict")
    state_dict = model.state_dict() if state_dict is None else state_dict
    picked: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the method itself warns
        for number, name in enumerate(given.get("selected_adapters") or model.peft_config):
            if name not in model.peft_config:
                break  # the method itself raises
            of = get_peft_model_state_dict(model, state_dict, name,
                                           save_embedding_layers=given.get("save_embedding_layers", "auto"))
            picked.update({f"{number}.{key}": value for key, value in of.items()})
    if not any(isinstance(value, EngineTensor) for value in picked.values()):
        return method(model, *args, **kwargs)
    return method(**{**given, "state_dict": _in_memory(state_dict, picked)})


_METHODS: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {
    "transformers.modeling_utils": ("PreTrainedModel", {"save_pretrained": _save_model}),
    "peft.peft_model": ("PeftModel", {"save_pretrained": _save_adapters}),
    "accelerate.accelerator": ("Accelerator", {"save_state": _accelerate.save_state, "load_state": _accelerate.load_state,
                                               "save_model": _accelerate.save_model}),
    "torch.distributed.optim.zero_redundancy_optimizer": ("ZeroRedundancyOptimizer", {
        "consolidate_state_dict": _zero_redundancy.consolidate, "state_dict": _zero_redundancy.state_dict,
        "load_state_dict": _zero_redundancy.load}),
}


def _wrapped(method: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return instead(method, *args, **kwargs)

    return call


def wrap() -> None:
    """Wraps the methods of the libraries that are imported by now. Called wherever a program takes up spillway.torch."""
    for module in [name for name in _METHODS if name in sys.modules]:
        name, methods = _METHODS[module]
        owner = getattr(sys.modules[module], name, None)
        if owner is None:
            continue  # it is just being imported
        del _METHODS[module]
        for method, instead in methods.items():
            if hasattr(owner, method):  # older versions lack some
                setattr(owner, method, _wrapped(getattr(owner, method), instead))
