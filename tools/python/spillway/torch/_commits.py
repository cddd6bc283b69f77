# SPDX-License-Identifier: Apache-2.0
"""State dicts that name commits, where several ranks train.

Under DistributedDataParallel rank 0 alone saves, and its store alone has the commit: it sends the state to the others.

Of sharded parameters each rank has a part of the state, and a store. All ranks commit, and state_dict() returns the same dict
on each. It names the commits in the parameters' groups, which torch.distributed.checkpoint (DCP) keeps, while it drops a key
beside them. The checkpoint is whole once DCP has written its metadata, and then has one commit of every rank. What a commit has
is described in the store, in the user state. When a job starts again, torchrun may give a rank another number, and so another
store: the rank that has a store sends its state to the rank that needs it.
"""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any, NamedTuple

import spillway
import torch
import torch.distributed as dist
from spillway.torch import _ranks, _together
from spillway.torch._snapshot_pipe import SnapshotPipe
from spillway.torch._together import Parcel

MINE = "spillway"  # the key of what spillway.torch adds to state dicts


# --- One rank's commit, loaded on all ---

def go_to(optimizer: Any, mine: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Brings the optimizer of each rank to the commit that its state dict names: from the store of this rank, or from that of
    the rank that has it. All ranks must call this. If it fails on one, it raises on all."""
    run, me = optimizer.run, dist.get_rank()

    def described() -> tuple[str, str, str]:
        return _store_id(run), "" if run.needs_no_commit(mine) else mine["store_id"], mine["label"]

    sources = _sources(_together.on_all(described))
    _together.on_all(lambda: optimizer.go_to(mine, groups, is_here=me not in sources))
    if not sources:
        return

    def sent() -> list[tuple[str, int]]:
        if me not in sources.values():
            return []
        specs = map(run.engine.spec, optimizer.ids + run.brought_weights(mine, optimizer))
        return [(spec["name"], spec["size_bytes"]) for spec in specs]

    tensors = _together.on_all(sent)

    def read(number: int, offset: int, out: memoryview) -> None:
        run.engine.read(run.engine.find(tensors[me][number][0]), offset, out)

    _send(optimizer, sources, tensors, read)


def _sources(there: list[tuple[str, str, str]]) -> dict[int, int]:
    """Returns the rank that sends the state, by the rank that needs it. `there`: of each rank the id of its store, that of the
    store which its state dict names ("": it needs none), and the commit's label."""
    sources: dict[int, int] = {}
    for rank, (here, wanted, label) in enumerate(there):
        if wanted in ("", here):
            continue
        have = [other for other, (store, _, _) in enumerate(there) if store == wanted]
        if not have:
            raise _together.of_all_ranks(spillway.FailedPrecondition(
                f"the state dict that rank {rank} loads names commit {label} of store {wanted}, and none of the {len(there)} "
                "ranks has that store: a copied checkpoint does not carry the state. Open that store on one of them, or save "
                "full_state_dict() there and load it here"))
        if there[have[0]][1:] != (wanted, label):
            raise _together.of_all_ranks(spillway.FailedPrecondition(
                f"rank {rank} is to load commit {label}, which the store of rank {have[0]} has, and that rank another commit: "
                "load the same state dict on both"))
        sources[rank] = have[0]
    return sources


def _send(optimizer: Any, sources: dict[int, int], tensors: list[list[tuple[str, int]]], read: Any) -> None:
    """Sends tensors, whose names and sizes are given by the rank that has them. `sources`: the rank that sends, by the rank
    that needs the state and has made room for it."""
    run, me = optimizer.run, dist.get_rank()
    of_mine = tensors[sources[me]] if me in sources else []

    def ids() -> list[int]:
        found = [run.engine.find(name) for name, _ in of_mine]
        for id, (name, size) in zip(found, of_mine):
            if (here := run.engine.spec(id)["size_bytes"]) != size:
                raise spillway.FailedPrecondition(f"{name} has {here} bytes, and {size} on rank {sources[me]}, which sends it: "
                                                  "make the optimizers of all ranks alike")
        return found

    here: list[int] = []
    _together.on_all(lambda: here.extend(ids()))
    parcels = [Parcel(source, [rank for rank, of in sources.items() if of == source], [size for _, size in tensors[source]])
               for source in sorted(set(sources.values()))]
    with run.leasing.none():
        failure = _together.send(parcels, read, lambda number, offset, data: run.engine.write(here[number], data, offset))
    _together.on_all(lambda: _together.raise_if(failure))


def _store_id(run: Any) -> str:
    return run.engine.store_id if run.store is not None else ""


# --- A commit of each rank ---

class Named(NamedTuple):
    """A rank's commit, as a state dict of all ranks names it."""

    store_id: str  # "": the run has no store, or there was no step yet
    label: str
    is_new: bool  # whether the state is one before any step, which needs no commit


class OfAll(NamedTuple):
    """The commits that a state dict of all ranks names."""

    optimizer: str  # its name, with which the names of its state begin
    ranks: list[Named]

    def text(self) -> str:
        return json.dumps({"optimizer": self.optimizer, "ranks": [list(each) for each in self.ranks]})

    @staticmethod
    def parsed(text: str) -> OfAll:
        made = json.loads(text)
        return OfAll(made["optimizer"], [Named(*each) for each in made["ranks"]])


def state_dict(optimizer: Any) -> dict[str, Any]:
    """Commits on all ranks, which must all call this, and returns the dict that names the commits. The commits that are older
    are dropped after all have succeeded."""
    run = optimizer.run
    _together.on_all(optimizer.finish_updates)
    run.has_stepped |= any(_together.on_all(lambda: run.has_stepped))
    if run.has_stepped and not all(_together.on_all(lambda: run.store is not None)):
        raise _together.of_all_ranks(spillway.FailedPrecondition(
            "a run without a store cannot commit, so there is nothing that a state dict could name: give the optimizer "
            "store='FOLDER/{rank}', or checkpoint='tensors'"))
    before = set(run.made)

    def commit() -> Named:
        kept = optimizer.keep_commit()
        return Named(kept["store_id"], kept["label"], bool(kept.get("new")))

    try:
        named = _together.on_all(commit)
    except BaseException:
        run.drop_unnamed(run.made - before)
        raise
    _together.on_all(run.drop_old)
    text = OfAll(optimizer.described()[MINE]["name"], named).text()
    groups = optimizer.torch_groups()
    return {"state": {position: optimizer.state[param] for position, param in optimizer.with_state().items()},
            "param_groups": [group | {MINE: text} for group in groups]}


def taken(groups: list[dict[str, Any]]) -> OfAll | None:
    """Takes what state_dict() has put into the groups out of them, and returns it; None: there is nothing."""
    texts = [group.pop(MINE, None) for group in groups]
    return OfAll.parsed(texts[0]) if texts and texts[0] else None


def go_to_all(optimizer: Any, named: OfAll, groups: list[dict[str, Any]]) -> None:
    """Brings the optimizer of each rank to the commit that a dict of state_dict() names for that rank, from its own store or
    from that of another rank. All ranks must call this. If it fails on one, it raises on all."""
    run, me, wanted = optimizer.run, dist.get_rank(), named.ranks
    if len(wanted) != dist.get_world_size():
        raise _together.of_all_ranks(spillway.FailedPrecondition(
            f"the state dict names the commits of {len(wanted)} ranks, and there are {dist.get_world_size()} now: load it with "
            f"{len(wanted)} ranks and save it with checkpoint='tensors', or make it portable by "
            "python -m spillway.torch.portable"))
    if all(_together.on_all(lambda: wanted[me].is_new or run.needs_no_commit(wanted[me]._asdict()))):
        mine = copy.deepcopy(optimizer.described()[MINE]) | {"label": wanted[me].label, "store": None, "new": wanted[me].is_new}
        if wanted[me].is_new:
            mine["steps"] = [[0] * len(steps) for steps in mine["steps"]]
        _together.on_all(lambda: optimizer.go_to(mine, groups))
        return

    def described() -> tuple[str, int | None, dict[str, Any] | None]:
        saved_as = next((rank for rank, each in enumerate(wanted) if each.store_id and each.store_id == _store_id(run)), None)
        mine = _described_in(run, wanted[saved_as].label, named.optimizer) if saved_as is not None else None
        return _store_id(run), saved_as, None if saved_as == me else mine

    there = _together.on_all(described)
    holders = {saved_as: rank for rank, (_, saved_as, _) in enumerate(there) if saved_as is not None}
    if lost := [rank for rank in range(len(wanted)) if rank not in holders]:
        raise _together.of_all_ranks(spillway.FailedPrecondition(
            f"the state dict names commit {wanted[lost[0]].label} of rank {lost[0]}, which is in store "
            f"{wanted[lost[0]].store_id or '(none: the run had no store)'}, and no rank has that store: open it on one of the "
            f"{len(wanted)} ranks. If it is lost, load a checkpoint that was saved with checkpoint='tensors'"))
    mine = there[holders[me]][2]
    if mine is None:
        mine = _described_in(run, wanted[me].label, named.optimizer)
    sources = {saved_as: rank for saved_as, rank in holders.items() if saved_as != rank}
    _together.on_all(lambda: optimizer.go_to(mine, groups, is_here=me not in sources))
    if not sources:
        return
    saved_as = there[me][1]
    tensors = [[(spec["name"], spec["size_bytes"]) for spec in of["tensors"]] if of else [] for _, _, of in there]
    specs = there[me][2]["tensors"] if me in sources else []
    with contextlib.ExitStack() as stack:
        pipes: list[SnapshotPipe] = []
        _together.on_all(lambda: pipes.append(stack.enter_context(SnapshotPipe(run.folders, wanted[saved_as].label, specs))))
        _send(optimizer, sources, tensors, lambda number, offset, out: pipes[0].read(out))
    if me in sources:
        run.has_loaded(wanted[saved_as]._asdict(), named.optimizer)


def last(run: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns the dict of the newest commits of all ranks, given what the newest commit of this rank's store says of an
    optimizer. All ranks must call this. Raises FailedPrecondition if the commits are of different steps, or not one of each
    rank."""
    mine = state_dict[MINE]
    if not _ranks.is_joined():
        raise spillway.FailedPrecondition(f"the last commit of the store in {run.place} has a part of the state, that of rank "
                                          f"{mine['rank']}, and torch.distributed joins no ranks here")
    there = _together.on_all(lambda: (mine["rank"], Named(_store_id(run), mine["label"], False), mine["steps"]))
    if sorted(rank for rank, _, _ in there) != list(range(len(there))):
        raise _together.of_all_ranks(spillway.FailedPrecondition(
            f"the last commits of the {len(there)} ranks' stores are those of ranks "
            f"{', '.join(str(rank) for rank, _, _ in there)}: open the stores of all ranks, or load a checkpoint"))
    if any(steps != mine["steps"] for _, _, steps in there):
        raise _together.of_all_ranks(spillway.FailedPrecondition(
            "the last commits of the ranks' stores are of different steps, as a job ended between them: load a checkpoint, "
            "which names commits of one step"))
    text = OfAll(mine["name"], [named for _, named, _ in sorted(there)]).text()
    steps = [step for group in mine["steps"] for step in group]
    marks = {position: {MINE: torch.tensor([position], device="cpu")} for position, step in enumerate(steps) if step > 0}
    return {"state": marks, "param_groups": [group | {MINE: text} for group in state_dict["param_groups"]]}


def _described_in(run: Any, label: str, optimizer: str) -> dict[str, Any]:
    """Returns what names a snapshot of this rank's store and says what it has of an optimizer. Raises NotFound if there is no
    such snapshot, or it does not have it."""
    run.check_has(label)
    state = json.loads(run.engine.snapshot_user_state(label) or b"{}")
    for each in state.get("optimizers", []):
        if each[MINE]["name"] == optimizer:
            return each[MINE] | state["kept"]
    raise spillway.NotFound(f"snapshot {label} of the store in {run.place} does not say what it has of optimizer '{optimizer}'")
