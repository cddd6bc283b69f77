# SPDX-License-Identifier: Apache-2.0
"""The table of model types: what each `model_type` of a config.json computes, and how its tensors are called.

tools/hf/model_types.json is built into the command `spillway`, too; tools/hf/model_types.h explains its words.
"""

import json
from pathlib import Path

_ROWS = json.loads((Path(__file__).parent / "model_types.json").read_text(encoding="utf-8"))
MODEL_TYPES = {name: {**_ROWS.get(row.get("like"), {}), **row} for name, row in _ROWS.items()}
