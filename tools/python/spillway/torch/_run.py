# SPDX-License-Identifier: Apache-2.0
"""A run: an engine that a process trains with, and the snapshots that its checkpoints name."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import sys
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import spillway
import torch
from spillway import _sizes
from spillway._folders import Store, folders_of, named
from spillway.torch import _ranks
from spillway.torch._devices import Cpu, Gpu, device_of
from spillway.torch._drives import open_engine
from spillway.torch._leasing import Leasing
from spillway.torch._report import Report
from spillway.torch._spare import SpareFiles

# Default budget of pinned memory, if there is a store.
DEFAULT_PINNED = "1GiB"
# Default budget of a GPU's memory, for the tensors that operations use.
DEFAULT_DEVICE_MEMORY = "1GiB"
LABEL = "torch-"
_KEPT = 2  # newest snapshots that a run without a Checkpoints keeps
_NAMES = ("store", "store_id", "commit", "label", "weights", "tile_rows", "moments")  # keys of the dict that names a commit
_PIECE_BYTES = 16 << 20
_NOT_WHOLE = "a state dict was not loaded whole"  # why an optimizer's state is of no one step


class Run:
    """A run, which `spillway.torch.open` returns. Optimizers are made with it. Its engine is `engine`. `store` can be given to
    `open` again: the folder of the store, the list of its folders, or None."""

    def __init__(self, engine: spillway.Engine, folders: list[str], pinned_bytes: int, device: torch.device,
                 report: bool = True):
        self.engine = engine
        self.device = device  # where operations find tensors of the engine
        self._devices: dict[torch.device, Cpu | Gpu] = {torch.device("cpu"): Cpu(engine)}
        if device.type == "cuda":
            self._devices[device] = Gpu(engine, device.index)
        self.store = _as_store(folders)
        self.place = named(folders)  # for messages; "" without a store
        self.folders = list(map(os.path.abspath, folders))  # the program may go to another folder
        self.pinned_bytes = pinned_bytes
        self.checkpoints: Any = None  # a Checkpoints, if there is one
        self.room: Any = None  # for saved tensors, made on first use
        self.has_stepped = False  # whether some optimizer of the run has
        self.leasing = Leasing()
        self.homes: weakref.WeakSet[Any] = weakref.WeakSet()  # of the engine's tensors except optimizer state
        self.report = Report(engine, self.place, pinned_bytes, report)
        self._end_report = weakref.finalize(self, self.report.end)
        self._owners: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # by name prefix
        self._kept: dict[str, Any] = {}  # what keep_commit returned for the commit of _at
        self.made: set[str] = set()  # labels of the snapshots that this run made
        self._unnamed: set[str] = set()  # of those that no checkpoint names, and that are yet to be dropped
        self._loaded: dict[str, str] = {}  # label that this process loaded last, by optimizer's name
        self._continues = False  # whether a snapshot that was there before this run has been loaded
        self._at: str | None = None  # label of the commit that the state equals; None: it has changed
        self._memory = uuid.uuid4().hex  # names a state that is in no commit
        self.restored: dict[str, str] = {}  # label of the commit that each weight was brought to last, by name

    def leases_on(self, device: torch.device, name: str) -> Cpu | Gpu:
        """Returns what leases tensors for operations on `device`. Raises InvalidArgument, whose message names the tensor
        `name`, if the run is on another device."""
        if device not in self._devices:
            raise spillway.InvalidArgument(f"tensor {name} is on {device}, and the run on {self.device}: open it with "
                                           f"spillway.torch.open(..., device='{device}')")
        return self._devices[device]

    def has_device(self, device: torch.device) -> bool:
        return device in self._devices

    def has_changed(self) -> None:
        """Records that the state equals no commit. Must be called before the state is written."""
        self._at = None
        self._memory = uuid.uuid4().hex

    def claim(self, kind: str, owner: Any, wanted: str | None = None) -> str:
        """Returns a prefix for the names of an owner's tensors that no other living owner has: `wanted`; if that is None,
        `kind`, or `kind` and a number, in the order in which owners are made. Raises FailedPrecondition if another living
        owner has the wanted prefix."""
        if wanted is not None:
            self.check_free(wanted, owner)
        number = 0
        while wanted is None and (kind if number == 0 else f"{kind}.{number}") in self._owners:
            number += 1
        name = wanted or (kind if number == 0 else f"{kind}.{number}")
        self._owners[name] = owner
        return name

    def is_updated(self, param: Any) -> bool:
        """Whether an optimizer of this run updates the parameter."""
        return any(owner.knows(param) for owner in self.optimizers())

    def check_free(self, name: str, owner: Any) -> None:
        """Raises FailedPrecondition if another living owner has the name."""
        if self._owners.get(name, owner) is not owner:
            raise spillway.FailedPrecondition(f"the state '{name}' of this run is another optimizer's, which is still "
                                              "there: load into each optimizer what was its own, or delete the other first")

    def give_up(self, name: str) -> None:
        """Releases a name that claim() returned."""
        self._owners.pop(name, None)

    def close(self) -> None:
        """Closes the run's optimizers and releases the engine. What was not committed is lost. The store can be opened again
        once no tensor of the engine is in use and the calls of other threads have returned."""
        self._end_report()
        with contextlib.ExitStack() as closing:  # each is closed, the engine last, even if Ctrl-C breaks off another
            closing.callback(self.engine.close)
            for each in (*self._devices.values(), *self.optimizers()):
                closing.callback(each.close)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep_commit(self, of_weights: bool = False, drops_old: bool = True) -> dict[str, Any]:
        """Commits, keeps the commit as a snapshot, and returns a dict that names it. The commit's user state has this dict and
        what state_dict() says of each optimizer. The snapshot takes space only as later commits differ. Without a store, and
        before the first step, nothing is committed: loaders request a state dict before the first step, and its snapshot
        must not displace that of a checkpoint. `of_weights`: it is a checkpoint's, whose weights the commit must have.
        `drops_old`: whether older snapshots are dropped that are no longer kept; if not, the caller must call drop_old()."""
        if self.store is None or not (self.has_stepped or of_weights):
            return {"store": None, "store_id": "", "commit": 0, "label": self._memory, "new": not self.has_stepped}
        if self._at is not None:
            return self._kept  # as when several optimizers are saved together
        for owner in self.optimizers():
            owner.finish_updates()
        with self.leasing.none():
            number = self.engine.commit_number + 1
            # Another copy of the store, or this one put back from a backup, has other commits of the same numbers.
            label = f"{LABEL}{number}-{secrets.token_hex(4)}"
            kept = {"store": _as_store(self.folders), "store_id": self.engine.store_id, "commit": number,
                    "label": label, "weights": {home.name: list(home.shape) for home in self._weights()},
                    "tile_rows": {name: rows for owner in self.optimizers() for name, rows in owner.tile_rows().items()},
                    "moments": {name: of for owner in self.optimizers() for name, of in owner.moments().items()}}
            self.engine.commit(_user_state(kept, [owner.described() for owner in self.optimizers() if owner.is_of_one_step]))
            self.engine.snapshot(label)
            self.made.add(label)
            # Recorded before a step that waits for the commit calls has_changed().
            self._at, self._kept = label, kept
        if drops_old:
            self.drop_old()
        return kept

    def _weights(self) -> list[Any]:
        """Returns the homes of the weights in the engine."""
        return [home for home in list(self.homes) if not home.transient]

    def optimizers(self) -> list[Any]:
        return list({id(owner): owner for owner in list(self._owners.values())}.values())

    def is_at(self, kept: dict[str, Any]) -> bool:
        """Whether the engine has the state that keep_commit named."""
        return kept["label"] in (self._memory, self._at)

    def bring_weights(self, kept: dict[str, Any]) -> None:
        """Brings the weights that the commit has to a commit that keep_commit named, if they were not brought there since
        `restored` was cleared. No gradient or activation may wait (check_nothing_waits)."""
        if self.is_at(kept) or all(self.restored.get(home.name) == kept["label"] for home in self._weights()
                                   if home.name in kept["weights"]):
            return
        self.go_to(kept, None)

    def go_to(self, kept: dict[str, Any], owner: Any) -> None:
        """Brings an owner's tensors, which must have the commit's tiles, and the weights that the commit has, to a commit that
        keep_commit named. Other optimizers' states and weights, and weights that the commit does not have, stay as they are:
        during the restore their bytes are in temporary files in the store's folders. If the restore fails, nothing has
        changed. Without an owner (None) all optimizers' states stay, and none of their weights."""
        for each in self.optimizers():
            each.finish_updates()
        others = {each: each.half_done for each in self.optimizers() if each is not owner}
        brought = set(self.brought_weights(kept, owner))
        weights = [home.id for home in self._weights() if home.id not in brought]
        # The engine restores no tensor whose shape or tiles are others than the commit's.
        moved = {each: (layouts, each.layouts()) for each in others
                 if not each.is_laid_out(layouts := each.layouts_beside(kept))}

        def staying() -> list[int]:
            return [id for each in others for id in each.ids] + weights

        with self.leasing.none(), self._saved(staying) as write_back:
            self.has_changed()  # even if the restore fails: the state must not count as that of a commit
            for each in others:
                each.half_done = _NOT_WHOLE
            try:
                for each, (layouts, _) in moved.items():
                    each.lay_out(layouts)
                self.engine.restore(kept["label"])
                if owner is not None:
                    owner.half_done = _NOT_WHOLE
            finally:
                for each, (_, layouts) in moved.items():
                    each.lay_out(layouts)  # also what one that failed did not register
                write_back()
                for each, half_done in others.items():
                    each.half_done = half_done
            self.has_stepped |= owner is not None
            self.restored.update({home.name: kept["label"] for home in self._weights() if home.id not in weights})
            if not staying():
                self._at, self._kept = kept["label"], {key: kept[key] for key in _NAMES if key in kept}

    def brought_weights(self, kept: dict[str, Any], owner: Any) -> list[int]:
        """Returns the ids of the weights that go_to() brings to a commit that keep_commit named, by name."""
        others = {id for each in self.optimizers() if each is not owner for id in each.weight_ids()}
        theirs = others - set(owner.weight_ids()) if owner is not None else set()
        return [home.id for home in sorted(self._weights(), key=lambda home: home.name)
                if home.name in kept.get("weights", {}) and home.id not in theirs]

    def recut(self, owner: Any) -> None:
        """Registers the state of an optimizer in the tiles that fit the run's budget, with the bytes that it has."""
        with self.leasing.none(), self._saved(lambda: owner.ids) as write_back:
            owner.lay_out()
            write_back()

    @contextlib.contextmanager
    def _saved(self, ids: Callable[[], list[int]]) -> Iterator[Callable[[], None]]:
        """Saves the bytes of the tensors that `ids` returns in temporary files in the store's folders, or without a store in
        the folder for temporary files. Yields a function that writes them to the tensors that `ids` returns by then, in the
        same order and of the same sizes."""
        sizes = [self.engine.spec(id)["size_bytes"] for id in ids()]
        pieces = [(number, offset, min(_PIECE_BYTES, size - offset)) for number, size in enumerate(sizes)
                  for offset in range(0, size, _PIECE_BYTES)]
        if not pieces:
            yield lambda: None
            return
        memory = memoryview(bytearray(min(_PIECE_BYTES, max(sizes))))
        with SpareFiles(self.folders, sum(sizes)) as files:
            there = ids()
            # If the disks are full, this is known before anything has changed.
            places = [files.write(self.engine.read(there[number], offset, memory[:size])) for number, offset, size in pieces]

            def write_back() -> None:
                there = ids()
                for place, (number, offset, size) in zip(places, pieces):
                    files.read(place, memory[:size])
                    self.engine.write(there[number], memory[:size], offset)

            yield write_back

    def check_no_backward(self) -> None:
        """Raises FailedPrecondition within a backward if that updates parameters of some optimizer."""
        for owner in self.optimizers():
            owner.check_no_backward()

    def check_nothing_waits(self) -> None:
        """Raises FailedPrecondition if going to a commit would lose gradients or activations that are yet to be used."""
        for owner in self.optimizers():
            owner.check_no_gradients()
        if self.room is not None and self.room.used > 0:
            gc.collect()  # frees graphs that nothing refers to any more
        if self.room is not None and self.room.used > 0:
            raise spillway.FailedPrecondition("the engine has activations of a forward, which going back to a commit would "
                                              "lose: let backward use them, or drop the loss, before load_state_dict()")

    def has_loaded(self, kept: dict[str, Any], name: str) -> None:
        """Records that the optimizer called `name` has loaded the state that keep_commit named."""
        self._loaded[name] = kept["label"]
        self._continues |= kept["label"] not in self.made

    def is_loaded(self, label: str) -> bool:
        """Whether an optimizer's state came from this snapshot. Its checkpoint may be the only one on disk until a newer one
        has been saved, of which the run learns nothing."""
        return label in self._loaded.values()

    def drop_unnamed(self, labels: set[str]) -> None:
        """Drops snapshots that no checkpoint will name, now or, if that fails, before others that are no longer kept."""
        self._unnamed |= labels
        if self._at in self._unnamed:
            self._at = None
        for label in sorted(self._unnamed):
            with contextlib.suppress(spillway.Error):
                self.drop(label)
                self._unnamed.discard(label)
                self.made.discard(label)

    def drop(self, label: str) -> None:
        """Drops a snapshot. If the state equals its commit, the next keep_commit still makes a new commit."""
        self.engine.drop(label)
        if label == self._at:
            self._at = None

    def needs_no_commit(self, kept: dict[str, Any]) -> bool:
        """Whether nothing has changed since keep_commit returned `kept`, or the state is one before any step."""
        return kept["label"] == self._memory or bool(kept.get("new"))

    def check(self, kept: dict[str, Any]) -> None:
        """Raises if the engine cannot be brought to the commit that `kept` names."""
        if self.needs_no_commit(kept):
            return
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
            here = f"the store in {self.place}" if self.store is not None else "a run without a store"
            raise spillway.FailedPrecondition(
                f"this state dict names commit {kept['commit']} of the store that was in {_place_of(kept)}, and this is "
                f"{here}: a copied checkpoint does not carry the state. Open that store, or save full_state_dict() there and "
                "load it here")
        self.check_has(kept["label"])

    def check_has(self, wanted: str) -> None:
        """Raises NotFound if the store does not have the snapshot."""
        labels = [each["label"] for each in self.engine.snapshots()]
        if wanted not in labels:
            raise spillway.NotFound(
                f"the store in {self.place} does not have the snapshot {wanted} of this checkpoint; it has "
                f"{', '.join(label for label in labels if label.startswith(LABEL)) or 'none'}. It may have been dropped: "
                f"without a Checkpoints a run keeps the newest {_KEPT} and the one that was loaded; Checkpoints(run, FOLDER) "
                "keeps those that files name. Or the checkpoint was saved with another copy of the store, or before the store "
                "was put back from a backup")

    def drop_old(self) -> None:
        """Drops the snapshots that are no longer kept."""
        if self.store is None:
            return
        self.drop_unnamed(set())
        if self.checkpoints is not None:
            self.checkpoints.drop_gone()
            return
        # A run that begins anew, perhaps by mistake, keeps the snapshots that earlier checkpoints name.
        ours = [each["label"] for each in self.engine.snapshots()
                if each["label"] in self.made or (self._continues and each["label"].startswith(LABEL))]
        for label in ours[:-_KEPT]:
            if self.is_loaded(label):
                continue
            self.drop(label)
            print(f"spillway: dropped snapshot {label}: there are {_KEPT} newer ones (spillway.torch.Checkpoints(run, FOLDER) "
                  "keeps those that files name)", file=sys.stderr)


