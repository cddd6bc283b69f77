# SPDX-License-Identifier: Apache-2.0
"""Makes an output folder complete or not at all: files are made in a hidden folder, then moved.

Existing files are overwritten only with `force`, and a failure leaves the output as it was. The
hidden folder is inside the output if that exists (the output may be on another file system than
its parent), else beside it. The files are published as follows:

1. If the output does not exist, one rename makes it of the folder with all files.
2. Without `force`, each file is moved to a name that no file has. A failure removes the files that
   were moved.
3. With `force`, the files that are replaced or stale first move to `old` in the hidden folder. A
   failure moves them back.

A process that is killed leaves its hidden folder, `.NAME.partial-XXXXXXXX`. Such a folder holds a
lock file, which the process locks (flock) for as long as it lives. The next run with the same
output removes the folders whose lock is free. It keeps a folder whose `old` holds files.
"""

import atexit
import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from spillway_tools import signals
from spillway_tools.command import InputError, UsageError, format_bytes, leave_behind, tell

_LOCK_FILE = "spillway-partial"
_LOCK_TEXT = (
    b"A spillway tool makes its output here; once its process is gone, so may this folder.\n"
)
_SHARD = re.compile(r"model-[0-9]{5}-of-[0-9]{5}\.safetensors")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class StagedFolder:
    """Context manager. Files are made as `path / NAME`; `publish()` moves them to the output.

    `scratch` is a second folder on the same file system, which is always removed.
    """

    def __init__(self, output, names, force, folders=None):
        """`names` are the possible results that are files, `folders` those that are folders.

        `folders` gives, by name, the suffix that all files in the folder have. Without `force`,
        `output` must have none of them.
        """
        folders = folders or {}
        self._output = Path(output)
        self._names = frozenset((*names, *folders))
        self._folder_suffixes = folders
        self._force = force
        self._root = None
        self._folders = []  # the output's parents that were made here
        self._published = False

    def __enter__(self):
        self._check()
        atexit.register(self._remove)  # in case a signal interrupts __exit__ early
        try:
            signals.hold()
            try:
                self._make_root()
            finally:
                signals.release()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_):
        signals.hold()
        self._remove()
        if self._published:
            signals.complete()
            signals.release()
        signals.release()

    def publish(self):
        """Moves the files. With `force`, other files of `names` and stale shards are removed."""
        self._check()
        for entry in sorted(self.path.rglob("*")):
            with self._errors(self._output / entry.relative_to(self.path)):
                if entry.is_dir():
                    _sync_folder(entry)
                else:
                    _sync(entry)
        signals.hold()
        try:
            if not self._rename_whole():
                self._move_each(sorted(os.listdir(self.path)))
        except BaseException:
            signals.release()
            raise
        self._published = True  # signals stay held until __exit__ has removed the hidden folder
        _sync_folder(self._output)
        _sync_folder(self._output.absolute().parent)

    def _make_root(self):
        parent = self._output.absolute().parent
        prefix = f".{self._output.name}.partial-"
        place = self._output if self._output.is_dir() else parent
        try:
            self._make_folders(parent)
            for folder in {parent, place}:
                _remove_leftovers(folder, prefix)
            self._root, self._locks = _make_locked_folder(place, prefix)
            self.path = self._root / "output"
            self.scratch = self._root / "scratch"
            self.path.mkdir()
            self.scratch.mkdir()
        except OSError as error:
            raise InputError(f"{place}: cannot create a folder there: {error.strerror}") from error

    def _make_folders(self, folder):
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            self._folders.append(folder)

    def _remove_folders(self):
        while self._folders:
            with contextlib.suppress(OSError):  # another process has put a file there
                self._folders.pop().rmdir()

    def _remove(self):
        """Removes the hidden folder and, if nothing was published, the parents that were made."""
        root, self._root = self._root, None
        if root is not None:
            os.close(self._locks.pop())  # frees a descriptor, which listing a folder needs
            try:
                _remove_tree(root)
            except OSError as error:
                leave_behind(root, error)
            os.close(self._locks.pop())
        if not self._published:
            self._remove_folders()

    def _rename_whole(self):
        """Publishes all files by one rename. Returns False if the output exists."""
        if os.path.lexists(self._output):
            return False
        with self._errors(self._output):
            try:
                os.rename(self.path, self._output)  # fails if a folder with files has appeared
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
        return True

    def _move_each(self, names):
        moved, kept = [], []
        old = self._root / "old"
        try:
            if self._force:
                old.mkdir()
                for entry in self._existing():
                    with self._errors(entry):
                        os.rename(entry, old / entry.name)
                    kept.append(entry.name)
            for name in names:
                with self._errors(self._output / name):
                    _move(self.path / name, self._output / name)
                moved.append(name)
            if self._force:
                os.rename(old, self._root / "replaced")  # from here on they are not moved back
        except BaseException:
            self._take_back(moved, old, kept)
            raise

    def _take_back(self, moved, old, kept):
        for name in moved:
            target = self._output / name
            try:
                if target.is_dir():
                    _remove_tree(target)
                else:
                    target.unlink(missing_ok=True)
            except OSError as error:
                leave_behind(target, error)
        for name in kept:
            try:
                os.rename(old / name, self._output / name)
            except OSError as error:
                leave_behind(old / name, error)

    @contextlib.contextmanager
    def _errors(self, target):
        """Makes errors name the output file, not the hidden one."""
        try:
            yield
        except FileExistsError:
            raise UsageError(
                f"{target}: has come into being meanwhile; choose another folder or add --force"
            ) from None
        except OSError as error:
            raise InputError(f"{target}: cannot be put in place: {error.strerror}") from error

    def _check(self):
        output = self._output
        if not output.name:
            raise UsageError(f"{output}: name a folder to write to")
        if output.is_symlink() and not output.exists():
            raise UsageError(
                f"{output}: is a link to {os.readlink(output)}, which does not exist: make that"
                " folder, or choose another"
            )
        if output.exists() and not output.is_dir():
            raise UsageError(f"{output}: is not a folder")
        existing = self._existing()
        # A folder in the place of a file is the user's, and is not replaced.
        for entry in existing:
            is_folder = entry.is_dir() and not entry.is_symlink()
            suffix = self._folder_suffixes.get(entry.name)
            if is_folder and suffix is None:
                raise UsageError(f"{entry}: is a folder; choose another output folder")
            for file in sorted(entry.iterdir()) if is_folder else ():
                if file.suffix != suffix or file.is_dir():
                    raise UsageError(
                        f"{file}: is no {suffix} file, and would be removed with its folder; move"
                        " it, or choose another output folder"
                    )
        if existing and not self._force:
            names = ", ".join(entry.name for entry in existing)
            raise UsageError(
                f"{output}: already holds {names}; choose another folder or add --force"
            )

    def _existing(self):
        """Returns the entries of the output that have the name of a possible result."""
        if not self._output.is_dir():
            return []
        return sorted(entry for entry in self._output.iterdir() if self._makes(entry.name))

    def _makes(self, name):
        return name in self._names or _SHARD.fullmatch(name) is not None


