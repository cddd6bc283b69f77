# SPDX-License-Identifier: Apache-2.0
"""Trains PyTorch models with optimizer state on NVMe or in a fixed budget of memory. One line of a program changes:

    import spillway.torch as st

    opt = st.AdamW(model.parameters(), lr=3e-4, store="nvme/run", pinned="1GiB")
    for batch in batches:
        model(**batch).loss.backward()
        opt.step()
        opt.zero_grad()

The state of every optimizer rests in the engine and streams through `pinned` bytes of memory. Weights, gradients and
activations can rest there, too:

    run = st.open("nvme/run", pinned="2GiB")
    model = st.offload(model, run)                                        # weights
    opt = st.AdamW(model.parameters(), store=run, gradients="engine")     # gradients
    with st.saved_tensors(run):                                           # activations that backward needs
        loss = model(**batch).loss

A model that is larger than memory is built, or loaded, where its weights go:

    with st.parameters(run):
        model = AutoModelForCausalLM.from_pretrained(folder)

A store may lie on several drives: `store=["nvme0/run", "nvme1/run"]` uses all of them at once. Each gets bytes in proportion to
its rates, which are measured when the store is made.

Several ranks, which torchrun starts and PyTorch joins, each update their shards, and keep the state of these in a store of
their own:

    opt = st.AdamW(fully_shard(model).parameters(), store="nvme{local_rank}/run")

The computed numbers are bit-identical to those with everything in memory, whatever the budget, if the parameters are row-major
in memory, and if no backward with `update="backward"` fails: after one that failed, the updates that it made stay.
To train on a GPU, open the run there:
`st.open("nvme/run", pinned="2GiB", device="cuda:0", device_memory="4GiB")`.
"""

from spillway.torch._checkpoints import Checkpoints
from spillway.torch._deepspeed import from_deepspeed
from spillway.torch._offload import offload, parameters, save_pretrained
from spillway.torch._rules import LAMB, LARS, SGD, Adafactor, Adam, AdamW, Lion, RMSprop
from spillway.torch._run import Run
from spillway.torch._run import open_run as open
from spillway.torch._saved import saved_tensors
from spillway.torch._state_dicts import last_state_dict

__all__ = ["LAMB", "LARS", "SGD", "Adafactor", "Adam", "AdamW", "Checkpoints", "Lion", "RMSprop", "Run", "from_deepspeed",
           "last_state_dict", "offload", "open", "parameters", "save_pretrained", "saved_tensors"]
