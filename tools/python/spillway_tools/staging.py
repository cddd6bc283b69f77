# SPDX-License-Identifier: Apache-2.0
"""An output folder that appears whole: files are made in a hidden folder beside it, then moved.

Nothing that exists is overwritten unless told, and what fails leaves the output as it was.

A process that is killed leaves its hidden folder, `.NAME.partial-XXXXXXXX`. Such a folder holds a
file that this program made and that its process locks (flock) for as long as it lives. The next run
with the same output removes those folders whose lock is free.
"""

import fcntl
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from spillway_tools.command import InputError, UsageError, format_bytes

_LOCK_FILE = "spillway-partial"
_LOCK_TEXT = (
    b"A spillway tool makes its output here; once its process is gone, so may this folder.\n"
)


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
        prefix = f".{self._output.name}.partial-"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(parent, prefix)
            self._root, self._lock = _make_locked_folder(parent, prefix)
        except OSError as error:
            raise InputError(f"{parent}: cannot create a folder there: {error.strerror}") from error
        self.path = self._root / "output"
        self.scratch = self._root / "scratch"
        self.path.mkdir()
        self.scratch.mkdir()
        return self

    def __exit__(self, *_):
        shutil.rmtree(self._root, ignore_errors=True)
        os.close(self._lock)

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
        if not self._output.is_dir():
            return
        existing = sorted(entry for entry in self._output.iterdir() if self._makes(entry.name))
        # A file cannot replace a folder, and half of the output would be new by then.
        for entry in existing:
            if entry.is_dir() and not entry.is_symlink():
                raise UsageError(f"{entry}: is a folder; choose another output folder")
        if existing and not self._force:
            names = ", ".join(entry.name for entry in existing)
            raise UsageError(
                f"{self._output}: already holds {names}; choose another folder or add --force"
            )

    def _makes(self, name):
        return name in self._names or (name.startswith("model-") and name.endswith(".safetensors"))


def _make_locked_folder(parent, prefix):
    """The path of a new folder and the descriptor of its locked file."""
    root = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        lock = os.open(root / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        _try_lock(lock)
        # Written after the lock is held: without the text nobody takes the folder for a leftover.
        os.write(lock, _LOCK_TEXT)
        return root, lock
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise


def _remove_leftovers(parent, prefix):
    """Removes the folders of runs that were killed; those of living ones are locked."""
    name = re.compile(re.escape(prefix) + "[a-z0-9_]{8}")
    try:
        names = [entry for entry in os.listdir(parent) if name.fullmatch(entry)]
    except OSError:  # a folder may allow that files are made there and not that they are listed
        return
    for entry in (parent / entry for entry in sorted(names)):
        lock = _lock_of_leftover(entry)
        if lock is None:
            continue
        size_bytes = _size_bytes(entry)
        shutil.rmtree(entry, ignore_errors=True)
        os.close(lock)
        print(
            f"removed {entry}: {format_bytes(size_bytes)} that a killed run had left",
            file=sys.stderr,
        )


def _lock_of_leftover(folder):
    """A lock on `folder`, or None where it is not this user's, not this program's, or in use."""
    try:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        lock = os.open(
            folder / _LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return None
    try:
        if os.pread(lock, len(_LOCK_TEXT) + 1, 0) == _LOCK_TEXT and _try_lock(lock):
            # Another run may have removed the folder meanwhile.
            if os.path.samestat(os.fstat(lock), os.stat(folder / _LOCK_FILE)):
                return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _try_lock(descriptor):
    """False where another process holds the lock, or where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def _size_bytes(folder):
    """On disk, as far as it can be read."""
    return sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512
        for parent, _, names in os.walk(folder)
        for name in names
    )


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
