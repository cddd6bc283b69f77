# SPDX-License-Identifier: Apache-2.0
"""Tests what exists only on a GPU: streams, how rarely the host waits for them, and what is refused."""

import unittest
from unittest import mock

import spillway
import spillway.torch as st
import torch
from torch_case import TorchTest, make_params, set_gradients, tiny_model, train

# A GPU takes some seconds for so many cycles. Until they are over, a call that waits for the stream does not return.
LONG_CYCLES = 4_000_000_000


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class CudaTest(TorchTest):
    makes_tensors_there = False

    def run_of(self, **more):
        run = st.open(self.store(), pinned="8MiB", device="cuda", device_memory="8MiB", **more)
        self.addCleanup(run.close)
        return run

    def while_the_stream_is_busy(self, work):
        """Calls `work` after long work was put on the stream. Returns whether it returned before that ended, and its result."""
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG_CYCLES)
        busy = torch.cuda.Event()
        busy.record()
        result = work()
        came_back = not busy.query()
        torch.cuda.synchronize()
        return came_back, result

    def test_forward_and_backward_of_offloaded_weights_do_not_wait_for_the_stream(self):
        run = self.run_of()
        model = st.offload(tiny_model(), run)
        optimizer = st.AdamW(model.parameters(), store=run, gradients="engine")
        batch = torch.ones(8, 32, device="cuda")

        def work():
            model(batch).square().mean().backward()

        work()  # allocates what libraries need at their first use
        optimizer.zero_grad()
        came_back, _ = self.while_the_stream_is_busy(work)
        self.assertTrue(came_back)
        self.assertTrue(all(param.grad.abs().sum().item() > 0 for param in model.parameters()))

    def test_saved_tensors_do_not_wait_for_the_stream(self):
        run = self.run_of()
        x = torch.randn(300, 400, device="cuda", requires_grad=True)

        def work():
            with st.saved_tensors(run):
                y = x.sin()
            y.sum().backward()
            return x.grad

        work()
        x.grad = None
        came_back, grad = self.while_the_stream_is_busy(work)
        self.assertTrue(came_back)
        self.assertTrue(torch.equal(grad, x.detach().cos()))
        self.assertEqual(run.room.made, 1)

    def test_a_step_synchronises_once_a_piece(self):
        params = [torch.nn.Parameter(torch.ones(1000, device="cuda")) for _ in range(20)]
        optimizer = st.AdamW(params, lr=1e-2, store=self.store(), pinned="1MiB")
        for param in params:
            param.grad = torch.ones_like(param)
        waits = []
        synchronize = torch.cuda.Event.synchronize
        with mock.patch.object(torch.cuda.Event, "synchronize", lambda event: (waits.append(1), synchronize(event))):
            torch.cuda.set_sync_debug_mode("error")
            try:
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        self.assertEqual(len(waits), 1)
        self.assertLess(params[-1].max().item(), 1)

    def test_given_gradients_a_gpus_weights_are_those_of_the_cpu(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            results = []
            for device in ("cpu", "cuda"):
                with torch.device("cuda"):
                    params = [torch.nn.Parameter(each.detach().to(device)) for each in make_params(dtype)]
                optimizer = st.AdamW(params, lr=1e-2, store=self.store(), pinned="1MiB")
                for step in range(5):
                    with torch.device("cuda"):
                        given = make_params(dtype)
                        set_gradients(given, step)
                    for param, other in zip(params, given):
                        param.grad = other.grad.to(device)
                    optimizer.step()
                results.append([param.detach().cpu() for param in params])
            self.assert_same(*results)

    def test_another_stream_sees_what_was_written_on_the_first(self):
        run = self.run_of()
        weight = st.offload(torch.nn.ParameterList([torch.zeros(100_000)]), run)[0]
        other = torch.cuda.Stream()
        with torch.no_grad():
            for i in range(20):
                torch.cuda._sleep(2_000_000)
                weight.add_(1)  # on the current stream
                other.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(other):
                    weight.mul_(2)
                torch.cuda.current_stream().wait_stream(other)
        expected = 0
        for _ in range(20):
            expected = (expected + 1) * 2
        self.assertEqual(weight.unique().tolist(), [expected])

    def test_more_than_the_gpus_room_passes_through_it(self):
        run = st.open(self.store(), pinned="2MiB", device="cuda", device_memory="1MiB")
        self.addCleanup(run.close)
        with st.parameters(run):
            model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(20)])  # 3 MiB
        optimizer = st.AdamW(model.parameters(), lr=1e-3, store=run, gradients="engine")
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            with st.saved_tensors(run):
                loss = (model(torch.ones(300, 200, device="cuda")) - 1).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0])
        tiers = run.engine.stats()["tiers"]
        self.assertLessEqual(tiers["device"]["peak_bytes"], 1 << 20)
        self.assertLessEqual(tiers["pinned"]["peak_bytes"], 2 << 20)

    def test_what_cannot_be_says_so(self):
        model = st.offload(tiny_model(), self.run_of())
        self.assertEqual(model[0].weight.device, torch.device("cuda", 0))
        with self.assertRaisesRegex(spillway.FailedPrecondition, "cannot move to cpu.*device="):
            model.cpu()
        self.assertIs(model.to("cuda")[0].weight, model[0].weight)
        on_host = st.open(self.store(), pinned="8MiB", device="cpu")
        self.addCleanup(on_host.close)
        with self.assertRaisesRegex(spillway.InvalidArgument, "parameter 0.weight is on cuda:0, and the run on cpu.*'cuda:0'"):
            st.offload(tiny_model().to("cuda"), on_host)
        with self.assertRaisesRegex(spillway.InvalidArgument, "gradients/0.0 is on cuda:0, and the run on cpu"):
            st.AdamW(tiny_model().to("cuda").parameters(), store=on_host, gradients="engine")
        large = st.offload(torch.nn.ParameterList([torch.zeros(1 << 20), torch.zeros(1 << 20)]),
                           st.open(None, device="cuda", device_memory="6MiB"))
        with self.assertRaisesRegex(spillway.ResourceExhausted, "device_memory="), torch.no_grad():
            large[0].add_(large[1])
        x = torch.ones(2, 32, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), self.assertRaisesRegex(spillway.FailedPrecondition, "CUDA graph"):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            try:
                model(x)
            finally:
                graph.capture_end()

    def test_with_amp_and_a_scaler_a_tight_store_trains_as_memory_does(self):
        results = []
        for store in (None, self.store()):
            run = st.open(store, pinned="1MiB" if store else None, device="cuda")
            self.addCleanup(run.close)
            model = st.offload(tiny_model(), run)
            optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run, gradients="engine")
            scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 40, growth_interval=3)
            losses = []
            for step in range(30):  # the first steps overflow
                torch.manual_seed(step)
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(torch.randn(8, 32).to("cuda")).float().square().mean()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.item())
            results.append((losses, [param.detach().clone() for param in model.parameters()]))
        self.assertEqual(results[0][0], results[1][0])
        self.assertLess(results[0][0][-1], results[0][0][0])
        self.assert_same(results[0][1], results[1][1])

    def test_a_lease_on_the_gpu_is_an_array_of_cudas(self):
        with spillway.Engine(device="cuda", device_bytes="4MiB", pinned_bytes="4MiB") as engine:
            id = engine.register("x", "f32", (1000,), data=torch.arange(1000.0).numpy())
            with engine.acquire(id) as lease:
                values = torch.as_tensor(lease, device="cuda").view(torch.float32)
                self.assertEqual(values.sum().item(), 499_500.0)
            with engine.acquire_host(id) as lease:
                self.assertFalse(hasattr(lease, "__cuda_array_interface__"))
            with self.assertRaisesRegex(spillway.InvalidArgument, "cudaStreamPerThread"):
                engine.wrap_stream(2)

    def test_a_tensor_of_dlpack_holds_its_bytes_until_its_stream_has_used_them(self):
        with spillway.Engine(device="cuda", device_bytes="4MiB", pinned_bytes="4MiB") as engine:
            id = engine.register("x", "f32", (1000,), data=torch.arange(1000.0).numpy())
            acquired = torch.cuda.Stream()
            values = torch.from_dlpack(engine.acquire(id, stream=engine.wrap_stream(acquired.cuda_stream)))
            torch.cuda._sleep(LONG_CYCLES)
            total = values.sum()
            del values
            with self.assertRaisesRegex(spillway.FailedPrecondition, "used by a stream"):
                engine.evict(id)
            self.assertEqual(total.item(), 499_500.0)


if __name__ == "__main__":
    unittest.main()
