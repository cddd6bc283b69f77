# SPDX-License-Identifier: Apache-2.0
"""The folders of a store, as callers name them and as messages do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from spillway._errors import InvalidArgument

# What a caller may give as a store: a folder, several, one on each drive, or None for no store.
Store = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


def folders_of(store: Any) -> list[str]:
    """Returns a store's folders, in their order; none for None. Raises InvalidArgument for anything but a str, a path, or a
    list or tuple of these that is not empty."""
    if store is None:
        return []
    if isinstance(store, (list, tuple)):
        if not store:
            raise InvalidArgument(f"store is {store!r}: name a folder on each drive, or give None for no store")
        return [_folder(each, f"folder {number} of the store {store!r}") for number, each in enumerate(store, 1)]
    folder = _folder(store, "store")
    _check_not_a_list(folder)
    return [folder]


def named(folders: Sequence[str]) -> str:
    """Returns the folders for a message: "a", "a and b", or "a, b and c"."""
    return " and ".join(filter(None, (", ".join(folders[:-1]), *folders[-1:])))


def _folder(given: Any, what: str) -> str:
    folder = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(folder, str):
        raise InvalidArgument(f"{what} is {given!r}: a folder is a str or a path, and several folders are a list of these")
    if "\0" in folder:
        raise InvalidArgument(f"{what} is {given!r}: it must not have the character NUL")
    return folder


def _check_not_a_list(folder: str) -> None:
    """Raises InvalidArgument if the folder would be made with a comma in its name. The command separates a store's folders
    by commas, so what was meant is probably several folders: one folder would put all bytes on one drive."""
    there = folder
    while there and not os.path.lexists(there):
        there, name = os.path.split(there)
        if "," in name:
            raise InvalidArgument(f"store is {folder!r}: a str names one folder. For several, give a list, as "
                                  f"{folder.split(',')!r}. For one whose name has a comma, make it first")
