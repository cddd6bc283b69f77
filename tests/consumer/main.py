#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses the C ABI through ctypes alone, as a program in any other language would: main.py LIBRARY STORE_FOLDER.

Registers, leases, commits, snapshots and reopens. Declares the structs itself, as the binding of another language would.
"""

import ctypes
import sys

u32, u64, i32, i64, size_t, pointer = (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t,
                                       ctypes.c_void_p)


class EngineOptions(ctypes.Structure):
    # This has only the members up to page_bytes. The library knows from `size` that the others are missing.
    _fields_ = [("size", size_t), ("store", ctypes.POINTER(ctypes.c_char_p)), ("num_store", size_t), ("mode", i32),
                ("io", i32), ("device_kind", i32), ("device_index", i32), ("store_bytes", u64), ("device_bytes", u64),
                ("pinned_bytes", u64), ("page_bytes", u64)]


class TensorSpec(ctypes.Structure):
    _fields_ = [("size", size_t), ("name", ctypes.c_char_p), ("dtype", i32), ("role", i32),
                ("shape", ctypes.POINTER(i64)), ("rank", size_t), ("tile_rows", i64), ("transient", i32)]


def main(library_path, folder):
    library = ctypes.CDLL(library_path)
    for name in ("spw_engine_open", "spw_register", "spw_acquire", "spw_commit", "spw_snapshot", "spw_read",
                 "spw_commit_number"):
        getattr(library, name).restype = pointer
    library.spw_lease_data.restype = pointer
    library.spw_status_message.restype = ctypes.c_char_p

    def check(status):
        if status:
            raise SystemExit("main.py: " + library.spw_status_message(pointer(status)).decode())

    def open_engine(mode):
        options, engine = EngineOptions(), pointer()
        library.spw_engine_options_init(ctypes.byref(options), size_t(ctypes.sizeof(options)))
        options.store, options.num_store = (ctypes.c_char_p * 1)(folder.encode()), 1
        options.mode = mode
        options.device_bytes = options.pinned_bytes = 1 << 16
        check(library.spw_engine_open(ctypes.byref(options), ctypes.byref(engine)))
        return engine

    def register(engine):
        spec, id = TensorSpec(), u32()
        library.spw_tensor_spec_init(ctypes.byref(spec), size_t(ctypes.sizeof(spec)))
        spec.name, spec.shape, spec.rank, spec.tile_rows = b"weight", (i64 * 2)(32, 4096), 2, 1
        check(library.spw_register(engine, ctypes.byref(spec), None, None, ctypes.byref(id)))
        return id

    engine = open_engine(0)
    id = register(engine)
    for tile in range(32):
        lease = pointer()
        check(library.spw_acquire(engine, id, u64(tile), i32(2), None, ctypes.byref(lease)))
        values = (ctypes.c_float * 4096).from_address(library.spw_lease_data(lease))
        values[4095] = tile + 0.5
        library.spw_lease_release(lease, None)
    check(library.spw_commit(engine, b"state", size_t(5)))
    check(library.spw_snapshot(engine, b"first"))
    library.spw_engine_release(engine)

    engine = open_engine(1)
    id = register(engine)
    for tile in range(32):
        value = ctypes.c_float()
        check(library.spw_read(engine, id, u64((tile * 4096 + 4095) * 4), ctypes.byref(value), u64(4)))
        if value.value != tile + 0.5:
            raise SystemExit(f"main.py: tile {tile} has {value.value}")
    number = u64()
    check(library.spw_commit_number(engine, ctypes.byref(number)))
    if number.value != 1:
        raise SystemExit(f"main.py: commit {number.value}")
    library.spw_engine_release(engine)
    print("main.py: the C ABI keeps what it was given")


if __name__ == "__main__":
    main(*sys.argv[1:])