def _user_state(kept: dict[str, Any], described: list[dict[str, Any]]) -> bytes:
    try:
        return json.dumps({"kept": kept, "optimizers": described}, default=lambda value: value.item()).encode()
    except Exception:  # a group has an object: the commit has no user state, from which last_state_dict() would make a dict
        return b""


def _as_store(folders: list[str]) -> str | list[str] | None:
    """Returns what `open` takes for these folders."""
    return folders if len(folders) > 1 else folders[0] if folders else None


def _place_of(kept: dict[str, Any]) -> str:
    """Returns the folders that a dict of keep_commit names, for messages."""
    return kept["store"] if isinstance(kept["store"], str) else named(kept["store"])


@_ranks.names_rank
def open_run(store: Store = None, *, pinned: int | str | None = None, device: str | torch.device | None = None,
             device_memory: int | str | None = None, queue_depth: int | None = None, calibrate: str = "auto",
             report: bool = True) -> Run:
    """Opens a store for training, or makes it. `store`: a folder, or a list of folders, one on each drive, which must be given
    in the same order each time. None: all tensors rest in pinned memory and are lost when the process ends. Of several ranks
    each has a store of its own: `{rank}`, `{local_rank}` and `{node}` in a folder's name stand for this process' numbers.

    `pinned`: bytes of memory that the engine may take, such as "2GiB"; None: 1 GiB with a store, no limit without. An
    existing store continues at its last commit. `device`: where operations find weights, gradients and saved tensors that
    live in the engine: "cpu", or "cuda:N", where they pass through `device_memory` bytes of that GPU's memory (None: 1 GiB).
    None: the device on which PyTorch makes tensors, which is the CPU unless torch.set_default_device changes it.
    `calibrate`: when the drives are measured. "auto": those of a new store of several folders, because each drive gets bytes
    in proportion to its rates, and an equal share without them. That takes some 6 s for each drive and up to 512 MiB on it,
    with `pinned` of at least 16 MiB, once: the store keeps the rates, which lines on stderr give. "now": those of any store,
    again. "off": none. `report`: whether two lines are printed on stderr, after the first step and at the end, with the memory
    that is saved, and the seconds and bytes per step. Of several ranks the first prints them, with the sums over all.
    """
    folders = folders_of(_ranks.with_numbers(store))
    if pinned is None and folders:
        pinned = DEFAULT_PINNED
    pinned_bytes = _sizes.parse_size(pinned, "pinned")
    on = device_of(device)
    if on.type == "cpu" and device_memory is not None:
        raise spillway.InvalidArgument("device_memory is of a GPU's: the run's device is the CPU (device=)")
    # State is updated in pinned memory. Without a GPU nothing is leased in the device tier, so it gets only 4 KiB.
    device_bytes = 4096 if on.type == "cpu" else _sizes.parse_size(device_memory or DEFAULT_DEVICE_MEMORY, "device_memory")
    try:
        engine = open_engine(folders, calibrate, device="host" if on.type == "cpu" else str(on), device_bytes=device_bytes,
                             pinned_bytes=pinned_bytes, queue_depth=queue_depth or 32)
    except spillway.FailedPrecondition as error:
        raise _ranks.of_its_own(store, error) from None
    return Run(engine, folders, pinned_bytes, on, report)


def as_run(store: Run | Store, pinned: int | str | None, device: str | None) -> Run:
    """Returns the run that an optimizer was given, or opens one for it."""
    if not isinstance(store, Run):
        try:
            return open_run(store, pinned=pinned, device=device)
        except spillway.FailedPrecondition as error:
            if "is in use by this process" not in str(error):
                raise
            raise spillway.FailedPrecondition(f"{error}. The optimizer that has it must be deleted, with its schedulers, or "
                                              "closed: optimizer.run.close()") from None
    if pinned is not None:
        raise spillway.InvalidArgument("pinned is the run's: give it to spillway.torch.open")
    return store
