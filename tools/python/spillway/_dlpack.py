# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules (https://dmlc.github.io/dlpack/latest/python_spec.html), made with ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

_api = ctypes.pythonapi
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# These take an object's address instead of a reference: a destructor must not take a reference to the object that is being
# destroyed.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_clear_error = ctypes.PYFUNCTYPE(None)(("PyErr_Clear", _api))
_make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
set_destructor = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(("PyCapsule_SetDestructor", _api))

_NAME = b"dltensor"  # a consumer renames the capsule to "used_dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("dtype", ctypes.c_uint32), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]


class _ManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


@_DESTRUCTOR
def _destroy(capsule: int) -> None:
    # An error that is set here would end this function before it has called the deleter, and ctypes cannot set it again
    # afterwards. Lease.__dlpack__ sees to it that a consumer's error is not set.
    _clear_error()
    if not _is_valid(capsule, _NAME):
        return
    delete(_pointer_of(capsule, _NAME))


DESTRUCTOR = ctypes.cast(_destroy, ctypes.c_void_p)


def delete(managed_tensor: int) -> None:
    """Calls the deleter of the DLManagedTensor at this address."""
    _DELETER(_ManagedTensor.from_address(managed_tensor).deleter)(managed_tensor)


def capsule(managed_tensor: int) -> Any:
    """Returns a capsule for the DLManagedTensor at this address. It owns the tensor after set_destructor(capsule, DESTRUCTOR):
    then the capsule, or its consumer, calls the tensor's deleter."""
    return _make(managed_tensor, _NAME, None)
