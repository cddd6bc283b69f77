# SPDX-License-Identifier: Apache-2.0
"""An output folder that appears whole: files are made in a hidden folder beside it, then moved.

Nothing that exists is overwritten unless told, and what fails leaves the output as it was.
"""

import os
import shutil
import tempfile
from pathlib import Path

from spillway_tools.command import InputError, UsageError


class StagedFolder:
    """Context manager. Files are made as `path / NAME`; `publish()` moves them to the output.

    `scratch` is a second folder on the same disk that is removed in any case.
    """

    def __init__(self, output, names, force):
        """`names` are the files that may result; without `force` none may exist in `output`."""
        self._output = Path(output)
        self._names = frozenset(names)
        self._force = force

    def __enter__(self):
        self._check()
        parent = self._output.absolute().parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self._root = Path(tempfile.mkdtemp(prefix=f".{self._output.name}.partial-", dir=parent))
        except OSError as error:
            raise InputError(f"{parent}: cannot create a folder there: {error.strerror}") from error
        self.path = self._root / "output"
        self.scratch = self._root / "scratch"
        self.path.mkdir()
        self.scratch.mkdir()
        return self

    def __exit__(self, *_):
        shutil.rmtree(self._root, ignore_errors=True)

    def publish(self, stale=()):
        """Moves the files; those of `stale` that this run did not make go."""
        self._check()
        made = sorted(self.path.iterdir())
        for file in made:
            _sync(file)
        self._output.mkdir(exist_ok=True)
        for file in made:
            target = self._output / file.name
            if self._force:
                os.replace(file, target)
            else:
                os.link(file, target)  # fails where a rename would overwrite
        for name in set(stale) - {file.name for file in made}:
            (self._output / name).unlink(missing_ok=True)
        _sync(self._output)

    def _check(self):
        if not self._output.name:
            raise UsageError(f"{self._output}: name a folder to write to")
        if self._output.exists() and not self._output.is_dir():
            raise UsageError(f"{self._output}: is not a folder")
        if self._force or not self._output.is_dir():
            return
        existing = sorted(entry.name for entry in self._output.iterdir() if self._makes(entry.name))
        if existing:
            raise UsageError(
                f"{self._output}: already holds {', '.join(existing)}; choose another folder or add"
                " --force"
            )

    def _makes(self, name):
        return name in self._names or (name.startswith("model-") and name.endswith(".safetensors"))


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
