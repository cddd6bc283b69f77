# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job do together. An error of one rank is raised on all: none waits for a rank that has given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import spillway
import torch
import torch.distributed as dist
from spillway import _errors
from spillway.torch import _ranks

Result = TypeVar("Result")
# The most bytes that are in memory of a tensor that is sent from one rank to others.
PIECE_BYTES = 16 << 20


def is_several() -> bool:
    """Whether torch.distributed has joined several ranks."""
    return _ranks.is_joined() and dist.get_world_size() > 1


def on_all(work: Callable[[], Result]) -> list[Result]:
    """Runs `work` on all ranks, which must all call this. Returns the results by rank: they must be small, and are pickled.
    Raises the same error on all ranks, with the numbers of those where `work` failed, if it failed on some."""
    result, failure = None, None
    try:
        result = work()
    except BaseException as error:  # also Ctrl-C's: the others must not wait
        failure = error
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (result, None if failure is None else _described(failure)))
    failures = {rank: described for rank, (_, described) in enumerate(answers) if described is not None}
    if failure is not None and not isinstance(failure, Exception):
        raise failure
    if failures:
        raise of_all_ranks(_error(failures)) from failure
    return [result for result, _ in answers]


def of_all_ranks(error: spillway.Error) -> spillway.Error:
    """Returns the error, as one that is raised on all ranks alike: it is not given the number of each rank."""
    error.is_of_all_ranks = True
    return error


def raise_if(failure: Exception | None) -> None:
    if failure is not None:
        raise failure


def _described(error: BaseException) -> tuple[int, str]:
    """Returns the code and the text of an error, from which any rank can make it."""
    if isinstance(error, spillway.Error):
        return error.code, str(error)
    return spillway.Error.code, f"{type(error).__name__}: {error}"


def _error(failures: dict[int, tuple[int, str]]) -> spillway.Error:
    code, text = next(iter(failures.values()))
    alike = [rank for rank, described in failures.items() if described == (code, text)]
    others = len(failures) - len(alike)
    if len(alike) < dist.get_world_size() and not text.startswith("rank "):
        text = f"{'ranks' if len(alike) > 1 else 'rank'} {', '.join(map(str, alike))}: {text}"
    if others:
        text += f" ({others} of the other ranks failed, too)"
    return _errors.BY_CODE.get(code, spillway.Error)(text)


class Parcel(NamedTuple):
    """Tensors that one rank sends to others, as bytes."""

    source: int
    targets: list[int]
    sizes: Sequence[int]  # of the tensors, in bytes


def send(parcels: Sequence[Parcel], read: Callable[[int, int, memoryview], Any],
         write: Callable[[int, int, memoryview], Any]) -> Exception | None:
    """Sends tensors in pieces. All ranks must call this with the same parcels. The source of a parcel calls
    read(number, offset, out), which fills `out` with bytes of one of its tensors; its targets call write(number, offset, bytes)
    for the same. A rank is the source of one parcel at most, and a target of one. A rank where one of them fails goes on with
    the exchange, and returns the error, which on_all() can raise."""
    me, group, failures = dist.get_rank(), _group_of_memory(), []

    def try_to(work: Callable[[int, int, memoryview], Any], *arguments: Any) -> None:
        if not failures:
            try:
                work(*arguments)
            except Exception as error:
                failures.append(error)

    for source, targets, sizes in parcels:
        is_broadcast = {source, *targets} == set(range(dist.get_world_size()))
        if not is_broadcast and me != source and me not in targets:
            continue
        memory = torch.empty(min(PIECE_BYTES, max(sizes, default=0)), dtype=torch.uint8, device="cpu")
        for number, offset, size in pieces(sizes):
            piece = memory[:size]
            if me == source:
                try_to(read, number, offset, memoryview(piece.numpy()))
            if is_broadcast:
                dist.broadcast(piece, source, group=group)
            elif me == source:
                for target in targets:
                    dist.send(piece, target, group=group)
            else:
                dist.recv(piece, source, group=group)
            if me in targets:
                try_to(write, number, offset, memoryview(piece.numpy()))
    return failures[0] if failures else None


def pieces(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns the number of the tensor, the offset and the size of each piece of tensors of these sizes."""
    return [(number, offset, min(PIECE_BYTES, size - offset)) for number, size in enumerate(sizes)
            for offset in range(0, size, PIECE_BYTES)]


_of_memory: dict[Any, Any] = {}  # by the default group: a group that sends what is in memory


def _group_of_memory() -> Any:
    """Returns a group of all ranks that sends tensors in memory; None: the default group does. All ranks must call this."""
    default = dist.distributed_c10d._get_default_group()
    if "gloo" in str(dist.get_backend_config(default)):
        return None
    if default not in _of_memory:
        _of_memory.clear()
        _of_memory[default] = dist.new_group(backend="gloo")
    return _of_memory[default]
