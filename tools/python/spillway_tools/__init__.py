# SPDX-License-Identifier: Apache-2.0
"""Spillway's Python helpers: what the C++ side leaves to the Hugging Face libraries.

Importing models (GGUF, wheels, Hugging Face folders), tokenising text, and wrapping token ids for
people. Nothing here trains or computes a model.
"""

__version__ = "0.1.0"
