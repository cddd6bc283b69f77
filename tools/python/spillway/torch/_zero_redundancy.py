# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed.optim.ZeroRedundancyOptimizer does with an optimizer of spillway.torch as its `optimizer_class`.

It gives each rank some of the parameters, each as a whole, and an optimizer of its own for them, `optim`. Training needs
nothing more. `consolidate_state_dict` gathers the state of all ranks, as torch.optim's entries, in the memory of one of them;
`state_dict` and `load_state_dict` are of these entries, whatever the ranks' number. Each rank's own
`optim.state_dict()` names a commit instead, which moves no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import spillway


def _is_ours(zero: Any) -> bool:
    from spillway.torch._state_dicts import StateDicts  # which imports what imports this module

    return isinstance(getattr(zero, "optim", None), StateDicts)  # overlap_with_ddp makes it late


def consolidate(method: Callable[..., Any], zero: Any, to: int = 0) -> None:
    """ZeroRedundancyOptimizer.consolidate_state_dict."""
    if not _is_ours(zero):
        return method(zero, to)
    zero.optim.state_dict = zero.optim.full_state_dict  # the dict that names a commit has none of the state
    try:
        return method(zero, to)
    finally:
        del zero.optim.state_dict


def state_dict(method: Callable[..., Any], zero: Any) -> dict[str, Any]:
    """ZeroRedundancyOptimizer.state_dict, whose groups have the arguments of `optimizer_class`."""
    from spillway.torch._state_dicts import ARGUMENTS

    whole = method(zero)
    if _is_ours(zero):
        whole["param_groups"] = [{word: value for word, value in group.items() if word not in ARGUMENTS}
                                 for group in whole["param_groups"]]
    return whole


def load(method: Callable[..., Any], zero: Any, whole: dict[str, Any]) -> None:
    """ZeroRedundancyOptimizer.load_state_dict. Each rank writes the state of its own parameters into its engine."""
    if not _is_ours(zero):
        return method(zero, whole)
    sizes, given = ([len(group["params"]) for group in groups] for groups in (zero.param_groups, whole["param_groups"]))
    if sizes != given:
        raise spillway.InvalidArgument(f"the state dict has groups of {given} parameters, and the optimizer of {sizes}")
    positions = {param: position for position, param in
                 enumerate(param for group in zero.param_groups for param in group["params"])}
    groups = [{**of, "params": [positions[param] for param in mine["params"]]}
              for of, mine in zip(whole["param_groups"], zero.optim.param_groups)]
    mine = {position for group in groups for position in group["params"]}
    zero.optim.load_state_dict({"state": {position: of for position, of in whole["state"].items() if position in mine},
                                "param_groups": groups})
    return method(zero, {**whole, "state": {}})  # the groups' values
