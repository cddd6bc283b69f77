# SPDX-License-Identifier: Apache-2.0
"""Makes a checkpoint that any number of ranks loads from one that names a commit of each rank's store.

    python -m spillway.torch.portable CHECKPOINT OUT STORE...

CHECKPOINT is a folder of torch.distributed.checkpoint (DCP) with the state dict of an optimizer with checkpoint="commit". OUT
becomes a folder of DCP with the optimizer's state as torch.optim has it, under the same names as in CHECKPOINT: load it there
with checkpoint="tensors", or with torch.optim, on any number of ranks. The rest, such as the model's weights, is only in
CHECKPOINT. A STORE is the folder of one rank's store, or its folders with commas between them, in the store's order. The stores
are read one after another, also beside a process that has them open, and do not change. Neither the model nor a GPU is needed;
memory holds the state of one rank's part of one parameter.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pathlib
import pickle
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import spillway
import torch
from spillway._store_reader import StoreReader
from spillway.torch import _dcp_folder, _rules
from spillway.torch._commits import MINE, Named, OfAll
from spillway.torch._dcp_folder import Entry
from spillway.torch._known import Layout
from spillway.torch._run import open_run
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

_RULES = {each._kind: each for each in (_rules.AdamW, _rules.Adam, _rules.SGD, _rules.RMSprop, _rules.Lion, _rules.LAMB,
                                        _rules.LARS, _rules.Adafactor)}


def make_portable(checkpoint: str | os.PathLike[str], out: str | os.PathLike[str], stores: Sequence[Any]) -> None:
    """Writes the folder `out`, as the module says. `stores`: of each rank a folder, or the list of its folders, in any order of
    the ranks. Raises NotFound if a store or a snapshot is missing, and Unimplemented for compact state, of which the model's
    weights hold a part. After an error `out` is as before."""
    saved = _Saved(pathlib.Path(checkpoint))
    folder = pathlib.Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise spillway.AlreadyExists(f"{folder} is there already: name a folder that is new or empty")
    places = _places(saved, stores)
    writer = _Writer(folder)
    try:
        writer.copy(saved.groups)
        with open_run(None, report=False) as run:
            for rank, place in sorted(places.items()):
                with StoreReader(place) as store, writer.file(f"__{rank}_0.distcp"):
                    for optimizer in saved.optimizers:
                        _write_rank(run, store, saved, optimizer, rank, writer)
        writer.end(saved.paths)
    except BaseException:
        writer.remove()
        raise


class _Saved:
    """What a checkpoint says of the commits that it names."""

    def __init__(self, checkpoint: pathlib.Path):
        try:
            entries = _dcp_folder.entries(checkpoint / ".metadata")
        except (FileNotFoundError, NotADirectoryError):
            raise spillway.NotFound(f"{checkpoint} is no whole checkpoint of torch.distributed.checkpoint: it has no .metadata"
                                    ) from None
        self.groups: list[Entry] = []  # what the groups have, except for the names of commits
        self.optimizers: dict[str, OfAll] = {}  # by name
        self.names: dict[tuple[str, int], str] = {}  # of the entry of a parameter's state, by optimizer and position
        self.paths = _dcp_folder.paths(checkpoint / ".metadata")
        of_group: dict[str, str] = {}  # the optimizer, by what the names of the group's entries begin with
        marks: dict[str, int] = {}
        for entry in entries:
            begin, _, word = entry.name.rpartition(".")
            if "param_groups" in begin.split("."):
                if word == MINE:
                    named = OfAll.parsed(_value(entry))
                    self.optimizers[named.optimizer] = named
                    of_group[begin] = named.optimizer
                else:
                    self.groups.append(entry)
            elif word == MINE and "state" in begin.split("."):
                marks[begin] = int(_value(entry))
        if not self.optimizers:
            raise spillway.InvalidArgument(f"{checkpoint} names no commits of ranks: it has no state dict of an optimizer of "
                                           "spillway.torch with checkpoint='commit' and sharded parameters")
        self.count = len(next(iter(self.optimizers.values())).ranks)
        owners = self._owners(of_group)
        for begin, position in marks.items():
            optimizer = next(iter(self.optimizers)) if len(self.optimizers) == 1 else owners[begin.partition("state.")[2]]
            self.names[optimizer, position] = begin

    def _owners(self, of_group: dict[str, str]) -> dict[str, str]:
        """Returns the optimizer of each parameter, by its name."""
        owners = {}
        for begin, optimizer in of_group.items():
            _, _, group = begin.partition("param_groups.")
            params = next((each for each in self.groups if each.name == f"{begin}.params"), None)
            owners.update(dict.fromkeys(_value(params) if params is not None else [group], optimizer))
        return owners

    def of_rank(self, rank: int) -> Named:
        return next(iter(self.optimizers.values())).ranks[rank]


def _value(entry: Entry) -> Any:
    with open(entry.path, "rb") as file:
        file.seek(entry.offset)
        return torch.load(io.BytesIO(file.read(entry.size)), weights_only=True)


def _places(saved: _Saved, stores: Sequence[Any]) -> dict[int, Any]:
    """Returns the folders of each rank's store, by the id in it. Raises NotFound if a rank's is missing."""
    there = {}
    for place in stores:
        with StoreReader(place) as store:
            there[store.store_id] = place
    wanted = {rank: saved.of_rank(rank).store_id for rank in range(saved.count) if not saved.of_rank(rank).is_new}
    if missing := [rank for rank, id in wanted.items() if id not in there]:
        raise spillway.NotFound(f"the store of rank {missing[0]}, {wanted[missing[0]] or 'which had none'}, is not among those "
                                f"given: {', '.join(map(str, stores))}")
    return {rank: there[id] for rank, id in wanted.items()}


def _write_rank(run: Any, store: StoreReader, saved: _Saved, optimizer: str, rank: int, writer: _Writer) -> None:
    """Writes one rank's parts of the state of an optimizer's parameters."""
    label = saved.optimizers[optimizer].ranks[rank].label
    state = json.loads(store.user_state(label) or b"{}")
    described = next((each for each in state.get("optimizers", []) if each[MINE]["name"] == optimizer), None)
    if described is None or "tensors" not in described[MINE]:
        raise spillway.NotFound(f"snapshot {label} of rank {rank}'s store does not say what it has of optimizer '{optimizer}'")
    mine, groups = described[MINE], described["param_groups"]
    if mine["format"] == "compact":
        raise spillway.Unimplemented("of compact state the model's 16-bit weights hold the most of the master weights, and the "
                                     "stores do not have those: load the checkpoint with as many ranks, and save it with "
                                     "checkpoint='tensors'")
    of_groups = [group for group in groups for _ in group["params"]]
    steps = [step for group in mine["steps"] for step in group]
    for position, name in enumerate(mine["parameters"]):
        to = saved.names.get((optimizer, position))
        if to is None:  # it was frozen
            continue
        begin = f"{optimizer}/{name}"
        tensors = [each for each in mine["tensors"] if each["name"].rpartition("/")[0] == begin]
        part = _Part(mine["global_shapes"][position], mine["offsets"][position], mine["shapes"][position])
        if mine["rule"] != "sgd":
            step = torch.tensor(float(steps[position]), dtype=torch.float32 if steps[position] <= 2**24 else torch.float64)
            writer.tensor(f"{to}.step", step, _Part([], [], []))
        if tensors:  # this rank has elements of it
            layout = Layout(state["kept"]["tile_rows"][begin], tuple(state["kept"]["moments"][begin]))
            values = _torchs_state(run, store, label, mine, of_groups[position], position, tensors, layout)
            for key, value in values.items():
                writer.tensor(f"{to}.{key}", value, part)


class _Part(NamedTuple):
    """The part of a tensor that a rank has."""

    of: list[int]  # the whole tensor's shape
    offset: list[int]
    shape: list[int]


def _torchs_state(run: Any, store: StoreReader, label: str, mine: dict[str, Any], group: dict[str, Any], position: int,
                  tensors: list[dict[str, Any]], layout: Layout) -> dict[str, torch.Tensor]:
    """Returns torch.optim's moments, and the master weights, of a rank's part of a parameter."""
    param = torch.nn.Parameter(torch.zeros(mine["shapes"][position], dtype=getattr(torch, mine["dtypes"][position])))
    options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    optimizer = _RULES[mine["rule"]]([{**options, "params": [param]}], store=run, state_format=mine["format"], lr=0.0)
    try:
        known = optimizer._known[param]
        optimizer._add_state(param, known, layout)
        own = {run.engine.spec(id)["name"].rpartition("/")[2]: id for id in known.ids}
        for spec in tensors:
            run.engine.write(own[spec["name"].rpartition("/")[2]], store.read(label, spec))
        known.step, known.has_momentum = 1, mine["momentum"][position]
        state = optimizer.full_state_dict()["state"][0]
        return {key: value for key, value in state.items() if key not in ("step", "grad_var")}
    finally:
        for id in known.ids:
            run.engine.unregister(id)
        known.ids.clear()
        optimizer.ids.clear()
        optimizer.close()
        run.give_up(optimizer._prefix)


class _Writer:
    """Writes a folder of torch.distributed.checkpoint, a tensor at a time; its own writer keeps all tensors of a file."""

    def __init__(self, folder: pathlib.Path):
        self._folder, self._is_new = folder, not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        self._entries: dict[str, Any] = {}
        self._places: dict[dcp.MetadataIndex, _StorageInfo] = {}
        self._file: Any = None
        self._names: list[str] = []  # of the files

    def copy(self, entries: list[Entry]) -> None:
        """Writes entries of another checkpoint that are no tensors."""
        with self.file("__groups.distcp"):
            for entry in entries:
                with open(entry.path, "rb") as source:
                    source.seek(entry.offset)
                    self._entries[entry.name] = dcp.BytesStorageMetadata()
                    self._put(dcp.MetadataIndex(entry.name), lambda file: file.write(source.read(entry.size)))

    def file(self, name: str) -> Any:
        """Returns the context in which entries are written into a file of this name."""
        self._name, self._file = name, open(self._folder / name, "xb")
        self._names.append(name)
        return self

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def tensor(self, name: str, value: torch.Tensor, part: _Part) -> None:
        """Writes a part of a tensor, unless it was written, as by another rank that has the same part."""
        index = dcp.MetadataIndex(name, part.offset)
        if index in self._places:
            return
        entry = self._entries.get(name)
        if entry is None:
            properties = dcp.TensorProperties(dtype=value.dtype)
            entry = self._entries[name] = dcp.TensorStorageMetadata(properties, torch.Size(part.of), [])
        entry.chunks.append(dcp.ChunkStorageMetadata(torch.Size(part.offset), torch.Size(part.shape)))
        self._put(index, lambda file: torch.save(value.contiguous(), file))

    def _put(self, index: dcp.MetadataIndex, write: Any) -> None:
        begin = self._file.tell()
        write(self._file)
        self._places[index] = _StorageInfo(self._name, begin, self._file.tell() - begin)

    def remove(self) -> None:
        """Removes what was written."""
        for name in self._names:
            (self._folder / name).unlink(missing_ok=True)
        if self._is_new:
            with contextlib.suppress(OSError):  # another process has put something there
                self._folder.rmdir()

    def end(self, paths: dict[str, tuple[Any, ...]]) -> None:
        """Writes the metadata, with which the checkpoint is whole. `paths`: where entries were in the nested state dict."""
        for name in self._entries:
            if name not in paths:
                begin, _, key = name.rpartition(".")
                paths[name] = (*paths[f"{begin}.{MINE}"][:-1], key)
        made = dcp.Metadata(self._entries, {name: paths[name] for name in self._entries}, self._places)
        with self.file(".metadata.tmp"):
            pickle.dump(made, self._file)
        os.rename(self._folder / ".metadata.tmp", self._folder / ".metadata")
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m spillway.torch.portable", description=__doc__.splitlines()[0],
                                     epilog=__doc__.partition("STORE...\n\n")[2])
    parser.add_argument("checkpoint", metavar="CHECKPOINT")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("stores", metavar="STORE", nargs="+")
    given = parser.parse_args()
    try:
        make_portable(given.checkpoint, given.out, [store.split(",") if "," in store else store for store in given.stores])
    except (spillway.Error, OSError, ValueError) as error:
        print(f"spillway.torch.portable: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
