# SPDX-License-Identifier: Apache-2.0
"""Turns gradients off, and on again whatever a signal's handler breaks off."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function as torch.no_grad() decorates it. That enters and leaves a context in Python code, where the exception
    of a handler, such as KeyboardInterrupt, would leave gradients off."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        was = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)
            result = function(*args, **kwargs)
            return result
        finally:
            try:  # before Python 3.11 an exception may come before the first call
                torch._C._set_grad_enabled(was)
            finally:
                torch._C._set_grad_enabled(was)

    return run
