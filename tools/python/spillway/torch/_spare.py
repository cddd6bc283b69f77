# SPDX-License-Identifier: Apache-2.0
"""Temporary files in a store's folders, for bytes that must outlast a change of the store."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, BinaryIO

import spillway
from spillway._folders import named


class SpareFiles:
    """A nameless file in each of the folders, made when those before it are full: the folder with the most room comes first.
    Without folders there is one file, in the folder for temporary files. `size_bytes`: what will be written in all, for
    messages. Not thread-safe."""

    def __init__(self, folders: Sequence[str], size_bytes: int):
        self._place, self._size_bytes = named(folders) or tempfile.gettempdir(), size_bytes
        self._is_several = len(folders) > 1
        by_room = sorted(folders, key=lambda folder: shutil.disk_usage(folder).free, reverse=True)
        self._not_full: list[str | None] = [*by_room] or [None]
        self._has_file = False  # whether the last file is in the first of these
        self._files: list[BinaryIO] = []

    def __enter__(self) -> SpareFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # after a failed write, closing the file tries again
                file.close()

    def write(self, data: Any) -> tuple[BinaryIO, int]:
        """Writes bytes, and returns where they are, for read(). Raises ResourceExhausted if no folder has room for them."""
        why = ""
        while self._not_full:
            try:
                return self._append(data)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                why = error.strerror
            self._not_full.pop(0)
            self._has_file = False
        has = "have" if self._is_several else "has"
        raise spillway.ResourceExhausted(f"{self._place} {has} no room for the {self._size_bytes} bytes of state that this load "
                                         f"saves in a temporary file: make room there ({why})")

    def _append(self, data: Any) -> tuple[BinaryIO, int]:
        if not self._has_file:
            self._files.append(tempfile.TemporaryFile(dir=self._not_full[0], buffering=0))
            self._has_file = True
        file, left = self._files[-1], memoryview(data)
        offset = file.seek(0, os.SEEK_END)
        try:
            while left:
                left = left[file.write(left):]
            file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(offset)  # gives back the room of a part
            raise
        return file, offset

    def read(self, place: tuple[BinaryIO, int], out: memoryview) -> None:
        """Fills `out` with bytes that were written. Raises DataLoss if they are no longer there."""
        file, offset = place
        file.seek(offset)
        if (read := file.readinto(out)) != len(out):
            raise spillway.DataLoss(f"{read} bytes instead of {len(out)} came back of the state that was saved in {self._place} "
                                    "during a load")
