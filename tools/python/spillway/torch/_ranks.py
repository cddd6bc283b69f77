# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job: the processes that torch.distributed joins, or that torchrun has started."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import spillway
import torch
from spillway._folders import Store

# What torchrun sets. The number of a node is that of its group of processes.
_VARIABLES = {"rank": "RANK", "local_rank": "LOCAL_RANK", "node": "GROUP_RANK"}


def is_joined() -> bool:
    """Whether this process takes part in torch.distributed's default group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def rank() -> int:
    return torch.distributed.get_rank() if is_joined() else _number("RANK", 0)


def count() -> int:
    return torch.distributed.get_world_size() if is_joined() else _number("WORLD_SIZE", 1)


def _number(variable: str, otherwise: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else otherwise


def with_numbers(store: Any) -> Any:
    """Returns the folders of a store with this process' numbers in place of `{rank}`, `{local_rank}` and `{node}`. Raises
    FailedPrecondition if the process has no such number."""
    if isinstance(store, (list, tuple)):
        return type(store)(with_numbers(each) for each in store)
    if not isinstance(store, (str, os.PathLike)) or not isinstance(os.fspath(store), str):
        return store  # the caller checks it
    folder = os.fspath(store)
    for word, variable in _VARIABLES.items():
        if f"{{{word}}}" in folder:
            folder = folder.replace(f"{{{word}}}", _number_of(word, variable, folder))
    return folder


def _number_of(word: str, variable: str, folder: str) -> str:
    if word == "rank" and is_joined():
        return str(rank())
    number = os.environ.get(variable, "")
    if not number.isdecimal():
        raise spillway.FailedPrecondition(
            f"the store's folder is {folder!r}, and this process has no {word}, as {variable} is not set: start it with "
            "torchrun, or name a folder without {" + word + "}")
    return number


def of_its_own(store: Store, error: spillway.FailedPrecondition) -> spillway.FailedPrecondition:
    """Returns the error of a store that could not be opened. If another process uses it, and there are several ranks, it says
    that each needs a folder."""
    if count() == 1 or "is in use by process" not in str(error):
        return error
    folder = os.fspath(store) if isinstance(store, (str, os.PathLike)) else "FOLDER"
    return spillway.FailedPrecondition(f"{error}. Each of the {count()} ranks needs a folder of its own, as "
                                       f"store='{folder}/{{rank}}' gives it")


def names_rank(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with errors of spillway that begin with the rank, if there are several."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except spillway.Error as error:
            if count() == 1 or str(error).startswith("rank ") or hasattr(error, "is_of_all_ranks"):
                raise
            error.args = (f"rank {rank()}: {error}", *error.args[1:])
            raise

    return call
