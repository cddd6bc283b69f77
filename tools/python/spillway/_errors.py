# SPDX-License-Identifier: Apache-2.0
"""An exception class for each code of absl::Status that the library gives."""


class Error(Exception):
    """A call failed. The message names what, where, the limit and the fix; `code` is absl::StatusCode's number."""

    code = 2  # unknown


class Cancelled(Error):
    """What the caller gave ended the call."""
    code = 1


class InvalidArgument(Error, ValueError):
    code = 3


class NotFound(Error, KeyError):
    code = 5

    __str__ = Exception.__str__  # KeyError's would quote the message


class AlreadyExists(Error):
    code = 6


class ResourceExhausted(Error, MemoryError):
    """A budget, the machine's memory or the disk: the message says which, and what would fit."""
    code = 8


class FailedPrecondition(Error, RuntimeError):
    """A call out of order: a commit with leases held, a store that exists, an engine in a forked process."""
    code = 9


class Aborted(Error, RuntimeError):
    """The GPU is lost: only a new process helps, at the last commit."""
    code = 10


class OutOfRange(Error, IndexError):
    code = 11


class Unimplemented(Error, NotImplementedError):
    code = 12


class Internal(Error, RuntimeError):
    code = 13


class Unavailable(Error, OSError):
    """The operating system refused: the message has its words, the file and the offset."""
    code = 14

    __str__ = Exception.__str__


class DataLoss(Error, OSError):
    """Bytes on the device are not those that were written: the message names file, offset and tensor."""
    code = 15

    __str__ = Exception.__str__


BY_CODE = {each.code: each for each in (Cancelled, InvalidArgument, NotFound, AlreadyExists, ResourceExhausted,
                                        FailedPrecondition, Aborted, OutOfRange, Unimplemented, Internal, Unavailable,
                                        DataLoss)}
