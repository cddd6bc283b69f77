# SPDX-License-Identifier: Apache-2.0
"""An output folder that appears whole: files are made in a hidden folder, then moved.

Nothing that exists is overwritten unless told, and what fails leaves the output as it was. The
hidden folder is inside the output where that exists (it may be another file system than what it is
in), else beside it. From there

1. an output that does not exist is one rename of the folder with all files;
2. without `force` each file is moved where no file is; a failure takes back those that were;
3. with `force` the files that are replaced or stale go to `old` in the hidden folder first; a
   failure moves them back.

A process that is killed leaves its hidden folder, `.NAME.partial-XXXXXXXX`. Such a folder holds a
file that this program made and that its process locks (flock) for as long as it lives. The next run
with the same output removes those folders whose lock is free; one whose `old` holds files is kept.
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

    `scratch` is a second folder on the same disk that is removed in any case.
    """

    def __init__(self, output, names, force):
        """`names` are the files that may result; without `force` none may exist in `output`."""
        self._output = Path(output)
        self._names = frozenset(names)
        self._force = force
        self._root = None
        self._folders = []  # that were made for the output to be in
        self._published = False

    def __enter__(self):
        self._check()
        atexit.register(self._remove)  # should a signal cut __exit__ off before it holds them
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
        """Moves the files. With `force`, others of `names` and other shards of a model go."""
        self._check()
        made = sorted(self.path.iterdir())
        for file in made:
            with self._errors(self._output / file.name):
                _sync(file)
        signals.hold()
        try:
            if not self._rename_whole():
                self._move_each([file.name for file in made])
        except BaseException:
            signals.release()
            raise
        self._published = True  # signals are held until __exit__ has removed what is left
        with contextlib.suppress(OSError):  # some file systems have no fsync of a folder
            _sync(self._output)
            _sync(self._output.absolute().parent)

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
            with contextlib.suppress(OSError):  # somebody else has put something there
                self._folders.pop().rmdir()

    def _remove(self):
        """The hidden folder; if nothing was published, also the folders made for the output."""
        root, self._root = self._root, None
        if root is not None:
            os.close(self._locks.pop())  # one descriptor is enough to list a folder
            try:
                _remove_tree(root)
            except OSError as error:
                leave_behind(root, error)
            os.close(self._locks.pop())
        if not self._published:
            self._remove_folders()

    def _rename_whole(self):
        """False where the output exists."""
        if os.path.lexists(self._output):
            return False
        with self._errors(self._output):
            try:
                os.rename(self.path, self._output)  # fails where a folder has come to hold files
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
                os.rename(old, self._root / "replaced")  # from here on nobody needs them
        except BaseException:
            self._take_back(moved, old, kept)
            raise

    def _take_back(self, moved, old, kept):
        for name in moved:
            try:
                (self._output / name).unlink(missing_ok=True)
            except OSError as error:
                leave_behind(self._output / name, error)
        for name in kept:
            try:
                os.rename(old / name, self._output / name)
            except OSError as error:
                leave_behind(old / name, error)

    @contextlib.contextmanager
    def _errors(self, target):
        """Errors name the file that is to be, not the hidden one."""
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
        # A file cannot replace a folder, and half of the output would be new by then.
        for entry in existing:
            if entry.is_dir() and not entry.is_symlink():
                raise UsageError(f"{entry}: is a folder; choose another output folder")
        if existing and not self._force:
            names = ", ".join(entry.name for entry in existing)
            raise UsageError(
                f"{output}: already holds {names}; choose another folder or add --force"
            )

    def _existing(self):
        """What the output holds of the files that may result."""
        if not self._output.is_dir():
            return []
        return sorted(entry for entry in self._output.iterdir() if self._makes(entry.name))

    def _makes(self, name):
        return name in self._names or _SHARD.fullmatch(name) is not None


def _move(file, target):
    """A rename that fails where `target` exists, on file systems with hard links and without."""
    try:
        os.link(file, target)
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    # Between this look and the rename another process may make the file. Of the file systems without
    # links few have a rename that would tell.
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(file, target)


def _make_locked_folder(parent, prefix):
    """The path of a new folder and two descriptors of its locked file, one of them to spare."""
    root = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    locks = []
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        locks.append(os.open(root / _LOCK_FILE, flags))
        locks.append(os.dup(locks[0]))
        _try_lock(locks[0])
        # Written after the lock is held: without the text nobody takes the folder for a leftover.
        os.write(locks[0], _LOCK_TEXT)
        return root, locks
    except BaseException:
        (root / _LOCK_FILE).unlink(missing_ok=True)  # neither takes a descriptor
        root.rmdir()
        for lock in locks:
            os.close(lock)
        raise


def _remove_tree(folder):
    """With one descriptor at a time: there may be few."""
    for name in os.listdir(folder):
        entry = folder / name
        if stat.S_ISDIR(os.lstat(entry).st_mode):
            _remove_tree(entry)
        else:
            entry.unlink()
    folder.rmdir()


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
