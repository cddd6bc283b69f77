# SPDX-License-Identifier: Apache-2.0
"""A run: an engine that a process trains with, and the snapshots that its checkpoints name."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from typing import Any

import spillway
import torch
from spillway import _sizes
from spillway.torch._devices import Cpu, Gpu, device_of
from spillway.torch._leasing import Leasing
from spillway.torch._report import Report

# Without other words, what state may take of memory on its way.
DEFAULT_PINNED = "1GiB"
# The same of a GPU's memory, for what operations use.
DEFAULT_DEVICE_MEMORY = "1GiB"
LABEL = "torch-"
_KEPT = 2  # snapshots, where nobody says which checkpoints there are
_NAMES = ("store", "store_id", "commit", "label", "weights")  # of what names a commit
_PIECE_BYTES = 16 << 20


class Run:
    """What `spillway.torch.open` returns; optimizers are made with it. Its engine is `engine`."""

    def __init__(self, engine: spillway.Engine, store: str | None, pinned_bytes: int, device: torch.device,
                 report: bool = True):
        self.engine = engine
        self.device = device  # of the tensors in the engine that operations use
        self._devices: dict[torch.device, Cpu | Gpu] = {torch.device("cpu"): Cpu(engine)}
        if device.type == "cuda":
            self._devices[device] = Gpu(engine, device.index)
        self.store = store
        self.pinned_bytes = pinned_bytes
        self.checkpoints: Any = None  # a Checkpoints, if there is one
        self.room: Any = None  # for saved tensors
        self.has_stepped = False  # some optimizer of it
        self.leasing = Leasing()
        self.homes: weakref.WeakSet[Any] = weakref.WeakSet()  # of tensors in the engine that are no optimizer's
        self.report = Report(engine, store, pinned_bytes, report)
        self._end_report = weakref.finalize(self, self.report.end)
        self._owners: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # of names' beginnings
        self._kept: dict[str, Any] = {}  # what names that commit
        self._at: str | None = None  # the label of the commit that the state is, unless it has changed since
        self._memory = uuid.uuid4().hex  # names a state that no commit has

    def leases_on(self, device: torch.device, name: str) -> Cpu | Gpu:
        """How operations on a device lease a tensor of that name. InvalidArgument: the run is on another."""
        if device not in self._devices:
            raise spillway.InvalidArgument(f"tensor {name} is on {device}, and the run on {self.device}: open it with "
                                           f"spillway.torch.open(..., device='{device}')")
        return self._devices[device]

    def has_device(self, device: torch.device) -> bool:
        return device in self._devices

    def has_changed(self) -> None:
        """To be called before the state is written."""
        self._at = None
        self._memory = uuid.uuid4().hex

    def claim(self, kind: str, owner: Any, wanted: str | None = None) -> str:
        """A beginning for the names of an owner's tensors that no other living owner has: `kind`, or `kind` and a
        number, in the order in which owners are made; or the wanted one."""
        if wanted is not None:
            self.check_free(wanted, owner)
        number = 0
        while wanted is None and (kind if number == 0 else f"{kind}.{number}") in self._owners:
            number += 1
        name = wanted or (kind if number == 0 else f"{kind}.{number}")
        self._owners[name] = owner
        return name

    def is_updated(self, param: Any) -> bool:
        """Whether a parameter is one of an optimizer's."""
        return any(owner.knows(param) for owner in self._optimizers())

    def check_free(self, name: str, owner: Any) -> None:
        """Raises if another living owner has the name."""
        if self._owners.get(name, owner) is not owner:
            raise spillway.FailedPrecondition(f"the state '{name}' of this run is another optimizer's, which is still "
                                              "there: load into each optimizer what was its own, or delete the other first")

    def give_up(self, name: str) -> None:
        """A name that claim() gave is its owner's no longer."""
        self._owners.pop(name, None)

    def close(self) -> None:
        """Gives the engine up, with the run's optimizers; what was not committed is lost. The store is free once
        no tensor of the engine's is being used."""
        self._end_report()
        for owner in self._optimizers():
            owner.close()
        for device in self._devices.values():
            device.close()
        self.engine.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep_commit(self, user_state: bytes) -> dict[str, Any]:
        """Commits, and keeps the commit by a snapshot that only later changes cost room; returns what names it. Not
        where there is no store, nor before the first step: loaders ask for one then, and it must not take the place of
        a checkpoint's."""
        if self.store is None or not self.has_stepped:
            return {"store": None, "store_id": "", "commit": 0, "label": self._memory, "new": not self.has_stepped}
        if self._at is not None:
            return self._kept  # as of several optimizers that are saved together
        for owner in self._optimizers():
            owner.finish_updates()
        with self.leasing.none():
            self.engine.commit(user_state)
            number = self.engine.commit_number
            label = f"{LABEL}{number}"
            self.engine.snapshot(label)
        self._drop_old()
        self._at = label
        self._kept = {"store": os.path.abspath(self.store), "store_id": self.engine.store_id, "commit": number,
                      "label": label, "weights": {home.name: list(home.shape) for home in self._weights()}}
        return self._kept

    def _weights(self) -> list[Any]:
        """Where the weights in the engine live."""
        return [home for home in list(self.homes) if not home.transient]

    def _optimizers(self) -> list[Any]:
        return list({id(owner): owner for owner in list(self._owners.values())}.values())

    def is_at(self, kept: dict[str, Any]) -> bool:
        """Whether the engine has the state that keep_commit named."""
        return kept["label"] in (self._memory, self._at)

    def go_to(self, kept: dict[str, Any], owner: Any) -> None:
        """Brings an owner's tensors, and the weights that the commit has, to a commit that keep_commit named. Other
        optimizers' states and weights, and weights that it has not, stay as they are: meanwhile they are in a file of the
        store's folder. If the restore fails nothing has changed."""
        for each in self._optimizers():
            each.finish_updates()
        others = {each: each.half_done for each in self._optimizers() if each is not owner}
        theirs = {id for each in others for id in each.weight_ids()} - set(owner.weight_ids())
        stay = [id for each in others for id in each.ids]
        stay += [home.id for home in self._weights() if home.name not in kept["weights"] or home.id in theirs]
        with self.leasing.none(), self._aside(stay):
            self.has_changed()  # whatever becomes of the restore, the state is no longer what it was
            self.engine.restore(kept["label"])
            for each in [*others, owner]:
                each.half_done = "a state dict was not loaded whole"
        for each, half_done in others.items():
            each.half_done = half_done
        self.has_stepped = True
        if not stay:
            self._at, self._kept = kept["label"], {key: kept[key] for key in _NAMES}

    @contextlib.contextmanager
    def _aside(self, ids: list[int]) -> Iterator[None]:
        """Keeps the bytes of tensors in a file of the store's folder, and brings them back after the block."""
        sizes = {id: self.engine.spec(id)["size_bytes"] for id in ids}
        pieces = [(id, offset, min(_PIECE_BYTES, size - offset)) for id, size in sizes.items()
                  for offset in range(0, size, _PIECE_BYTES)]
        if not pieces:
            yield
            return
        piece = memoryview(bytearray(min(_PIECE_BYTES, max(sizes.values()))))
        with tempfile.TemporaryFile(dir=self.store) as file:
            for id, offset, size in pieces:
                file.write(self.engine.read(id, offset, piece[:size]))
            file.seek(0)
            yield
            for id, offset, size in pieces:
                file.readinto(piece[:size])
                self.engine.write(id, piece[:size], offset)

    def check_nothing_waits(self) -> None:
        """Raises if going to a commit would lose what backward or a step has yet to use."""
        for owner in self._optimizers():
            owner.check_no_gradients()
        if self.room is not None and self.room.used > 0:
            gc.collect()  # of graphs that nobody has any more
        if self.room is not None and self.room.used > 0:
            raise spillway.FailedPrecondition("the engine has activations of a forward, which going back to a commit would "
                                              "lose: let backward use them, or drop the loss, before load_state_dict()")

    def drop(self, label: str) -> None:
        """Drops a snapshot; the next commit is another, though nothing has changed since."""
        self.engine.drop(label)
        if label == self._at:
            self._at = None

    def check(self, kept: dict[str, Any]) -> None:
        """Raises if the engine cannot be brought to the commit."""
        if kept["label"] == self._memory or kept.get("new"):
            return  # nothing has changed since; or a state that needs no commit
        for home in self._weights():
            shape = kept.get("weights", {}).get(home.name)
            if shape is not None and shape != list(home.shape):
                raise spillway.InvalidArgument(f"{home.name} in the engine has the shape {tuple(home.shape)}, and the commit's "
                                               f"has {tuple(shape)}: offload it under another name (prefix=)")
        if kept["store"] is None:
            raise spillway.FailedPrecondition(
                "this state dict is of a run without a store, and the state is another by "
                "now: give the optimizer store='FOLDER' to save checkpoints, or save full_state_dict()")
        if self.store is None or self.engine.store_id != kept["store_id"]:
            here = f"the store in {self.store}" if self.store is not None else "a run without a store"
            raise spillway.FailedPrecondition(
                f"this state dict names commit {kept['commit']} of the store that was in {kept['store']}, and this is {here}: "
                "a copied checkpoint does not carry the state. Open that store, or save full_state_dict() there and load it "
                "here")
        labels = [each["label"] for each in self.engine.snapshots()]
        if kept["label"] not in labels:
            raise spillway.NotFound(
                f"the store in {self.store} has no snapshot {kept['label']} any more: it keeps the newest {_KEPT} "
                f"({', '.join(label for label in labels if label.startswith(LABEL)) or 'none'})")

    def _drop_old(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.drop_gone()
            return
        ours = [each["label"] for each in self.engine.snapshots() if each["label"].startswith(LABEL)]
        for label in ours[:-_KEPT]:
            self.drop(label)


def open_run(store: str | os.PathLike[str] | None = None, *, pinned: int | str | None = None,
             device: str | torch.device | None = None, device_memory: int | str | None = None,
             queue_depth: int | None = None, report: bool = True) -> Run:
    """Opens a store for training, or makes it; None: everything rests in pinned memory, and dies with the process.

    `pinned`: bytes of memory that the engine may take, as "2GiB"; None: 1 GiB with a store, no limit without. A store
    that was there continues at its last commit. `device`: where operations find weights, gradients and saved tensors that
    live in the engine: "cpu", or "cuda:N" with `device_memory` bytes of that GPU's memory (None: 1 GiB) for them to pass
    through; None: where PyTorch makes tensors, the CPU unless torch.set_default_device says otherwise. `report`: two
    lines on stderr, at the first step and at the end, with the memory that is saved, and seconds and bytes a step.
    """
    if pinned is None and store is not None:
        pinned = DEFAULT_PINNED
    pinned_bytes = _sizes.parse_size(pinned, "pinned")
    on = device_of(device)
    if on.type == "cpu" and device_memory is not None:
        raise spillway.InvalidArgument("device_memory is of a GPU's: the run's device is the CPU (device=)")
    # State is updated in pinned memory: without a GPU the device's arena has nothing to hold.
    device_bytes = 4096 if on.type == "cpu" else _sizes.parse_size(device_memory or DEFAULT_DEVICE_MEMORY, "device_memory")
    engine = spillway.Engine(store, mode="open_or_create" if store is not None else "create",
                             device="host" if on.type == "cpu" else str(on), device_bytes=device_bytes,
                             pinned_bytes=pinned_bytes, queue_depth=queue_depth or 32)
    return Run(engine, None if store is None else os.fspath(store), pinned_bytes, on, report)


def as_run(store: Run | str | os.PathLike[str] | None, pinned: int | str | None, device: str | None) -> Run:
    """The run that an optimizer was given, or one of its own."""
    if not isinstance(store, Run):
        return open_run(store, pinned=pinned, device=device)
    if pinned is not None:
        raise spillway.InvalidArgument("pinned is the run's: give it to spillway.torch.open")
    return store
