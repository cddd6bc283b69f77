# SPDX-License-Identifier: Apache-2.0
"""Spillway's Python helpers, which do what the C++ side leaves to the Hugging Face libraries.

They import models (GGUF, wheels, Hugging Face folders), tokenise text, and generate text through
`spillway generate`, which takes and gives token ids. Nothing here trains or computes a model.
"""

__version__ = "0.1.0"
