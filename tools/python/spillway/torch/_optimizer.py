# SPDX-License-Identifier: Apache-2.0
"""The base of every torch.optim.Optimizer whose state rests in the engine. The update rules are in _rules.py."""

from __future__ import annotations

import contextlib
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import spillway
import torch
from spillway._folders import Store
from spillway.torch import _ranks, _shards, _state
from spillway.torch._backward import UpdatesInBackward
from spillway.torch._grad_mode import without_gradients
from spillway.torch._interrupts import later_interrupts
from spillway.torch._known import Known, Layout, Place
from spillway.torch._libraries import wrap
from spillway.torch._offload import weight_of, weights_that_left
from spillway.torch._run import Run, as_run
from spillway.torch._shards import gradient_of, like, local_of
from spillway.torch._staging import is_apart, on_cpu, staged
from spillway.torch._state_dicts import StateDicts
from spillway.torch._tensor import EngineTensor, Home, make_home
from spillway.torch._used_gradient import UsedGradient


class OffloadedOptimizer(StateDicts):
    """A torch.optim.Optimizer without `state` in memory. Parameter groups, hooks, schedulers, closures and GradScaler work
    as with any optimizer."""

    _kind = ""
    _is_elementwise = True  # whether an element's update needs no other element, so that a shard can be updated by itself

    @_ranks.names_rank
    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], *,
                 store: Run | Store, pinned: int | str | None, state_format: str,
                 gradients: str = "torch", update: str = "step", threads: int = 0, checkpoint: str | None = None):
        wrap()
        for word in ("lr", "weight_decay"):
            if isinstance(defaults[word], torch.Tensor) and defaults[word].numel() != 1:
                raise spillway.InvalidArgument(f"{word} is a tensor of {defaults[word].numel()} elements: it must have one. "
                                               "(Tensor lr must be 1-element)")
            if not 0 <= defaults[word]:
                raise spillway.InvalidArgument(f"{word} is {defaults[word]}: it must be at least 0")
        _one_of("gradients", gradients, ("torch", "engine"))
        _one_of("update", update, ("step", "backward"))
        if gradients == "engine" and update == "backward":
            raise spillway.InvalidArgument("update='backward' uses a gradient as soon as it is there: gradients='engine' "
                                           "would store it for nothing")
        self._gradients, self._update = gradients, update
        self.checkpoint = checkpoint
        self._known: dict[torch.Tensor, Known] = {}
        self._places: list[tuple[dict[str, Any], list[Place]]] = []  # of each group
        self._has_warned = False  # that weights left the engine
        self.half_done = ""
        me = weakref.ref(self)

        def update_gathered(gathered: Sequence[Any]) -> None:
            optimizer = me()
            if optimizer is not None:
                optimizer._update_gathered(gathered)

        self._in_backward = UpdatesInBackward(update_gathered)
        # The finalizer removes the hooks and unregisters the state, so that neither outlives this optimizer.
        self._hooks: list[Any] = []
        self.ids: list[int] = []
        self.run = as_run(store, pinned, device=None if gradients == "engine" else "cpu")
        self._format = state_format
        end = weakref.finalize(self, _end, self.run.engine, self._hooks, self.ids)
        end.atexit = False
        try:
            self._state_arguments = (self._kind, self._constants(defaults), state_format, threads or torch.get_num_threads())
            self._engine_state = _state.State(self.run.engine, *self._state_arguments)
            self._prefix = self.run.claim("optimizer", self)
            self._gradients_prefix = self.run.claim("gradients", self) if gradients == "engine" else ""
            super().__init__(params, defaults)
        except BaseException:
            # The error may be kept, and refers to this object.
            self._give_up(end, is_own_run=not isinstance(store, Run))
            raise

    def _give_up(self, end: Callable[[], None], is_own_run: bool) -> None:
        """Undoes what a constructor that failed has done. `end` is the finalizer."""
        for known in self._known.values():
            if known.gradient is not None:
                known.gradient.end()
        self._known.clear()
        self._places.clear()
        end()
        for name in ("_prefix", "_gradients_prefix"):
            self.run.give_up(getattr(self, name, ""))
        if hasattr(self, "_engine_state"):
            self._engine_state.close()
        if is_own_run:
            self.run.close()

    # A subclass implements this.

    def _constants(self, group: dict[str, Any]) -> dict[str, Any]:
        """Returns the rule's constants for a group."""
        raise NotImplementedError

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler.step leaves unscaling and skipping to step(), which reads the attributes grad_scale and found_inf
        that it sets. That is needed for gradients in fp16, which GradScaler refuses to unscale. For others GradScaler does
        both: then accelerate sees which steps were skipped, and Lightning clips."""
        return any(param.requires_grad and param.dtype == torch.float16
                   for group in self.param_groups for param in group["params"])

    # --- Parameters ---

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch.optim does. Registers the state of its parameters, which begins with the weights' values. State
        of a frozen parameter is registered when its first gradient arrives, after it was unfrozen. If there are several ranks,
        state of a parameter that is not sharded is registered at its first step: until then other code may put a sharded one
        in its place. A parameter of a group that was removed keeps its state, as in torch.optim."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        known_before, hooks_before = set(self._known), len(self._hooks)
        try:
            self._check_group(group)
            new = self._named(group)
            for param, name in new.items():
                self._check_parameter(param, name)
            there = []
            for param in group["params"]:
                if param in new and not self._may_be_replaced(param):
                    self._register(param, new[param], self.moments_of(group))
                known = self._known.get(param)
                there.append(Place(new[param] if known is None else known.first_name, known))
            self._places.append((group, there))
        except BaseException:
            self.param_groups.pop()
            for hook in self._hooks[hooks_before:]:
                hook.remove()
            del self._hooks[hooks_before:]
            for param in [param for param in self._known if param not in known_before]:
                self._forget(self._known.pop(param))
            raise

    def _named(self, group: dict[str, Any]) -> dict[torch.Tensor, str]:
        """Returns the names of a new group's parameters that are not known. Those without names of their own are called by
        the group's number, or by the next one whose names are free, as after a group was removed."""
        params, number = group["params"], len(self.param_groups) - 1
        taken = {name for known in self._known.values() for name in (known.name, known.first_name)}
        taken |= {place.name for _, there in self._places for place in there if place.known is None}
        while "param_names" not in group and any(f"{number}.{i}" in taken for i in range(len(params))):
            number += 1
        names: dict[torch.Tensor, str] = {}
        for param, name in zip(params, group.get("param_names") or [f"{number}.{i}" for i in range(len(params))]):
            if param in names:
                raise spillway.InvalidArgument(f"parameter {name} is in the group already, as {names[param]}: it would be "
                                               "updated twice a step")
            if param not in self._known and name in taken:
                raise spillway.InvalidArgument(f"two parameters are called {name}: their states would be one")
            taken.add(name)
            names[param] = name
        return {param: name for param, name in names.items() if param not in self._known}

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raises InvalidArgument for options of torch.optim that would be ignored, or that mean another rule."""
        for word in ("amsgrad", "maximize", "nesterov", "dampening", "centered", "momentum"):
            if group.get(word) and word not in self.defaults:
                raise spillway.InvalidArgument(f"{word}={group[word]!r}: {type(self).__name__} of spillway.torch has no {word}")
        for word, why in _WITHOUT.items():
            if group.get(word):
                raise spillway.InvalidArgument(f"{word}={group[word]!r}: {why}")
        if group.get("nesterov") and group.get("dampening"):
            raise spillway.InvalidArgument(
                f"dampening={group['dampening']!r} with nesterov: Nesterov momentum needs dampening=0")
        if self._kind == "adam" and group.get("decoupled_weight_decay"):
            raise spillway.InvalidArgument("decoupled_weight_decay=True is the rule of AdamW: use spillway.torch.AdamW")
        if self._kind == "adamw" and group.get("decoupled_weight_decay") is False and group.get("weight_decay"):
            raise spillway.InvalidArgument(
                "decoupled_weight_decay=False, as in a state dict of torch.optim.Adam: AdamW of spillway.torch applies the "
                "weight decay to the weight. Use spillway.torch.Adam")

    def _may_be_replaced(self, param: torch.Tensor) -> bool:
        """Whether other code, such as accelerate's, may yet put a sharded parameter in the place of this one. What has a hook
        is taken up at once, so that the first gradient is used."""
        return _ranks.count() > 1 and not _shards.is_sharded(param) and not self._has_hook(param)

    def _take_up(self) -> list[torch.Tensor]:
        """Takes up the parameters that were not yet, among them those that other code has put in the places of others before
        their first step. Returns them."""
        present = {id(group) for group in self.param_groups}
        found: list[tuple[list[Place], int, torch.Tensor, dict[str, Any]]] = []
        for group, there in self._places:
            if id(group) not in present or len(group["params"]) != len(there):
                continue
            found += [(there, position, param, group) for position, (param, place) in enumerate(zip(group["params"], there))
                      if param not in self._known and param.numel() > 0 and (place.known is None or place.known.step == 0)]
        for there, position, param, _ in found:
            self._check_parameter(param, there[position].name)
        gone = [there[position].known for there, position, _, _ in found if there[position].known is not None]
        for param in [param for param, known in self._known.items() if known in gone]:
            self._forget(self._known.pop(param))
        for there, position, param, group in found:
            self._register(param, there[position].name, self.moments_of(group))
            there[position] = Place(there[position].name, self._known[param])
        return [param for _, _, param, _ in found]

    def _check_parameter(self, param: torch.Tensor, name: str) -> None:
        _shards.check(param, name)
        if not self._is_elementwise and not _shards.is_whole(param):
            raise spillway.Unimplemented(
                f"parameter {name} is sharded over ranks, and {type(self).__name__} of spillway.torch needs sums over whole "
                "parameters: use AdamW, Adam, SGD, RMSprop or Lion, or keep such parameters whole on every rank")
        given, param = param, local_of(param)
        if _shards.is_sharded(given) and not self._has_warned and (left := weights_that_left(self.run)):
            warnings.warn(f"spillway.torch: the model was offloaded and then sharded, which has put {len(left)} weights, such "
                          f"as {left[0]}, into memory again: shard it without offload(). The optimizer's state is in the store",
                          stacklevel=5)
            self._has_warned = True
        if param.dtype not in _state.DTYPES:
            raise spillway.InvalidArgument(f"parameter {name} is {param.dtype}: it must be float32, float16 or bfloat16")
        if param.is_meta and not self._may_be_replaced(given):
            raise _is_meta(name)
        if param.is_sparse or param.layout != torch.strided:
            raise spillway.InvalidArgument(f"parameter {name} is sparse: it must be dense")
        if not isinstance(param, EngineTensor) and not param.is_meta:
            _state.address_of(param, f"parameter {name}")
        weight_of(self.run, param, name)
        if self._has_hook(given) and given._post_accumulate_grad_hooks:
            raise spillway.FailedPrecondition(f"parameter {name} has a hook already that runs when its gradient is there, as "
                                              "of another optimizer: remove that first, as by close()")

    def _has_hook(self, param: torch.Tensor) -> bool:
        return param.requires_grad and param.numel() > 0 and (self._gradients == "engine" or self._update == "backward")

    def _register(self, param: torch.Tensor, name: str, moments: tuple[str, ...]) -> None:
        if param.numel() == 0:
            return  # nothing to update
        known = self._known[param] = Known(name, param)
        if param.requires_grad and known.has_elements and (_ranks.count() == 1 or _shards.is_sharded(param)):
            self._add_state(param, known, Layout(None, moments))
        if not self._has_hook(param):
            return
        me = weakref.ref(self)

        def use_gradient(of: torch.Tensor) -> None:
            optimizer = me()
            if optimizer is not None and optimizer._gradients == "engine":
                optimizer._move_gradient(of, known)
            elif optimizer is not None:
                optimizer._update_now(of, known)

        known.hook = param.register_post_accumulate_grad_hook(use_gradient)
        self._hooks.append(known.hook)

    def _add_state(self, param: torch.Tensor, known: Known, layout: Layout) -> None:
        local = local_of(param)
        if local.is_meta:
            raise _is_meta(known.name)
        weight_id = known.weight_id = weight_of(self.run, local, known.name)
        self.run.has_changed()
        gradient = self._gradient_home(param, known) if self._gradients == "engine" else None
        rows = self._usual_rows(param) if layout.tile_rows is None else layout.tile_rows
        known.layout = Layout(rows, layout.moments)
        known.number = self._engine_state.add(
            f"{self._prefix}/{known.name}", local if weight_id is not None else on_cpu(local), rows, layout.moments,
            weight_id, gradient.id if gradient else None, gradient_dtype_of(param))
        known.version = param._version
        known.ids = [tensor["id"] for tensor in self._engine_state.tensors(known.number)]
        self.ids += known.ids
        for id in known.ids:
            self.run.report.holds(id)

    def _forget(self, known: Known) -> None:
        """Unregisters the state and the gradient of a parameter that is no longer known, and removes its hook."""
        if known.hook is not None:
            known.hook.remove()
        if known.gradient is not None:
            known.gradient.end()
        self._drop_state(known)

    def _drop_state(self, known: Known) -> None:
        if known.number is not None:
            with contextlib.suppress(spillway.Error):
                self._engine_state.remove(known.number)
        for id in known.ids:
            self.ids.remove(id)
            with contextlib.suppress(spillway.Error):
                self.run.engine.unregister(id)
        known.number, known.ids, known.step, known.has_momentum = None, [], 0, False
        known.loaded.clear()

    def _grow(self, param: torch.Tensor, known: Known, moments: tuple[str, ...]) -> None:
        """Gives the state of a parameter other moments, as when the momentum of its group was 0 and no longer is. What it has
        stays; what is new is zeros."""
        layout = Layout(known.layout.tile_rows, self.joined_moments(known.layout.moments, moments))
        step, has_momentum, version = known.step, known.has_momentum, known.version
        with self._in_use():
            held = self._read_moments(param, known)
            masters = self._read_masters(param, known) if known.has_masters else None
            self.half_done = "an update could not give a parameter the state of its new momentum, amsgrad or centered"
            self._drop_state(known)
            self._add_state(param, known, layout)
            if masters is not None:
                self._write_masters(param, known, masters)
            self._write_moments(param, known, held)
        known.step, known.has_momentum, known.version = step, has_momentum, version
        self.half_done = ""

    def _begin_anew(self, prefix: str, names: dict[torch.Tensor, str], layouts: Mapping[torch.Tensor, Layout]) -> None:
        """Registers the state of the parameters in `layouts` anew, as before any step, under the names that a state dict gives
        it. Other parameters then have no state."""
        if prefix != self._prefix:
            self.run.claim("optimizer", self, wanted=prefix)
            self.run.give_up(self._prefix)
        for id in self.ids:
            self.run.engine.unregister(id)
        self.ids.clear()
        for param, known in self._known.items():
            known.number, known.ids, known.name = None, [], names.get(param, known.name)
            known.loaded.clear()
            if param not in layouts:
                known.step, known.has_momentum = 0, False
        self._prefix, self._engine_state = prefix, _state.State(self.run.engine, *self._state_arguments)
        for param, layout in layouts.items():
            self._add_state(param, self._known[param], layout)

    def tile_rows(self) -> dict[str, int]:
        """Returns the rows of a tile of each parameter's state, by the name of the state in the store."""
        return {f"{self._prefix}/{known.name}": known.layout.tile_rows for known in self._known.values() if known.has_state}

    def moments(self) -> dict[str, list[str]]:
        """Returns the moments of each parameter's state, by the name of the state in the store."""
        return {f"{self._prefix}/{known.name}": list(known.layout.moments) for known in self._known.values() if known.has_state}

    def _with_state(self) -> dict[torch.Tensor, Known]:
        """Returns the parameters that have state, in the order of `ids`."""
        return dict(sorted(((param, known) for param, known in self._known.items() if known.has_state),
                           key=lambda each: each[1].number))

    def layouts(self) -> dict[torch.Tensor, Layout]:
        """Returns how the state of each parameter is laid out, in tiles that fit the run's budget, in the order of `ids`."""
        return {param: Layout(None, known.layout.moments) for param, known in self._with_state().items()}

    def layouts_beside(self, kept: dict[str, Any]) -> dict[torch.Tensor, Layout]:
        """Returns how each parameter's state can be registered while the engine restores the commit that Run.keep_commit named:
        as in the commit, or as it is if the commit does not have it."""
        rows, moments = kept.get("tile_rows", {}), kept.get("moments", {})

        def layout(known: Known) -> Layout:
            name = f"{self._prefix}/{known.name}"
            return Layout(rows.get(name, known.layout.tile_rows), tuple(moments.get(name, known.layout.moments)))

        return {param: layout(known) for param, known in self._with_state().items()}

    def layouts_in(self, kept: dict[str, Any], prefix: str, names: dict[torch.Tensor, str],
                   usual: Mapping[torch.Tensor, tuple[str, ...]]) -> dict[torch.Tensor, Layout]:
        """Returns the layout of the state that the commit that Run.keep_commit named has of these parameters, under this prefix
        and these names. If an older version made the dict, it may not have recorded the moments, which are the usual ones
        then, or the rows: then the commit has state of all parameters, and the rows are the present ones."""
        moments = {param: tuple(kept.get("moments", {}).get(f"{prefix}/{name}", usual[param])) for param, name in names.items()}
        if "tile_rows" in kept:
            there = kept["tile_rows"]
            return {param: Layout(there[f"{prefix}/{name}"], moments[param]) for param, name in names.items()
                    if f"{prefix}/{name}" in there}
        return {param: Layout(self._known[param].layout.tile_rows if self._known[param].has_state else self._usual_rows(param),
                              moments[param]) for param in names}

    def _usual_rows(self, param: torch.Tensor) -> int:
        return _state.tile_rows_of(local_of(param).shape, self.run.pinned_bytes)

    def is_laid_out(self, layouts: Mapping[torch.Tensor, Layout]) -> bool:
        """Whether there is state of these parameters and of no others, in these layouts."""
        present = self._with_state()
        return present.keys() == layouts.keys() and all(known.layout == layouts[param] for param, known in present.items())

    def lay_out(self, layouts: Mapping[torch.Tensor, Layout] | None = None) -> None:
        """Registers the state anew in these layouts, in this order of the parameters; None: in tiles that fit the run's budget.
        Its bytes, which do not depend on the tiles, are lost: the caller must save them before and write them afterwards,
        tensor by tensor of `ids`."""
        self._begin_anew(self._prefix, {}, self.layouts() if layouts is None else layouts)
        for known in self._known.values():
            known.version = -1  # the next step still finds what the user has written into a weight

    def weight_ids(self) -> list[int]:
        """Returns the ids of the weights in the engine that this optimizer updates."""
        return [local._home.id for local in map(local_of, self._known) if isinstance(local, EngineTensor)]

    def knows(self, param: torch.Tensor) -> bool:
        return param in self._known or any(param is each for each in self._params())

    def check_no_gradients(self) -> None:
        """Raises FailedPrecondition if a gradient in the engine waits for step()."""
        for param, known in self._known.items():
            if known.gradient is not None and isinstance(local_of(param.grad), EngineTensor):
                raise spillway.FailedPrecondition(f"parameter {known.name} has a gradient in the engine, which going back to a "
                                                  "commit would lose: call step() or zero_grad() before load_state_dict()")

    # --- Steps ---

    @_ranks.names_rank
    @without_gradients
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient. With update="backward" it only ends the step."""
        try:
            return self._step(closure)
        except BaseException:
            for name in ("found_inf", "grad_scale"):  # GradScaler deletes them only after a step that returns
                self.__dict__.pop(name, None)
            raise

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf, grad_scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        taken = set(self._take_up())
        if self._update == "backward":
            with later_interrupts():
                self._update_taken(taken)
                self._end_backward(found_inf)
                self.run.report.count_step(self)
            return loss
        if found_inf is not None and found_inf.item() != 0:
            return loss
        scale = 1.0 if grad_scale is None else 1.0 / grad_scale.item()
        with later_interrupts():
            self._do([(group, param, param.grad) for group in self.param_groups for param in group["params"]
                      if param.grad is not None and param.numel() > 0], scale)
            self.run.engine.end_step()
            self.run.report.count_step(self)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not set_to_none and (self._gradients == "engine" or self._update == "backward"):
            raise spillway.InvalidArgument("zero_grad(set_to_none=False): gradients in the engine, and those that backward "
                                           "has used, can only be dropped")
        self._take_up()
        for known in self._known.values():
            self._in_backward.check_not_used(known)
        self.finish_updates()
        super().zero_grad(set_to_none)

    def _do(self, given: Sequence[tuple[dict[str, Any], torch.Tensor, torch.Tensor]], scale: float) -> None:
        """Updates parameters, each with its group and its gradient. Defers Ctrl-C until that is done."""
        with later_interrupts():
            self._do_now(given, scale)

    def _do_now(self, given: Sequence[tuple[dict[str, Any], torch.Tensor, torch.Tensor]], scale: float) -> None:
        self.check_whole()
        updates: list[dict[str, Any]] = []
        without_elements: list[dict[str, Any]] = []
        rules: dict[tuple[int, bool], Any] = {}
        values: dict[int, dict[str, float]] = {}
        for group, param, gradient in given:
            if id(group) not in values:
                self._check_group(group)
                values[id(group)] = self._values(group)
            known = self._known.get(param)
            if known is None:
                raise spillway.FailedPrecondition(
                    f"a parameter of {tuple(param.shape)} was put into a group of the optimizer's, beside its parameters or in "
                    "the place of one that was updated, so it has no state: give it to add_param_group()")
            local = local_of(param)
            self._check_weight(local, known)
            gradient = gradient_of(param, gradient)
            if not known.has_elements:
                without_elements.append({"param": param, "known": known, "values": values[id(group)]})
                continue
            moments = self.moments_of(group)
            if not known.has_state:  # it was frozen, or a state dict without its state was loaded
                with self._in_use():
                    self._add_state(param, known, Layout(None, moments))
            elif not known.has(moments):
                self._grow(param, known, moments)
            if (id(group), known.has_momentum) not in rules:
                constants = self._constants(group)
                if not known.has_momentum and "dampening" in constants:
                    constants["dampening"] = 0  # the buffer begins
                rules[id(group), known.has_momentum] = _state.make_rule(self._kind, constants)
            self._take_changed_weight(param, known)
            of_group = values[id(group)]
            updates.append({"parameter": known.number, "step": known.step + 1, "learning_rate": of_group["lr"],
                            "weight_decay": of_group["weight_decay"], "gradient_scale": scale,
                            "rule": rules[id(group), known.has_momentum],
                            "weight_in": None if isinstance(local, EngineTensor) else local,
                            "gradient_in": self._gradient(param, gradient, known), "known": known, "param": param,
                            "values": of_group})
        if updates:
            self._update_all(updates)
        for update in without_elements:
            update["known"].count_step(update["values"])
        for update in (*updates, *without_elements):
            # Autograd must see that the weight has changed.
            torch.autograd.graph.increment_version(update["param"])
            update["known"].version = update["param"]._version
            if self._update == "backward":
                self._in_backward.made(update["param"], update["known"].version, update["values"])

    def _update_all(self, updates: list[dict[str, Any]]) -> None:
        """Updates parameters in pieces, and counts their steps. No commit of another thread comes in between."""
        begun = False  # whether something may have been updated
        start = time.monotonic()
        with self._in_use():
            self.run.has_stepped = True
            self.run.has_changed()
            try:
                for piece in staged(updates):
                    was_begun, begun = begun, True
                    try:
                        self._engine_state.step(piece)
                    except spillway.InvalidArgument:
                        begun = was_begun  # raised before anything of this piece was updated
                        raise
                    for update in piece:
                        known, param = update["known"], update["param"]
                        known.count_step(update["values"])
                        if known.gradient is not None:
                            known.gradient.generation += 1  # the update has discarded the values
                            param.grad = None
            except BaseException as error:
                if begun:
                    self.half_done = f"an update failed ({error})"
                raise
        self.run.report.update_seconds += time.monotonic() - start

    # --- Updates in backward ---

    @without_gradients
    def _update_now(self, param: torch.Tensor, known: Known) -> None:
        """Updates a parameter at once; if it is on a GPU, when a piece has gathered, at the latest when backward ends."""
        group = next((group for group in self.param_groups if any(each is param for each in group["params"])), None)
        if group is None:  # it was removed: as in torch.optim, the gradient stays unused
            return
        self._in_backward.check_not_used(known)
        with later_interrupts():  # until .grad says that the gradient was used
            gradient = param.grad
            used = like(param, UsedGradient.of(local_of(gradient), known.name))
            if is_apart(local_of(param)):
                param.grad = used
                self._in_backward.gather(group, param, gradient)
            else:
                self._do([(group, param, gradient)], 1.0)
                param.grad = used
            self._in_backward.used(known)

    @without_gradients
    def _update_gathered(self, gathered: Sequence[Any]) -> None:
        try:
            self._do(gathered, 1.0)
        except BaseException as error:  # the gradients of these updates are lost
            self.half_done = self.half_done or f"an update in backward failed ({error})"
            raise

    def _update_taken(self, taken: set[torch.Tensor]) -> None:
        """Updates parameters that were taken up after the backward that gave their gradients."""
        given = [(group, param, param.grad) for group in self.param_groups for param in group["params"]
                 if param in taken and param.grad is not None]
        if given:
            self._do(given, 1.0)
        for _, param, _ in given:
            param.grad = None

    def check_no_backward(self) -> None:
        """Raises FailedPrecondition within a backward if that updates parameters of this optimizer."""
        if self._update == "backward" and torch._C._current_graph_task_id() != -1:
            raise spillway.FailedPrecondition(
                "a state dict within backward would have half a step, because update='backward' updates parameters one by one: "
                "let a signal's handler note that it was called, and save after step()")

    def finish_updates(self) -> None:
        """Does the updates that a failed backward left waiting."""
        self._in_backward.finish()

    def _end_backward(self, found_inf: torch.Tensor | None) -> None:
        if found_inf is not None:
            raise spillway.FailedPrecondition(
                "GradScaler needs update='step': with update='backward' gradients have been used, scaled, before it saw "
                "them. Go back to the last checkpoint")
        if self._in_backward.end(self.param_groups, self._known, self._values):
            self.run.has_changed()  # the next commit has a description of this optimizer
        self.run.engine.end_step()

    def _values(self, group: dict[str, Any]) -> dict[str, float]:
        """Returns what an update takes from a group."""
        named = {"lr": group["lr"], "weight_decay": group.get("weight_decay", 0), **self._constants(group)}
        return {name: float(value) for name, value in named.items()}

    def _gradient(self, param: torch.Tensor, gradient: torch.Tensor, known: Known) -> torch.Tensor | None:
        """Returns the gradient of this rank's part if it lies in memory. If gradients are in the engine, moves it there if
        needed and returns None."""
        _check_dense(gradient, known)
        expected = gradient_dtype_of(param) or known.dtype
        if (gradient.dtype, gradient.shape) != (expected, known.shape):
            raise spillway.InvalidArgument(
                f"the gradient of parameter {known.name} is {tuple(gradient.shape)}, {gradient.dtype}, and the parameter "
                f"was {tuple(known.shape)}, {known.dtype} when the optimizer took it up")
        if self._gradients != "engine":
            if isinstance(gradient, EngineTensor):
                raise spillway.FailedPrecondition(
                    f"the gradient of parameter {known.name} is in the engine, where another optimizer with gradients='engine' "
                    "has put it, and this optimizer uses gradients in memory: give the parameter to one of the two, or make both "
                    "without gradients='engine'")
            _state.address_of(gradient, f"the gradient of parameter {known.name}")
            return gradient
        self._move_gradient(param, known)  # one that other code has assigned
        return None

    def _gradient_home(self, param: torch.Tensor, known: Known) -> Home:
        """Returns where the gradient lives in the engine."""
        if known.gradient is None:
            local = local_of(param)
            known.gradient = make_home(self.run, f"{self._gradients_prefix}/{known.first_name}", local, "gradient",
                                       local.device, transient=True, dtype=gradient_dtype_of(param))
        return known.gradient

    @without_gradients
    def _move_gradient(self, param: torch.Tensor, known: Known) -> None:
        """Moves the gradient to the engine, where later backwards add to it."""
        if param.grad is None or not known.has_elements:
            return
        home, grad = self._gradient_home(param, known), gradient_of(param, param.grad)
        if isinstance(grad, EngineTensor) and grad._home is home:
            if (grad.shape, grad.storage_offset()) == (home.shape, 0) and grad.is_contiguous():
                return
            grad = grad.clone(memory_format=torch.contiguous_format)  # other code has assigned a view of it
        if param.grad.requires_grad:
            raise spillway.FailedPrecondition(f"the gradient of parameter {known.name} has a graph (create_graph=True), which "
                                              "gradients='engine' would lose")
        _check_dense(grad, known)
        home.generation += 1
        values = grad.reshape(-1)
        with self.run.leasing.operation(lambda stack: stack.enter_context(home.leased("discard"))) as memory:
            memory.copy_(values)
        param.grad = like(param, home.tensor())

    def _check_weight(self, param: torch.Tensor, known: Known) -> None:
        if (param.dtype, param.shape) != (known.dtype, known.shape):
            raise spillway.InvalidArgument(
                f"parameter {known.name} is {tuple(param.shape)}, {param.dtype} now, and was {tuple(known.shape)}, {known.dtype} "
                "when the optimizer took it up: make the optimizer after the model's last change")
        if weight_of(self.run, param, known.name) != known.weight_id and known.has_state:
            where = "moved into" if isinstance(param, EngineTensor) else "left"
            raise spillway.FailedPrecondition(f"parameter {known.name} has {where} the engine since the optimizer took it up: "
                                              "make the optimizer after offload(), or after the model's last change")
        if not isinstance(param, EngineTensor):
            _state.address_of(param, f"parameter {known.name}")

    def _take_changed_weight(self, param: torch.Tensor, known: Known) -> None:
        """Copies a 16-bit weight that other code has written to its master weight."""
        if param._version == known.version or param.dtype == torch.float32 or self._format == "compact":
            return  # an fp32 weight is its own master weight; a weight with compact state holds most bits of it
        local = local_of(param)
        if not isinstance(local, EngineTensor):
            return  # the update itself finds the elements that have changed
        # An element that equals its rounded master weight has not changed, as when a checkpoint's weights are loaded. Its
        # master weight stays.
        weight = local.clone().cpu()
        with self._in_use():
            self.run.has_changed()
            master = self._engine_state.masters(known.number)
            self._write_masters(param, known, torch.where(master.to(weight.dtype) == weight, master, weight.float()))

    def close(self) -> None:
        """Releases the run's engine and removes the hooks. The optimizer cannot be used afterwards. Run.close calls this."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._in_backward.drop()
        self.ids.clear()  # the store keeps the state: the finalizer must not unregister it
        self._engine_state.close()

    def __getstate__(self) -> dict[str, Any]:
        raise spillway.Unimplemented("an optimizer whose state is in a store cannot be copied or pickled: use state_dict()")


