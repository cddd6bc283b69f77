# SPDX-License-Identifier: Apache-2.0
"""Saves and loads state dicts: those that name a commit, and torch.optim's own."""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import math
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import spillway
import torch
from spillway.torch import _commits, _ranks, _state, _together
from spillway.torch._backward import UpdatesInBackward
from spillway.torch._grad_mode import without_gradients
from spillway.torch._interrupts import later_interrupts
from spillway.torch._known import Known, Layout
from spillway.torch._libraries import wrap
from spillway.torch._moments import Moments, fp32
from spillway.torch._run import Run
from spillway.torch._shards import is_sharded, like, local_of, offset_of, part_of
from spillway.torch._streamed import MASTER, LoadedEntry, entry, is_entry, is_own
from spillway.torch._tensor import EngineTensor

# Arguments that are the optimizer's and no group's. ZeroRedundancyOptimizer puts all arguments into the groups.
ARGUMENTS = ("store", "pinned", "state_format", "gradients", "update", "threads", "checkpoint")
_MINE = _commits.MINE  # the key that marks a state dict of spillway.torch
# Options that groups of older state dicts do not have, with the values that they had. torch.optim adds the same.
_LATER = {"amsgrad": False, "nesterov": False, "dampening": 0, "centered": False, "maximize": False, "foreach": None,
          "fused": None, "capturable": False, "differentiable": False}
_NOT_LOADED = "a state dict was not loaded whole"  # why the state is of no one step
# A state dict has this in place of each parameter's state. Without it torch.optim's Adam and AdamW would load the dict and
# begin anew without a word; with it they raise.
_ELSEWHERE = "the state is in the store that this state dict names: load the dict into an optimizer of spillway.torch"


class NoState(collections.defaultdict):
    """The `state` of an optimizer whose state rests in the engine: it has no items. Code that asks whether there is state, as
    torch.distributed.checkpoint does before it makes some by a step, that reads a parameter's, or that would change it, as
    clear() does to begin anew, raises Unimplemented. If the optimizer's checkpoints are of tensors, or of commits of all ranks,
    there is state, and a parameter's is what state_dict() has of it."""

    def __init__(self, optimizer: StateDicts):
        super().__init__()
        self._optimizer = weakref.ref(optimizer)

    def __bool__(self) -> bool:
        self._of()
        return True

    def __missing__(self, key: Any) -> Any:
        optimizer = self._of()
        return optimizer.entries_of(key) if optimizer.checkpoint == "tensors" else optimizer.mark_of(key)

    def _of(self) -> StateDicts:
        optimizer = self._optimizer()
        if optimizer is None or optimizer.checkpoint != "tensors" and not optimizer.commits_on_all:
            raise self.error()
        return optimizer

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self.error()

    # A dict's methods do not call each other.
    clear = pop = popitem = setdefault = update = __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> Any:
        return dict, ()

    @staticmethod
    def error() -> spillway.Unimplemented:
        return spillway.Unimplemented(
            "the state of an optimizer of spillway.torch rests in the engine, so its .state has none: call state_dict(), "
            "which names a commit, or full_state_dict(). To drop the state, call load_state_dict({'state': {}, "
            "'param_groups': optimizer.state_dict()['param_groups']}). torch.distributed.checkpoint can save it with "
            "checkpoint='tensors'")


KINDS = ("tensors", "commit")


