# SPDX-License-Identifier: Apache-2.0
"""Reads the snapshots of a store without an engine. include/spillway/store_reader.h describes each call in full."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from spillway._engine import spec_of, text_of
from spillway._folders import Store, folders_of
from spillway._library import Address, Handle, call, library, taken_bytes, taken_text, u8


class StoreReader:
    """A store that is open for reading, which changes nothing in it. Another process may have it open and go on with it; this
    process must not. `store`: a folder, or the list of all folders, in the store's order. Raises NotFound if there is no store.
    """

    def __init__(self, store: Store):
        folders = folders_of(store)
        paths = (ctypes.c_char_p * max(1, len(folders)))(*[os.fsencode(folder) for folder in folders])
        address = Address(library.spw_store_reader_release)
        call(library.spw_store_reader_open, paths, len(folders), ctypes.byref(address))
        self._handle = Handle(address, "the store's reader was closed")

    def close(self) -> None:
        """Lets other processes open the store."""
        self._handle.close()

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def store_id(self) -> str:
        """The store's id, as Engine.store_id."""
        return taken_text(library.spw_store_reader_id, self._handle.get())

    def user_state(self, label: str) -> bytes:
        """Returns the user state of a snapshot's commit. Raises NotFound if there is no such snapshot."""
        return taken_bytes(library.spw_store_reader_user_state, self._handle.get(), text_of(label, "label")) or b""

    def read(self, label: str, spec: dict[str, Any], out: Any = None) -> Any:
        """Returns all bytes that a tensor has in a snapshot, in `out`, a writable buffer of its size, or in a new bytearray.
        `spec`: what Engine.spec returns for such a tensor. Raises NotFound if the snapshot does not hold it."""
        out = bytearray(spec["size_bytes"]) if out is None else out
        view = memoryview(out).cast("B")
        wanted = spec_of(spec["name"], spec["dtype"], spec["shape"], spec["role"], spec["tile_rows"])
        memory = (u8 * view.nbytes).from_buffer(view) if view.nbytes else None
        call(library.spw_store_reader_read, self._handle.get(), text_of(label, "label"), ctypes.byref(wanted), memory,
             view.nbytes)
        return out