# What torch.optim has and a step of spillway.torch cannot do, with the reason.
_WITHOUT = {
    "capturable": "a step of spillway.torch runs on the CPU, and a CUDA graph cannot record it: leave it out",
    "differentiable": "autograd does not see the update, which the CPU makes in the engine's memory: leave it out, or use "
                      "the optimizer of torch.optim"}


def _one_of(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise spillway.InvalidArgument(f"{what} is {value!r}: it must be one of {', '.join(choices)}")


def _end(engine: spillway.Engine, hooks: list[Any], ids: list[int]) -> None:
    """Removes the hooks and unregisters the state of an optimizer that is gone. Kept commits still hold the state; later
    ones do not."""
    for hook in hooks:
        hook.remove()
    for id in ids:
        with contextlib.suppress(spillway.Error):
            engine.unregister(id)


def _check_dense(gradient: torch.Tensor, known: Known) -> None:
    if gradient.layout != torch.strided:
        raise spillway.InvalidArgument(f"the gradient of parameter {known.name} is sparse: it must be dense")


def gradient_dtype_of(param: torch.Tensor) -> torch.dtype | None:
    """Returns the dtype that a parameter's gradients have by its `grad_dtype`; None: the parameter's."""
    return getattr(param, "grad_dtype", None)


def _is_meta(name: str) -> spillway.InvalidArgument:
    return spillway.InvalidArgument(f"parameter {name} is on the meta device: give it values first")
