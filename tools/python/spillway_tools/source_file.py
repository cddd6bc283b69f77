# SPDX-License-Identifier: Apache-2.0
"""Reads the user's files. Most must be regular files, and texts have a limit of size.

A device such as /dev/zero has no end, and a fifo waits for a writer that may never come.
"""

import io
import os
import select
import stat

from spillway_tools.command import InputError, os_errors

_LOOK_SECONDS = 0.2
_KINDS = {
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path, shown=None):
    """Opens the regular file `path` for reading bytes. Messages name `shown`, if it is given."""
    shown = shown or str(path)
    try:
        # Without O_NONBLOCK, opening a fifo would wait. It has no effect on a regular file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError(f"{shown}: is missing") from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise InputError(f"{shown}: is {kind}; a regular file is expected")
    return os.fdopen(descriptor, "rb")


def read_exactly(file, offset, num_bytes, shown):
    """Reads `num_bytes` from byte `offset` on. InputError if the file has become shorter.

    With a mapping, a shorter file would end the process with SIGBUS.
    """
    pieces = []
    with os_errors(f"{shown}: cannot be read"):
        while num_bytes > 0:
            piece = os.pread(file.fileno(), num_bytes, offset)
            if not piece:
                raise InputError(f"{shown}: has become shorter while it was read")
            pieces.append(piece)
            offset += len(piece)
            num_bytes -= len(piece)
    return b"".join(pieces)


class WaitingFile(io.FileIO):
    """A file or a pipe that is read without a buffer, and handles signals while it waits.

    A signal that arrives just before a blocking read only sets a flag, which Python checks after
    the read. So this class waits for data with a time limit, and reads afterwards.
    """

    def read(self, size=-1):
        while not select.select([self], [], [], _LOOK_SECONDS)[0]:
            pass
        return super().read(size)


def read_bytes(path, max_bytes, shown=None):
    """Returns what `path` holds. InputError if it has more than `max_bytes`."""
    shown = shown or str(path)
    with open_regular(path, shown) as file, os_errors(f"{shown}: cannot be read"):
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InputError(f"{shown}: has more than {max_bytes} bytes, too many for such a file")
    return data


def read_text(path, max_bytes, shown=None):
    """Returns the text of `path`. InputError if it is not UTF-8 or has more than `max_bytes`."""
    shown = shown or str(path)
    data = read_bytes(path, max_bytes, shown)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{shown}: is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from error
