# SPDX-License-Identifier: Apache-2.0
"""Checks the memory limits before the packages that need the memory are loaded.

If memory runs out later, CPython 3.11 and the packages may abort, print a traceback, or loop for
ever on an exception that cannot be built. So a command refuses at its start to run with a limit
that is below the needs of a small model.
"""

import contextlib
import os
import resource

# Importing SmolLM2-135M takes about 180 MiB of address space beside the mapping of its weights, and
# 125 MiB of data (x86-64, with the versions in requirements.txt). The limits leave room for a
# vocabulary of 128,000 tokens.
_LIMITS = (
    (resource.RLIMIT_AS, 512, "address space", "ulimit -v"),
    (resource.RLIMIT_DATA, 384, "data", "ulimit -d"),
)
_SLACK_BYTES = 256 << 20  # for everything that is allocated later
_THREADS = "OPENBLAS_NUM_THREADS"


class TooLittleMemory(Exception):
    """A limit that the shell has set (ulimit) is too low. Exit code 3."""


def require_memory():
    """TooLittleMemory if the limits are too low for the packages and a model."""
    for number, needed_mib, what, command in _LIMITS:
        limit, _ = resource.getrlimit(number)
        if limit != resource.RLIM_INFINITY and limit < needed_mib << 20:
            raise TooLittleMemory(
                f"needs about {needed_mib} MiB of {what} and the limit is {limit >> 20} MiB: raise"
                f" it to {needed_mib << 10} or more, or to unlimited ({command})"
            )


def require_address_space(num_bytes, what):
    """TooLittleMemory if the limit leaves no room to map `num_bytes` of `what`."""
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
    """If NumPy's OpenBLAS is loaded in this context, it starts no threads.

    The threads would have no work, and each takes memory. A value that the user has set stays. The
    variable is removed at the end, so that child processes do not inherit it.
    """
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]
