# SPDX-License-Identifier: Apache-2.0
"""The record of the updates that an optimizer with update="backward" has made since step()."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import spillway
import torch
from spillway.torch._gathered import Gathered, Update
from spillway.torch._known import Known
from spillway.torch._shards import local_of
from spillway.torch._used_gradient import UsedGradient


class UpdatesInBackward:
    """The updates of one optimizer since step(), and those that wait for a piece (_gathered.py). `update` does the latter."""

    def __init__(self, update: Callable[[Sequence[Update]], None]):
        self._gathered = Gathered(update)
        self._begun: set[int] = set()  # ids of backwards that updated parameters
        self._ended: set[int] = set()  # those of them that have ended without an error
        # The updated parameters: each weight's autograd version after it, and the group's values in it.
        self._made: dict[torch.Tensor, tuple[int, dict[str, float]]] = {}

    @property
    def any_made(self) -> bool:
        return bool(self._made)

    def made(self, param: torch.Tensor, version: int, values: dict[str, float]) -> None:
        """Records an update with these values of the group, after which the weight has this autograd version."""
        self._made[param] = (version, values)

    def used(self, known: Known) -> None:
        """Records that the present backward has used the parameter's gradient, or has made it wait."""
        known.updated_in = backward = torch._C._current_graph_task_id()
        if backward not in self._begun:
            self._begun.add(backward)
            ended = self._ended
            torch.autograd.Variable._execution_engine.queue_callback(lambda: ended.add(backward))

    def gather(self, group: dict[str, Any], param: torch.Tensor, gradient: torch.Tensor) -> None:
        """Makes an update wait for others."""
        self._gathered.add(group, param, gradient)

    def finish(self) -> None:
        """Does the updates that a failed backward left waiting."""
        self._gathered.finish()

    def drop(self) -> None:
        """Drops the updates that wait, because the state that they belong to is gone."""
        self._gathered.drop()

    def forget(self) -> None:
        """Forgets what backwards have done since step()."""
        for each in (self._begun, self._ended, self._made):
            each.clear()

    def check_not_used(self, known: Known) -> None:
        """Raises FailedPrecondition if a backward has used the parameter's gradient since step(), and did not fail."""
        if known.updated_in in self._ended:
            raise spillway.FailedPrecondition(
                f"parameter {known.name} was updated in an earlier backward, and step() was not called since: update='backward' "
                "uses every gradient as soon as backward has computed it, so none can be dropped. Call step() after each "
                "backward, freeze the parameter with requires_grad_(False) during another model's backward, or use "
                "update='step'")

    def end(self, groups: Sequence[Mapping[str, Any]], known: Mapping[torch.Tensor, Known],
            values: Callable[[Any], dict[str, float]]) -> bool:
        """Ends the step of parameters with these groups, each of which has these values now. Returns whether there were
        updates. Raises FailedPrecondition if the script has changed what they used, or has gradients that none used."""
        self.finish()
        self._check_unchanged(groups, known, values)
        _check_no_others(known, [param for group in groups for param in group["params"]])
        for param in known:  # after the checks, so that a step() that raised can be repeated
            if isinstance(local_of(param.grad), UsedGradient):
                param.grad = None
        if self._begun - self._ended:
            warnings.warn("spillway.torch: a backward that failed had updated some of the parameters. With update='backward' "
                          "these updates stay, so that those parameters have one more than the others", stacklevel=7)
        any_made = self.any_made
        self.forget()
        return any_made

    def _check_unchanged(self, groups: Sequence[Mapping[str, Any]], known: Mapping[torch.Tensor, Known],
                         values: Callable[[Any], dict[str, float]]) -> None:
        """Raises FailedPrecondition if the script has changed what the last backward has used for its updates: gradients,
        weights or the values of groups."""
        for group in groups:
            now = values(group)
            for param in group["params"]:
                if param not in known or known[param].updated_in not in self._ended:
                    continue
                version, then = self._made[param]
                what = next((name for name, value in then.items() if value != now[name]), "")
                if not isinstance(local_of(param.grad), UsedGradient):
                    what = "its gradient was dropped or replaced"
                elif what:
                    what = f"{what} of its group was changed from {then[what]} to {now[what]}"
                elif param._version != version:
                    what = "the weight was written"
                else:
                    continue
                self._begun -= self._ended
                self._ended.clear()  # the next step() goes on
                raise spillway.FailedPrecondition(
                    f"parameter {known[param].name}: {what} between backward and step(), after update='backward' had made the "
                    "update. Change such things before backward or after step(), or use update='step'. The update stays: call "
                    "step() again to go on with it, or load a state dict")


def _check_no_others(known: Mapping[torch.Tensor, Known], in_groups: Iterable[torch.Tensor]) -> None:
    """Raises FailedPrecondition if a parameter has a gradient that no update used."""
    for param in in_groups:
        if param in known and param.grad is not None and not isinstance(local_of(param.grad), UsedGradient):
            raise spillway.FailedPrecondition(
                f"parameter {known[param].name} has a gradient that no backward gave, or was frozen when the optimizer took it "
                "up, or its group was removed during the backward: with update='backward' nothing else is used. Set its "
                ".grad to None")
