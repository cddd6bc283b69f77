# SPDX-License-Identifier: Apache-2.0
"""PyTorch training whose optimizer state rests on NVMe or in a fixed budget of memory: one changed line.

    import spillway.torch as st

    opt = st.AdamW(model.parameters(), lr=3e-4, store="nvme/run", pinned="1GiB")
    for batch in batches:
        model(**batch).loss.backward()
        opt.step()
        opt.zero_grad()

The state of every rule rests in the engine and streams through `pinned` bytes of memory; weights and gradients stay
PyTorch's. The numbers are those of state in memory, bit for bit, whatever the budget.
"""

from spillway.torch._optimizers import SGD, Adafactor, Adam, AdamW, Lion, RMSprop
from spillway.torch._run import Run
from spillway.torch._run import open_run as open

__all__ = ["SGD", "Adafactor", "Adam", "AdamW", "Lion", "RMSprop", "Run", "open"]
