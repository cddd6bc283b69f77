#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain training loop with its optimizer state in a store: plain_loop.py STORE [STEPS]. A second run continues the first.

    pip install torch . && python tools/python/examples/plain_loop.py run
    python tools/python/examples/plain_loop.py /mnt/nvme0/run,/mnt/nvme1/run     # STORE on two drives
"""

import os
import sys

import spillway.torch as st
import torch


def main(folders, steps=20):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 256))
    optimizer = st.AdamW(model.parameters(), lr=1e-3, store=folders, pinned="16MiB")  # the one changed line
    saved, first = folders[0] + "-checkpoint.pt", 0
    if os.path.exists(saved):
        weights, state, first = torch.load(saved, weights_only=True)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        print(f"going on at step {first}")
    for step in range(first, first + steps):
        batch = torch.randn(32, 256, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    # optimizer.state_dict() names a commit of the store. It has a few KiB, however large the state is.
    torch.save((model.state_dict(), optimizer.state_dict(), first + steps), saved + ".new")
    os.replace(saved + ".new", saved)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("plain_loop.py STORE [STEPS]: name a folder, such as run, or one on each drive, with a comma between them")
    main([os.path.abspath(folder) for folder in sys.argv[1].split(",")], *map(int, sys.argv[2:3]))
