# SPDX-License-Identifier: Apache-2.0
"""Limits of memory, looked at before the packages are loaded that need it.

Where memory ends in the middle of anything, CPython 3.11 and the packages may abort, print a
traceback or spin for ever in an exception that cannot be built. So a limit below what a small model
takes is refused while nothing has begun.
"""

import contextlib
import os
import resource

# Importing SmolLM2-135M takes about 180 MiB of address space beside the mapping of its weights, and
# 125 MiB of data (x86-64, the versions of requirements.txt). A vocabulary of 128,000 tokens fits.
_LIMITS = (
    (resource.RLIMIT_AS, 512, "address space", "ulimit -v"),
    (resource.RLIMIT_DATA, 384, "data", "ulimit -d"),
)
_SLACK_BYTES = 256 << 20  # for all else that is yet to come
_THREADS = "OPENBLAS_NUM_THREADS"


class TooLittleMemory(Exception):
    """A limit of the shell's leaves too little. Exit code 3."""


def require_memory():
    """TooLittleMemory where the shell's limits leave too little for the packages and a model."""
    for number, needed_mib, what, command in _LIMITS:
        limit, _ = resource.getrlimit(number)
        if limit != resource.RLIM_INFINITY and limit < needed_mib << 20:
            raise TooLittleMemory(
                f"needs about {needed_mib} MiB of {what} and the limit is {limit >> 20} MiB: raise"
                f" it to {needed_mib << 10} or more, or to unlimited ({command})"
            )


def require_address_space(num_bytes, what):
    """TooLittleMemory where the limit leaves no room for mapping `num_bytes` of `what`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    with open("/proc/self/statm", encoding="ascii") as statm:
        used_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    needed_bytes = used_bytes + num_bytes + _SLACK_BYTES
    if limit < needed_bytes:
        raise TooLittleMemory(
            f"{what}: is mapped to be checked, which needs {needed_bytes >> 20} MiB of address"
            f" space and the limit is {limit >> 20} MiB: raise it to {needed_bytes >> 10} or more, or to"
            " unlimited (ulimit -v)"
        )


@contextlib.contextmanager
def one_blas_thread():
    """NumPy's OpenBLAS, loaded meanwhile, starts no threads: each takes memory and none has work.

    What the user has set stays, and a command that is run later sees nothing of this.
    """
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]
