# SPDX-License-Identifier: Apache-2.0
"""Loads a script of tools/checks, whose name has no suffix, as a module."""

import importlib.machinery
import importlib.util
import pathlib
import sys

CHECKS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "checks"


def load(name):
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(CHECKS))
    loader = importlib.machinery.SourceFileLoader(name, str(CHECKS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module
    loader.exec_module(module)
    return module