class StateDicts(Moments):
    """The part of an OffloadedOptimizer that saves and loads its state."""

    run: Run
    loading: object = None  # stands for the state dict whose tensors were written last
    half_done: str  # why parts of the state are of different steps; empty: all of it is of one step
    _in_backward: UpdatesInBackward
    _kind: str
    _prefix: str
    _known: dict[torch.Tensor, Known]
    _no_state: NoState | None = None
    _checkpoint: str | None

    @property
    def state(self) -> Any:
        # torch.distributed.checkpoint asks for this before it saves and loads. From a flattened dict it then takes the keys
        # that the groups have.
        for group in self.param_groups if self._no_state is not None else ():
            if self.checkpoint == "commit" and self.commits_on_all:
                group.setdefault(_MINE, "")
            else:
                group.pop(_MINE, None)
        return self._no_state

    @state.setter
    def state(self, value: Any) -> None:
        if self._no_state is not None:
            raise NoState.error()
        self._no_state = NoState(self)  # torch.optim's constructor has assigned an empty dict

    @property
    def checkpoint(self) -> str:
        """What state_dict() returns from now on. "tensors": torch.optim's dict, whose tensors are read from the store when they
        are written to a file, and written there when they are loaded, which is the default if a parameter is sharded over
        ranks. "commit": a dict without tensors that names a commit of the store. None sets the default."""
        default = "tensors" if any(map(is_sharded, self._params())) else "commit"
        return self._checkpoint or default

    @checkpoint.setter
    def checkpoint(self, kind: str | None) -> None:
        if kind is not None and kind not in KINDS:
            raise spillway.InvalidArgument(f"checkpoint is {kind!r}: it must be one of {', '.join(KINDS)}, or None")
        self._checkpoint = kind

    @property
    def commits_on_all(self) -> bool:
        """Whether a dict that names commits names one of each rank: the ranks have parts of the state."""
        return _ranks.is_joined() and any(map(is_sharded, self._params()))

    def _take_up(self) -> list[torch.Tensor]:
        """Takes up the parameters that other code has put in the places of others."""
        raise NotImplementedError

    def _check_group(self, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _begin_anew(self, prefix: str, names: dict[torch.Tensor, str], layouts: Mapping[torch.Tensor, Layout]) -> None:
        """Registers the state of these parameters anew, as before any step, under the names that a state dict gives it."""
        raise NotImplementedError

    def _add_state(self, param: torch.Tensor, known: Known, layout: Layout) -> None:
        """Registers the state of a parameter that has none, as before any step."""
        raise NotImplementedError

    def _forget(self, known: Known) -> None:
        """Undoes what taking up a parameter has done."""
        raise NotImplementedError

    def _drop_state(self, known: Known) -> None:
        """Unregisters the state of a parameter."""
        raise NotImplementedError

    def _grow(self, param: torch.Tensor, known: Known, moments: tuple[str, ...]) -> None:
        """Gives the state of a parameter other moments. What it has stays."""
        raise NotImplementedError

    def layouts_in(self, kept: dict[str, Any], prefix: str, names: dict[torch.Tensor, str],
                   usual: Mapping[torch.Tensor, tuple[str, ...]]) -> dict[torch.Tensor, Layout]:
        """Returns the layout of the state of each of these parameters that a commit has."""
        raise NotImplementedError

    def is_laid_out(self, layouts: Mapping[torch.Tensor, Layout]) -> bool:
        """Whether there is state of these parameters and of no others, in these layouts."""
        raise NotImplementedError

    def _in_use(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which the library leases state: a commit or load of another thread waits until it is over."""
        return self.run.leasing.operation(lambda _: None)

    def check_whole(self) -> None:
        """Raises FailedPrecondition if parts of the state are of different steps, other than by a backward that updates."""
        if self.half_done:
            raise spillway.FailedPrecondition(f"part of the optimizer's state is of another step, since {self.half_done}: "
                                              "go back to a checkpoint, or make the optimizer anew")

    @property
    def is_of_one_step(self) -> bool:
        """Whether all parts of the state are of the step that step() ended last."""
        return not self.half_done and not self._in_backward.any_made

    def _check_of_one_step(self) -> None:
        self.check_whole()
        self._check_between_steps()

    def _check_between_steps(self) -> None:
        if self._in_backward.any_made:
            raise spillway.FailedPrecondition(
                "part of the optimizer's state is of another step, since the last backward has not ended, or step() was not "
                "called since: call step(), or load a state dict")

    def check_no_backward(self) -> None:
        """Raises FailedPrecondition within a backward if that updates parameters of this optimizer."""
        raise NotImplementedError

    @_ranks.names_rank
    def state_dict(self) -> dict[str, Any]:
        """With checkpoint="tensors": returns torch.optim's state dict, and `master_weight` of 16-bit parameters. Its tensors
        are DTensors where the parameters are, and their values stay in the store: torch.distributed.checkpoint reads one after
        another. They are those of the moment in which they are read. What loads into them writes into the store, and
        load_state_dict() with the same dict must follow. State of a parameter before its first step is zeros. Only a centered
        RMSprop's values are in memory.

        With checkpoint="commit": commits, and returns a dict that names the commit, of plain types and without state;
        torch.optim's Adam and AdamW raise if they are to load it. If parameters are sharded over ranks, all ranks commit, and
        must call this together: the dict names the commits of all, and is the same on each. The commit is kept until this
        process, or one that has loaded a commit of the store, has made two newer ones, and as long as it is the last one that
        this optimizer has loaded. A line on stderr says when it is dropped. If the run has a Checkpoints, that decides. Without
        a store, or before the first step, nothing is committed. Raises FailedPrecondition within a backward that updates
        parameters, as when a signal's handler calls it there, and between such a backward and step(), also if the backward was
        broken off."""
        wrap()  # accelerate calls this before a checkpoint, if it was imported late
        self._take_up()
        for hook in list(self._optimizer_state_dict_pre_hooks.values()):
            hook(self)
        self.run.check_no_backward()
        if self.checkpoint == "commit" and self.commits_on_all:
            state_dict = _commits.state_dict(self)
        else:
            self.finish_updates()
            state_dict = self._of_commit() if self.checkpoint == "commit" else self._of_tensors()
        for hook in list(self._optimizer_state_dict_post_hooks.values()):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    def _of_commit(self) -> dict[str, Any]:
        with self.run.leasing.none():  # the description and the commit are of the same step
            self._check_of_one_step()
            state_dict = _marked(self.described())
            state_dict[_MINE] |= copy.deepcopy(self.run.keep_commit())
        if self.run.store is None and self.run.has_stepped:
            warnings.warn("spillway.torch: the state of this optimizer is in memory alone, so a saved state_dict() cannot be "
                          "loaded by another process: give it store='FOLDER', or save full_state_dict()", stacklevel=4)
        return state_dict

    def keep_commit(self) -> dict[str, Any]:
        """Commits for a dict of all ranks, and returns what names the commit, which has state of every parameter that the dict
        has. The caller must call Run.drop_old()."""
        with self.run.leasing.none():
            self._check_of_one_step()
            for each in self.run.optimizers():  # the commit, and its description, is of all of them
                each._check_described()
                if each.commits_on_all and each.checkpoint == "commit" and self.run.has_stepped:
                    for param in each.with_state().values():
                        each._make_state(param)
            return self.run.keep_commit(drops_old=False)

    def _check_described(self) -> None:
        """Raises InvalidArgument if the store cannot say what a commit has of this optimizer."""
        for number, group in enumerate(self._packed_groups()):
            for word, value in group.items():
                try:
                    json.dumps(value, default=lambda of: of.item())
                except Exception:
                    raise spillway.InvalidArgument(
                        f"{word} of group {number} is of type {type(value).__name__}, which the store cannot describe beside a "
                        "commit: leave it out, or save with checkpoint='tensors'") from None

    def mark_of(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns what a dict of all ranks, which names commits, has in place of a parameter's state: its position among the
        optimizer's. It is a tensor: torch.distributed.checkpoint asks for the device of some tensor of the state."""
        position = next(index for index, each in enumerate(self._params()) if each is param)
        return {_MINE: torch.tensor([position], device=local_of(param).device)}

    @without_gradients
    def _of_tensors(self) -> dict[str, Any]:
        self._check_between_steps()  # a dict into which a load was broken off can be loaded again
        state_dict = object()
        return {"state": {index: self.entries_of(param, state_dict) for index, param in self.with_state().items()},
                "param_groups": self.torch_groups()}

    def with_state(self) -> dict[int, torch.Tensor]:
        """Returns the parameters of which a dict of all ranks has state, by their position among the optimizer's."""
        return {index: param for index, param in enumerate(self._params())
                if param in self._known and (param.requires_grad or self._known[param].step > 0)}

    @without_gradients
    def entries_of(self, param: torch.Tensor, state_dict: object = None) -> dict[str, torch.Tensor]:
        """Returns what torch.optim has as the state of a parameter, as tensors that are read when they are used. Registers its
        state, if it has none yet: torch.optim has it before the first step where torch.distributed.checkpoint loads it.
        `state_dict` stands for the dict that they are for: after a load that was broken off, they are read only in that one."""
        self._take_up()
        state_dict = state_dict or object()
        known, group = self._make_state(param)
        if (group.get("dampening") and group.get("momentum") and not known.has_momentum
                and any(each.has_momentum for each in self._known.values())):
            raise spillway.FailedPrecondition(
                f"parameter {known.name} has had no gradient yet, so it has no momentum buffer, and with dampening a buffer of "
                "zeros is another state: save when each parameter had a gradient, or use checkpoint='commit'")
        entries = {} if self._kind == "sgd" else {"step": _step(known)}
        moments = known.layout.moments if known.has_state else self.moments_of(group)
        if "grad_var" in moments and known.has_elements:  # it is not torch.optim's, which is computed from two of ours
            with self._in_use():
                values = self._read_moments(param, known)
            entries |= {name: like(param, value) for name, value in values.items() if name != "grad_var"}
        else:
            shapes = self._moment_shapes(param, known, moments)
            entries |= {name: entry(self, param, known, name, shape, state_dict) for name, shape in shapes.items()}
        if known.has_masters:
            entries[MASTER] = entry(self, param, known, MASTER, known.shape, state_dict)
        return entries

    def _make_state(self, param: torch.Tensor) -> tuple[Known, dict[str, Any]]:
        """Registers the state of a parameter, if it has none yet and this rank has elements of it. Returns its record and its
        group."""
        group = next((each for each in self.param_groups if any(param is other for other in each["params"])), None)
        known = self._known.get(param)
        if known is None or group is None:
            raise spillway.InvalidArgument(f"a parameter of {tuple(param.shape)} is not the optimizer's, so it has no state")
        if known.has_elements and not known.has_state:
            with self._in_use():
                self._add_state(param, known, Layout(None, self.moments_of(group)))
        return known, group

    def read_entry(self, param: torch.Tensor, known: Known, name: str) -> torch.Tensor:
        """Returns a moment, or the master weights, of a parameter in fp32, in memory."""
        with self._in_use():
            if name in known.loaded:
                return known.loaded[name].read()
            if name == MASTER:
                return self._read_masters(param, known)
            if (spec := self._spec_in_fp32(known, name)) is not None:
                return self._engine_state.read(spec["id"], self._moment_shapes(param, known, known.layout.moments)[name])
            return self._read_moments(param, known)[name]

    def write_entry(self, param: torch.Tensor, known: Known, name: str, values: torch.Tensor) -> None:
        """Writes a moment, or the master weights, of a parameter. The state is of no one step then, until load_state_dict()."""
        self.run.has_changed()
        self.half_done = self.half_done or _NOT_LOADED
        with self._in_use():
            if self._format in ("8bit", "compact"):
                if name not in known.loaded:
                    full_name = f"{self._prefix}/{known.name}/loaded/{name}"
                    known.loaded[name] = LoadedEntry(self._engine_state, full_name, known.shape, self.run.pinned_bytes)
                known.loaded[name].write(values)
            elif name == MASTER:
                self._write_masters(param, known, values)
            elif (spec := self._spec_in_fp32(known, name)) is not None:
                self._engine_state.write(spec["id"], values)
            else:
                self._write_moments(param, known, {**self._read_moments(param, known), name: values})

    def _spec_in_fp32(self, known: Known, name: str) -> dict[str, Any] | None:
        """Returns the name and id of the engine's tensor that holds a moment as it is; None: there is none."""
        if self._format != "fp32":
            return None
        tensors = self._engine_state.tensors(known.number)
        return next((each for each in tensors if each["name"].endswith(f"/{name}")), None)

    def described(self) -> dict[str, Any]:
        """Returns what state_dict() returns, except for what names the commit."""
        self._take_up()
        params = self._params()
        steps = [[self._known[param].step if param in self._known else 0 for param in group["params"]]
                 for group in self.param_groups]
        momentum = [param in self._known and self._known[param].has_momentum for param in params]
        return {"state": {}, "param_groups": self._packed_groups(),
                _MINE: {"rule": self._kind, "format": self._format, "name": self._prefix, "steps": steps,
                        "parameters": [self._known[param].name if param in self._known else "" for param in params],
                        "momentum": momentum, "shapes": [list(local_of(param).shape) for param in params],
                        **(self._shards() if self.commits_on_all else {})}}

    def _shards(self) -> dict[str, Any]:
        """Returns what says of which elements of the parameters this rank has state, and in which tensors of the store: from
        that spillway.torch.portable makes the state of whole parameters."""
        params = self._params()
        tensors = [self.run.engine.spec(id) for param in params if param in self._known for id in self._known[param].ids]
        return {"rank": _ranks.rank(), "global_shapes": [list(param.shape) for param in params], "tensors": tensors,
                "offsets": [list(offset_of(param)) for param in params],
                "dtypes": [str(param.dtype).removeprefix("torch.") for param in params]}

    def _packed_groups(self) -> list[dict[str, Any]]:
        packed, first = [], 0
        for group in self.param_groups:
            of = {key: value for key, value in group.items() if key not in ("params", _MINE, *ARGUMENTS)}
            of["params"] = list(range(first, first + len(group["params"])))
            first += len(group["params"])
            packed.append(of)
        return packed

    def torch_groups(self) -> list[dict[str, Any]]:
        """Returns the groups with what torch.optim's have."""
        more = {"decoupled_weight_decay": self._kind == "adamw"} if self._kind in ("adamw", "adam") else {}
        return [{**more, **group} for group in self._packed_groups()]

    @_ranks.names_rank
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a dict that state_dict() returned, which brings the store to that commit, or one of torch.optim's own, whose
        tensors, whole or sharded in any way, are written into the engine."""
        self._take_up()
        for hook in list(self._optimizer_load_state_dict_pre_hooks.values()):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        if missing := [word for word in ("state", "param_groups") if word not in state_dict]:
            raise spillway.InvalidArgument(f"this is no optimizer's state dict: it has no {missing[0]}")
        if not isinstance(state_dict["state"], Mapping):
            raise spillway.InvalidArgument("this is no optimizer's state dict: its state is a "
                                           f"{type(state_dict['state']).__name__}, and should be a dict")
        groups = copy.deepcopy(state_dict["param_groups"])
        for group in groups:
            for word, value in _LATER.items():
                if word in self.defaults:
                    group.setdefault(word, value)
            if missing := [word for word in self.defaults if word not in group]:
                raise spillway.InvalidArgument(f"the state dict is of another optimizer: its groups have no {missing[0]}, "
                                               f"which {type(self).__name__} needs")
            self._check_group({**self.defaults, **group})
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            raise spillway.InvalidArgument(
                f"the state dict has groups of {[len(group['params']) for group in groups]} parameters, and the optimizer "
                f"of {[len(group['params']) for group in self.param_groups]}")
        mine, of_all = state_dict.get(_MINE), _commits.taken(groups)
        if mine is None and of_all is None and any(isinstance(of, dict) and _MINE in of for of in state_dict["state"].values()):
            raise spillway.InvalidArgument(f"the state dict has lost its entry '{_MINE}', which names the commit that has the "
                                           "state: load the whole dict that state_dict() returned")
        self._in_backward.drop()
        if of_all is not None and not _ranks.is_joined():
            raise spillway.FailedPrecondition(
                f"the state dict names the commits of {len(of_all.ranks)} ranks, and torch.distributed joins none here: load "
                "it with as many ranks, or make it portable by python -m spillway.torch.portable")
        if of_all is not None:
            self._check_order(self._by_position(state_dict["state"], groups))
            with later_interrupts():
                _commits.go_to_all(self, of_all, groups)
        elif mine is None:
            self._load_tensors(self._by_position(state_dict["state"], groups), groups)
        else:
            with later_interrupts():
                (_commits.go_to(self, mine, groups) if _together.is_several() else self.go_to(mine, groups))
        for group, given in zip(self.param_groups, groups):
            group.update({key: value for key, value in given.items() if key not in ("params", "param_names", *ARGUMENTS)})
        for known in self._known.values():
            known.version = -1  # the next step compares the weight with its rounded master weight
        self.half_done, self.loading = "", None
        for known in self._known.values():
            known.loaded.clear()
        self._in_backward.forget()
        for hook in list(self._optimizer_load_state_dict_post_hooks.values()):
            hook(self)

    def _check_order(self, marks: Mapping[int, Any]) -> None:
        """Raises InvalidArgument if a dict that names commits has the parameters in another order than the optimizer:
        torch.distributed.checkpoint puts state where a parameter's name is, and the commit has it by position."""
        for position, mark in marks.items():
            if isinstance(mark, Mapping) and _MINE in mark and int(mark[_MINE]) != position:
                raise spillway.InvalidArgument(
                    f"the state dict's parameter {int(mark[_MINE])} is parameter {position} of the optimizer: give the "
                    "optimizer its groups and parameters in the order that they had, or load a checkpoint of tensors")

    def _params(self) -> list[torch.Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    def go_to(self, mine: dict[str, Any], groups: list[dict[str, Any]], is_here: bool = True) -> None:
        """Brings the state to the commit that a state dict of spillway.torch names, whose groups these are. Checks come first.
        If another rank's store has the commit (`is_here` is False), makes room for the state alone: the caller must write its
        bytes."""
        if (mine["rule"], mine["format"]) != (self._kind, self._format):
            raise spillway.InvalidArgument(f"the state dict is of {mine['rule']} in {mine['format']}, and the optimizer "
                                           f"is {self._kind} in {self._format}")
        if "parameters" not in mine:
            raise spillway.InvalidArgument("the state dict was made by an older version of spillway.torch, which named state "
                                           "otherwise: load it there, and save full_state_dict()")
        params = self._params()
        for param, shape in zip(params, mine["shapes"]):
            if list(local_of(param).shape) != shape:
                name = self._known[param].name if param in self._known else "without elements"
                raise spillway.InvalidArgument(f"parameter {name} has the shape {tuple(local_of(param).shape)}, and the state "
                                               f"dict's has {tuple(shape)}")
        if is_here:
            self.run.check(mine)
        names = {param: name for param, name in zip(params, mine["parameters"]) if param in self._known}
        steps = dict(zip(params, (step for group in mine["steps"] for step in group)))
        usual = dict(zip(params, (self.moments_of(group) for group in groups for _ in group["params"])))
        is_renamed = mine["name"] != self._prefix or any(self._known[param].name != name for param, name in names.items())
        is_new = mine.get("new")
        if is_renamed and self.run.store is None and not is_new and is_here:
            raise spillway.FailedPrecondition(f"the state dict is of another optimizer of this run ('{mine['name']}'), whose "
                                              "state is in memory alone: load it into that one, or save full_state_dict()")
        there = {} if is_new else self.layouts_in(mine, mine["name"], names, usual)
        # A frozen parameter has no state before its first step. Commits of earlier versions have it nevertheless.
        layouts = {param: layout for param, layout in there.items() if param.requires_grad or steps[param] > 0}
        if not is_here:
            layouts = {param: Layout(None, layout.moments) for param, layout in layouts.items()}
        # After a load that failed, neither the run's commit nor the tiles tell what the state is.
        is_laid_out = is_here and not self.half_done and self.is_laid_out(layouts)
        if is_renamed or not is_laid_out or not self.run.is_at(mine):
            if not is_new:
                self.run.check_nothing_waits()
            self.run.check_free(mine["name"], self)
            self.run.has_changed()
            # If the budget was another when it was saved.
            is_recut = any(layout.tile_rows != _state.tile_rows_of(local_of(param).shape, self.run.pinned_bytes)
                                          for param, layout in layouts.items())
            if is_renamed or not is_laid_out:
                self.half_done = _NOT_LOADED
                for param in self._known.keys() - set(params):  # its group was removed; the dict may use its name
                    self._forget(self._known.pop(param))
                self._begin_anew(mine["name"], names, layouts)
            if not is_new and is_here:
                self.run.go_to(mine, self)
                self._forget_in_store([names[param] for param in there.keys() - layouts.keys()])
                if is_recut:
                    self.run.recut(self)
                for param in self._known:
                    if isinstance(local_of(param), EngineTensor):  # autograd must see that it has changed
                        torch.autograd.graph.increment_version(param)
        if not is_new and is_here:
            self.run.has_loaded(mine, mine["name"])
        self.run.has_stepped |= not is_new
        # Older versions, which did not record this, had momentum in all updates or in none.
        momentum = dict(zip(params, mine.get("momentum", ("momentum_buffer" in usual[param] for param in params))))
        for param in names:
            self._known[param].step = steps[param]
            self._known[param].has_momentum = momentum[param] and steps[param] > 0

    def _forget_in_store(self, names: list[str]) -> None:
        """Removes the state of parameters that is not registered from the store: the next commit does not have it."""
        for name in names:
            for suffix in _state.SUFFIXES:
                with contextlib.suppress(spillway.NotFound):
                    self.run.engine.forget(f"{self._prefix}/{name}/{suffix}")

    @_ranks.names_rank
    def full_state_dict(self) -> dict[str, Any]:
        """Returns torch.optim's state dict: every moment as a tensor in memory, and `master_weight` of 16-bit parameters. Of a
        parameter that is sharded over ranks they are sharded, too.
        Values that the state's format has rounded are returned as rounded. Raises FailedPrecondition if an update or a load has
        failed midway, within a backward that updates, or between that and step()."""
        self._take_up()
        self.check_no_backward()
        self.finish_updates()
        self._check_of_one_step()
        state: dict[int, dict[str, torch.Tensor]] = {}
        of_groups = [group for group in self.param_groups for _ in group["params"]]
        for index, (param, group) in enumerate(zip(self._params(), of_groups)):
            known = self._known.get(param)
            if known is not None and known.step > 0:
                values = self._in_memory(param, known, group)
                state[index] = {"step": _step(known), **{name: like(param, value) for name, value in values.items()}}
        return {"state": state, "param_groups": self._packed_groups()}

    def _in_memory(self, param: torch.Tensor, known: Known, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Returns this rank's parts of the moments, and of the master weights of a 16-bit parameter, in memory."""
        if not known.has_elements:
            shapes = self._moment_shapes(param, known, self.moments_of(group))
            shapes |= {MASTER: known.shape} if known.has_masters else {}
            return {name: torch.empty(shape, dtype=torch.float32, device="cpu") for name, shape in shapes.items()}
        with self._in_use():
            values = self._read_moments(param, known)
            if self._kind == "sgd" and not known.has_momentum:
                values.pop("momentum_buffer", None)  # torch.optim begins it with the next gradient
            if known.has_masters:
                values[MASTER] = self._read_masters(param, known)
        return values

    def _by_position(self, state: dict[Any, dict[str, Any]], groups: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Returns the state of each parameter by its position among the optimizer's. The ids in the groups of the state dict,
        which may be numbers or names, say which state belongs to which. Raises InvalidArgument if an id names two
        parameters, or the state has an id that no group has."""
        ids = [id for group in groups for id in group["params"]]
        positions = {id: position for position, id in enumerate(ids)}
        if len(positions) < len(ids):
            twice = next(id for position, id in enumerate(ids) if positions[id] != position)
            raise spillway.InvalidArgument(f"the groups of the state dict have two parameters of the id {twice!r}")
        if unknown := [id for id in state if id not in positions]:
            raise spillway.InvalidArgument(f"the state dict has state of the parameter {unknown[0]!r}, and none of its groups "
                                           f"has that id: their {len(ids)} ids begin with {', '.join(map(repr, ids[:5]))}")
        return {positions[id]: of for id, of in state.items()}

    def _check_given(self, param: torch.Tensor, known: Known, given: dict[str, Any], moments: tuple[str, ...]) -> None:
        """Raises InvalidArgument if what a dict gives this rank of a parameter's state is not of these moments, or not of its
        shape, or not of a number of steps."""
        step = given.get("step", 1)
        is_number = isinstance(step, (int, float)) or isinstance(step, torch.Tensor) and step.numel() == 1
        if not is_number or not 0 <= step < math.inf:
            raise spillway.InvalidArgument(f"step of parameter {known.name} is {step}: it must be a number of at least 0")
        shapes = self._moment_shapes(param, known, moments)
        for name, shape in {**shapes, MASTER: known.shape, "grad_var": known.shape}.items():
            # A rule whose momentum was 0 until then has no buffer.
            if given and given.get(name) is None and name in shapes and name != "momentum_buffer":
                raise spillway.InvalidArgument(f"the state dict has no {name} of parameter {known.name}")
            if given.get(name) is not None and not isinstance(given[name], torch.Tensor):
                raise spillway.InvalidArgument(f"{name} of parameter {known.name} is a {type(given[name]).__name__}, and "
                                               "should be a tensor")
            if given.get(name) is not None and given[name].shape != shape:
                raise spillway.InvalidArgument(f"{name} of parameter {known.name} has the shape {tuple(given[name].shape)}, "
                                               f"and should have {tuple(shape)}")
            if given.get(name) is not None and not is_entry(given[name]):
                _state.address_of(given[name], f"{name} of parameter {known.name}")

    def _moments_in(self, group: dict[str, Any], given: dict[str, Any]) -> tuple[str, ...]:
        """Returns the moments that a parameter of this group needs, and those that a state dict gives it."""
        there = tuple(name for name in ("momentum_buffer", "max_exp_avg_sq") if given.get(name) is not None)
        return self.joined_moments(there, self.moments_of(group))

    @without_gradients
    def _load_tensors(self, state: dict[int, dict[str, Any]], groups: list[dict[str, Any]]) -> None:
        of_groups = [group for group in groups for _ in group["params"]]
        found: list[tuple[torch.Tensor, Known, dict[str, Any], tuple[str, ...]]] = []
        added: list[Known] = []
        try:
            for index, (param, group) in enumerate(zip(self._params(), of_groups)):  # all is checked before anything is written
                known = self._known.get(param)
                if known is None:
                    continue
                given = {name: part_of(param, value) for name, value in (state.get(index) or {}).items()}
                if not (given or known.has_state):
                    continue
                moments = self._moments_in(group, given)
                if known.has_elements and not known.has_state:
                    self._add_state(param, known, Layout(None, moments))
                    added.append(known)
                self._check_given(param, known, given, self.moments_of(group))
                for name, value in given.items():
                    if is_own(value, known, name):
                        local_of(value)._home.check_step()
                found.append((param, known, given, moments))
        except BaseException:
            for known in added:
                self._drop_state(known)
            raise
        self.run.has_changed()
        self.half_done = _NOT_LOADED
        for param, known, given, moments in found:
            if known.has_elements:
                self._load_one(param, known, given, moments)
            known.step = int(given.get("step", 1)) if given else 0  # torch.optim.SGD records none
            known.has_momentum = given.get("momentum_buffer") is not None
            for name, value in given.items():
                if is_own(value, known, name):
                    local_of(value)._home.step = known.step
        self.run.has_stepped |= any(known.step > 0 for known in self._known.values())

    def _load_one(self, param: torch.Tensor, known: Known, given: dict[str, Any], moments: tuple[str, ...]) -> None:
        """Writes the state that a dict gives this rank of a parameter. Entries of this very state are written already."""
        loaded, known.loaded = known.loaded, {}
        own = {name for name, value in given.items() if is_own(value, known, name) and name not in loaded}
        given = {name: loaded[name].read() if is_own(value, known, name) and name in loaded else value
                 for name, value in given.items()}
        if not known.has(moments) and own:
            self._grow(param, known, moments)
        elif not known.has(moments):
            layout = Layout(known.layout.tile_rows, self.joined_moments(known.layout.moments, moments))
            self._drop_state(known)
            self._add_state(param, known, layout)
        if known.has_masters and MASTER not in own:
            masters = given.get(MASTER)
            self._write_masters(param, known, fp32(local_of(param).clone() if masters is None else masters))
        names = self._moment_shapes(param, known, known.layout.moments)
        if not own >= set(names):
            self._write_moments(param, known, {name: value.clone() if is_entry(value) else value
                                               for name, value in given.items() if name in names or name == "grad_var"})


def last_state_dict(run: Run, name: str = "optimizer") -> dict[str, Any]:
    """Returns the dict of the newest commit, as state_dict() returned it, if the file with it is lost: tuples are lists, and
    tensors are numbers. `name`: of the optimizer: "optimizer", then "optimizer.1" and so on, in the order in which those of
    the run were made. Raises NotFound if the commit does not have it. Of sharded parameters all ranks must call this: it
    returns the dict of the newest commits of all, and raises FailedPrecondition if these are of different steps."""
    state = json.loads(run.engine.user_state() or b"{}")
    described = {each[_MINE]["name"]: each for each in state.get("optimizers", [])}
    if name not in described:
        raise spillway.NotFound(f"the last commit of the store in {run.place} has no state dict of an optimizer '{name}': it "
                                f"has {', '.join(described) or 'none'}")
    label = state["kept"]["label"]
    if label not in [each["label"] for each in run.engine.snapshots()]:
        run.engine.snapshot(label)  # the process ended between the commit and its snapshot
    described[name][_MINE] |= state["kept"]
    return _commits.last(run, described[name]) if "rank" in described[name][_MINE] else _marked(described[name])


def _marked(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns the state dict with a mark in place of the state of each parameter that has some."""
    steps = [step for group in state_dict[_MINE]["steps"] for step in group]
    return state_dict | {"state": {index: {_MINE: _ELSEWHERE} for index, step in enumerate(steps) if step > 0}}


def _step(known: Known) -> torch.Tensor:
    """Returns the number of steps as torch.optim has it: in fp32, which has no odd numbers above 2^24."""
    return torch.tensor(known.step, dtype=torch.float32 if known.step <= 2**24 else torch.float64, device="cpu")
