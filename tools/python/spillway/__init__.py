# SPDX-License-Identifier: Apache-2.0
"""Spillway: tensors larger than the memory they are used in.

    import spillway

    with spillway.Engine("nvme/run", pinned_bytes="1GiB", device_bytes="1GiB") as engine:
        weight = engine.register("w", "f32", (4096, 4096), tile_rows=512)
        with engine.acquire(weight, tile=3, access="read-write") as lease:
            values = memoryview(lease).cast("B").cast("f")
            values[0] = 1.0
        engine.commit(b"step 1")

Sizes are ints or text such as "2GiB". A view of a lease is void once the lease has ended. numpy.asarray(lease) is such a
view, of bytes. torch.from_dlpack(engine.acquire(weight, tile=3, access="read-write")) is a tensor of the tile's shape and
dtype, which holds the lease until it is gone. NumPy makes what it imports with from_dlpack read-only, and has no bf16. This
package needs neither NumPy nor PyTorch; spillway.torch is for training with PyTorch.
"""

from spillway._engine import Engine, Lease, Stream
from spillway._errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DataLoss,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from spillway._library import version as _version
from spillway._sizes import parse_size
from spillway._store_reader import StoreReader

__version__ = _version()

__all__ = [
    "Aborted", "AlreadyExists", "Cancelled", "DataLoss", "Engine", "Error", "FailedPrecondition", "Internal",
    "InvalidArgument", "Lease", "NotFound", "OutOfRange", "ResourceExhausted", "StoreReader", "Stream", "Unavailable",
    "Unimplemented", "parse_size",
]