def _move(file, target):
    """Gives `file` the name `target`; fails if that exists. With hard links, `file` stays too."""
    try:
        os.link(file, target)
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    # Another process may make the file between this check and the rename. Few file systems without
    # hard links have a rename that fails if the target exists.
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(file, target)


def _make_locked_folder(parent, prefix):
    """Makes a folder. Returns its path and two descriptors of its lock file, one of them spare."""
    root = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    locks = []
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        locks.append(os.open(root / _LOCK_FILE, flags))
        locks.append(os.dup(locks[0]))
        _try_lock(locks[0])
        # Written once the lock is held. Without the text no run takes the folder as a leftover.
        os.write(locks[0], _LOCK_TEXT)
        return root, locks
    except BaseException:
        (root / _LOCK_FILE).unlink(missing_ok=True)  # neither call needs a descriptor
        root.rmdir()
        for lock in locks:
            os.close(lock)
        raise


def _remove_tree(folder):
    """Removes a folder with one descriptor open at a time, because few may be available."""
    for name in os.listdir(folder):
        entry = folder / name
        if stat.S_ISDIR(os.lstat(entry).st_mode):
            _remove_tree(entry)
        else:
            entry.unlink()
    folder.rmdir()


def _remove_leftovers(parent, prefix):
    """Removes the folders of killed runs. The folders of live runs are locked."""
    name = re.compile(re.escape(prefix) + "[a-z0-9_]{8}")
    try:
        names = [entry for entry in os.listdir(parent) if name.fullmatch(entry)]
    except OSError:  # a folder may allow making files but not listing them
        return
    for entry in (parent / entry for entry in sorted(names)):
        lock = _lock_of_leftover(entry)
        if lock is None:
            continue
        if _holds_old(entry):
            tell(f"{entry}: a killed run was replacing what its folder old holds: move that back")
        else:
            size_bytes = _size_bytes(entry)
            shutil.rmtree(entry, ignore_errors=True)
            tell(f"removed {entry}: {format_bytes(size_bytes)} that a killed run had left")
        os.close(lock)


def _holds_old(folder):
    try:
        return bool(os.listdir(folder / "old"))
    except OSError:
        return False


def _lock_of_leftover(folder):
    """Locks `folder`. Returns None if it is in use, or not this user's, or not this program's."""
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
            # Another run may have removed the folder in the meantime.
            if os.path.samestat(os.fstat(lock), os.stat(folder / _LOCK_FILE)):
                return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _try_lock(descriptor):
    """Returns False if another process holds the lock or if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def _size_bytes(folder):
    """Returns the bytes on disk of all files, as far as folders can be listed."""
    return sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512
        for parent, _, names in os.walk(folder)
        for name in names
    )


def _sync_folder(path):
    with contextlib.suppress(OSError):  # some file systems have no fsync of a folder
        _sync(path)


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
