# SPDX-License-Identifier: Apache-2.0
"""A signal handler that raises, wherever it breaks off the main thread, leaves no lease behind and nothing half done."""

import unittest
from unittest import mock

import spillway.torch as st
import torch
from spillway import _engine
from torch_case import DEVICE, TorchTest


class InterruptsTest(TorchTest):
    def weight(self):
        """Returns a run and a weight in its engine."""
        run = st.open(self.store(), pinned="1MiB", device=DEVICE)
        self.addCleanup(run.close)
        return run, st.offload(torch.nn.ParameterList([torch.zeros(8)]), run)[0]

    def test_a_lease_is_not_lost_before_a_lease_object_owns_it(self):
        run, weight = self.weight()
        for name in ("spw_acquire_host", "spw_acquire", "spw_lease_size_bytes", "spw_lease_data"):
            inner = getattr(_engine.library, name)

            def interrupted(*arguments):
                inner(*arguments)
                del arguments
                raise KeyboardInterrupt

            acquire = run.engine.acquire if name == "spw_acquire" else run.engine.acquire_host
            with mock.patch.object(_engine.library, name, interrupted):
                try:
                    acquire(weight._home.id, access="read-write")
                    self.fail("no interrupt")
                except KeyboardInterrupt as error:
                    kept = error  # as a notebook keeps it, with its traceback
            run.engine.commit()  # fails while a tile is leased to be written
            del kept

    def test_an_engine_a_stream_and_an_optimizer_are_not_lost(self):
        store = self.store()
        for name in ("spw_engine_open", "spw_stream_create", "spw_optimizer_create"):
            with st.open(store, pinned="1MiB", device=DEVICE) as run:
                inner = getattr(_engine.library, name)

                def interrupted(*arguments):
                    inner(*arguments)
                    raise KeyboardInterrupt

                with mock.patch.object(_engine.library, name, interrupted), self.assertRaises(KeyboardInterrupt):
                    if name == "spw_engine_open":
                        st.open(other := self.store())
                    elif name == "spw_stream_create":
                        run.engine.stream()
                    else:
                        st.AdamW([torch.nn.Parameter(torch.zeros(8))], store=run)
        for path in (store, other):
            st.open(path, pinned="1MiB").close()  # fails while the store is open


if __name__ == "__main__":
    unittest.main()
