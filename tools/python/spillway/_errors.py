# SPDX-License-Identifier: Apache-2.0
"""An exception class for each absl::Status code that the library returns."""


class Error(Exception):
    """A call failed. The message says what failed, where, what the limit was and what to do. `code` is the number of the
    absl::StatusCode."""

    code = 2  # unknown


class Cancelled(Error):
    """A function that the caller supplied ended the call."""
    code = 1


class InvalidArgument(Error, ValueError):
    code = 3


class NotFound(Error, KeyError):
    code = 5

    __str__ = Exception.__str__  # KeyError's would quote the message


class AlreadyExists(Error):
    code = 6


class ResourceExhausted(Error, MemoryError):
    """A budget, the machine's memory or the disk is too small. The message says which one, and what would fit."""
    code = 8


class FailedPrecondition(Error, RuntimeError):
    """A call out of order: a commit with leases held, creating a store that exists, using an engine in a forked process."""
    code = 9


class Aborted(Error, RuntimeError):
    """The GPU is lost, or a wait for it has failed. Only a new process can go on, from the last commit."""
    code = 10


class OutOfRange(Error, IndexError):
    code = 11


class Unimplemented(Error, NotImplementedError):
    code = 12


class Internal(Error, RuntimeError):
    code = 13


class Unavailable(Error, OSError):
    """The operating system refused a call. The message names its error, the file and the offset."""
    code = 14

    __str__ = Exception.__str__


class DataLoss(Error, OSError):
    """Bytes read from storage are not those that were written. The message names the file, the offset and the tensor."""
    code = 15

    __str__ = Exception.__str__


BY_CODE = {each.code: each for each in (Cancelled, InvalidArgument, NotFound, AlreadyExists, ResourceExhausted,
                                        FailedPrecondition, Aborted, OutOfRange, Unimplemented, Internal, Unavailable,
                                        DataLoss)}
