# SPDX-License-Identifier: Apache-2.0
"""Weights, gradients and activations in the engine give the same numbers as in memory. Unsupported uses raise errors."""

import contextlib
import copy
import ctypes
import errno
import gc
import io
import operator
import os
import pathlib
import pickle
import struct
import tempfile
import threading
import time
import unittest
import weakref
from unittest import mock

import spillway
import spillway.torch as st
import torch
from torch_case import DEVICE, TorchTest, tiny_model, train
from spillway import _library
from spillway.torch import _devices
from spillway.torch._tensor import EngineTensor


class OffloadTest(TorchTest):
    def test_a_file_of_weights_that_fails_leaves_no_part(self):
        model, out = torch.nn.Linear(8, 8), self.folder / "out"
        with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
            with self.assertRaisesRegex(OSError, "No space left"):
                st.save_pretrained(model, out)
        self.assertEqual(os.listdir(out), [])
        st.save_pretrained(model, out)
        self.assertEqual(os.listdir(out), ["model.safetensors"])

    def run_of(self, pinned="1MiB"):
        run = st.open(self.store(), pinned=pinned, device_memory=pinned if DEVICE.type == "cuda" else None)
        self.addCleanup(run.close)
        return run

    def trained(self, offloaded=False, gradients="torch", update="step", saved=False, store=True, dtype=torch.float32,
                clip=0.5, accumulate=2, scaler=False):
        model = tiny_model(dtype)
        run = st.open(self.store() if store else None, pinned="512KiB" if store else None)
        if offloaded:
            st.offload(model, run)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run, gradients=gradients, update=update)
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=64.0, growth_interval=2) if scaler else None

        def all_steps():
            return train(model, optimizer, 6, clip=clip, accumulate=accumulate, scaler=scaler)

        if saved:
            with st.saved_tensors(run):
                losses = all_steps()
        else:
            losses = all_steps()
        return losses, [param.detach().clone() for param in model.parameters()]

    def assert_bits(self, **modes):
        for dtype in (torch.float32, torch.bfloat16):
            if DEVICE.type == "cuda" and dtype == torch.bfloat16 and modes.get("scaler"):
                continue  # PyTorch's scaler does not unscale bf16 on a GPU
            plain = {key: value for key, value in modes.items() if key in ("clip", "accumulate", "scaler")}
            expected = self.trained(store=False, dtype=dtype, **plain)
            got = self.trained(dtype=dtype, **modes)
            self.assertEqual(got[0], expected[0], (modes, dtype))
            self.assert_same(got[1], expected[1])

    def test_weights_in_the_engine(self):
        self.assert_bits(offloaded=True)

    def test_gradients_in_the_engine(self):
        self.assert_bits(gradients="engine")
        self.assert_bits(gradients="engine", scaler=True)

    def test_updates_in_backward(self):
        self.assert_bits(update="backward", clip=None, accumulate=1)

    def test_activations_in_the_engine(self):
        self.assert_bits(saved=True)

    def test_everything_in_the_engine(self):
        self.assert_bits(offloaded=True, gradients="engine", saved=True, scaler=True)
        self.assert_bits(offloaded=True, update="backward", saved=True, clip=None, accumulate=1)

    def test_with_torch_optim_the_weights_may_be_in_the_engine(self):
        plain, moved = tiny_model(), st.offload(tiny_model(), self.run_of())
        for model in (plain, moved):
            train(model, torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False), 3)
        self.assert_same([each.clone() for each in moved.parameters()], plain.parameters())

    def test_forward_leases_only_while_it_runs(self):
        run = self.run_of()
        model = st.offload(tiny_model(), run)
        loss = model(torch.randn(4, 32)).square().mean()
        run.engine.commit()  # fails while a tile is leased
        loss.backward()
        run.engine.commit()

    def test_tied_weights_stay_tied(self):
        model = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])
        model[1].weight = model[0].weight
        st.offload(model, self.run_of())
        self.assertIs(model[1].weight, model[0].weight)
        self.assertEqual(len(list(model.parameters())), 3)

    def test_two_parameters_that_share_memory_are_refused(self):
        def assign(model):
            model[1].weight = torch.nn.Parameter(model[0].weight)

        def assign_data(model):
            model[1].weight.data = model[0].weight.data

        def assign_part(model):
            model[1].weight = torch.nn.Parameter(model[0].weight.detach()[:4])

        for tie in (assign, assign_data, assign_part):
            model = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])
            tie(model)
            with self.assertRaisesRegex(spillway.InvalidArgument, "0.weight and 1.weight overlaps.*make them one object"):
                st.offload(model, self.run_of())
            for param in model.parameters():
                self.assertNotIsInstance(param, EngineTensor)
        with st.parameters(self.run_of()):
            values = torch.ones(4, 4)
            model = torch.nn.ParameterList([torch.nn.Parameter(values)])
            with self.assertRaisesRegex(spillway.InvalidArgument, "overlaps"):
                model.append(torch.nn.Parameter(values[1:]))
            del values
            other = torch.nn.Parameter(torch.ones(4, 4))
            model.append(other)
            with self.assertRaisesRegex(spillway.FailedPrecondition, "cannot share the bytes of .*tie the parameters themselves"):
                other.data = model[0].data

    def test_parameters_side_by_side_in_one_buffer_are_not_tied(self):
        buffer = torch.arange(24.0)
        parts = [buffer[16:].view(2, 4), buffer[:8].view(4, 2).t(), buffer[8:16]]
        model = st.offload(torch.nn.ParameterList([torch.nn.Parameter(part) for part in parts]), self.run_of())
        self.assert_same([each.clone() for each in model], parts)
        with st.parameters(self.run_of()):
            built = torch.nn.ParameterList([torch.nn.Parameter(part) for part in parts])
        self.assert_same([each.clone() for each in built], parts)
        parts = torch.arange(24.0).view(4, 6).chunk(3, dim=1)  # as of a fused projection; they interleave
        model = st.offload(torch.nn.ParameterList([torch.nn.Parameter(part) for part in parts]), self.run_of())
        self.assert_same([each.clone() for each in model], parts)

    def test_models_of_one_run_that_share_memory_are_refused(self):
        first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        second.weight.data = first.weight.data
        run = self.run_of()
        st.offload(first, run, prefix="first.")
        with self.assertRaisesRegex(spillway.InvalidArgument, "overlaps"):
            st.offload(second, run, prefix="second.")
        second.weight.data = second.weight.data.clone()
        st.offload(second, run, prefix="second.")

    def test_parameters_that_were_not_row_major_are_told_of_once(self):
        def make(order):
            torch.manual_seed(3)
            return torch.nn.Sequential(*[torch.nn.Conv2d(4, 4, 3) for _ in range(2)]).to(memory_format=order)

        expected = [param.detach().clone() for param in make(torch.contiguous_format).parameters()]
        for order, lines in ((torch.contiguous_format, 0), (torch.channels_last, 1)):
            err = io.StringIO()
            with contextlib.redirect_stderr(err):
                model = st.offload(make(order), st.open(None, report=False))
            self.assertEqual(err.getvalue().count("is not row-major"), lines)
            self.assertEqual(err.getvalue().count("parameter 0.weight is not row-major"), lines)
            self.assertTrue(all(param.is_contiguous() for param in model.parameters()))
            self.assert_same([param.clone() for param in model.parameters()], expected)

    def test_a_model_is_built_in_the_engine(self):
        run = self.run_of("256KiB")
        torch.manual_seed(3)
        with st.parameters(run):
            built = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(10)])  # 1.5 MiB
        self.assertTrue(all(isinstance(each, EngineTensor) for each in built.parameters()))
        torch.manual_seed(3)
        expected = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(10)])
        self.assert_same([each.clone() for each in built.parameters()], expected.parameters())
        self.assertIsInstance(torch.nn.Linear(2, 2).weight, torch.nn.Parameter)
        self.assertNotIsInstance(torch.nn.Linear(2, 2).weight, EngineTensor)
        self.assertLessEqual(run.engine.stats()["tiers"]["pinned"]["peak_bytes"], 256 << 10)

    def test_a_state_dict_brings_the_weights_back_too(self):
        store = self.store()
        run = st.open(store, pinned="1MiB")
        model = st.offload(tiny_model(), run)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        train(model, optimizer, 2)
        expected = [each.clone() for each in model.parameters()]
        saved = optimizer.state_dict()
        run.close()
        del model, optimizer
        gc.collect()
        run = st.open(store, pinned="1MiB")
        again = st.offload(tiny_model(), run)
        self.assert_same([each.clone() for each in again.parameters()], tiny_model().parameters())
        st.AdamW(again.parameters(), lr=1e-2, store=run).load_state_dict(saved)
        self.assert_same([each.clone() for each in again.parameters()], expected)
        run.close()

    def test_closing_a_gpu_waits_for_leases_and_not_for_streams(self):
        with spillway.Engine(pinned_bytes="1MiB", device_bytes="1MiB") as engine:
            id = engine.register("x", "f32", (8,))
            gpu = _devices.Gpu(engine, 0)
            gpu._streams[7] = engine.stream()  # a stand-in for that of a GPU
            work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.05))
            launch = _library.library.spw_stream_launch
            launch.argtypes, launch.restype = [ctypes.c_void_p] * 3, ctypes.c_void_p
            with engine.acquire(id, access="read-write", stream=gpu._streams[7]):
                _library.check(launch(gpu._streams[7]._handle.get(), ctypes.cast(work, ctypes.c_void_p), None))
            with mock.patch.object(spillway.Stream, "synchronize", side_effect=AssertionError("it may be destroyed")):
                gpu.close()
            engine.evict(id)  # fails while the tile is leased

    def test_devices_that_there_are_not_say_so(self):
        for device in ("meta", "gpu", 3.5):
            with self.assertRaisesRegex(spillway.InvalidArgument, f"device is '{device}'.*'cpu', 'cuda' or 'cuda:N'"):
                st.open(self.store(), device=device)
        with self.assertRaisesRegex(spillway.InvalidArgument, "device_memory"):
            st.open(self.store(), device="cpu", device_memory="1MiB")
        with self.assertRaisesRegex((spillway.NotFound, spillway.Unimplemented), "CUDA device 99"):
            st.open(self.store(), device="cuda:99")

    def test_two_models_in_a_run_do_not_share_bytes(self):
        run = self.run_of()
        one = st.offload(tiny_model(), run)
        with self.assertRaisesRegex(spillway.InvalidArgument, "weights/0.weight is in the engine already.*prefix="):
            st.offload(tiny_model(), run)
        other = st.offload(tiny_model(), run, prefix="other.")
        with torch.no_grad():
            other[0].weight.zero_()
        self.assertGreater(one[0].weight.abs().max().item(), 0)

    def test_an_address_tells_alignment_and_identity_alone(self):
        run = self.run_of()
        model = torch.nn.ModuleList([torch.nn.Linear(5, 7), torch.nn.Linear(5, 7), torch.nn.Linear(7, 5)])
        model[1].weight = model[0].weight
        st.offload(model.to(torch.bfloat16), run)
        tied, weight, other = model[1].weight, model[0].weight, model[2].weight
        for one in (weight, weight.detach(), tied, weight.t(), weight[0]):
            self.assertEqual(one.data_ptr(), weight.data_ptr())
            self.assertFalse(one.data_ptr() != weight.data_ptr())
        for one in (other, weight[1], weight.detach()[:, 1:]):
            self.assertNotEqual(one.data_ptr(), weight.data_ptr())
        self.assertNotEqual(weight.data_ptr(), 0)
        self.assertEqual(len({each.data_ptr() for each in (weight, tied, other, weight[3], weight.detach()[3])}), 3)
        for param in model.parameters():
            views = [param.detach(), *(param.detach().flatten()[i:] for i in range(1, 5))]
            with run.engine.acquire_host(param._home.id, 0, "read") as lease:
                for view in views:
                    address = lease.address + 2 * view.storage_offset()
                    for bytes in (2, 16, 64, 4096):
                        self.assertEqual(view.data_ptr() % bytes, address % bytes)
                        self.assertEqual(view.const_data_ptr() & bytes - 1, address & bytes - 1)
        address = weight.data_ptr()
        self.assertRegex(str(address), "address of weights/0.weight")
        for use in (int, float, operator.index, lambda at: at + 16, lambda at: at - address, lambda at: at % 8192,
                    lambda at: at % 24, lambda at: at < other.data_ptr(), lambda at: f"{at:x}",
                    lambda at: struct.pack("P", at)):
            for kind in (NotImplementedError, spillway.FailedPrecondition):
                with self.assertRaisesRegex(kind, "weights/0.weight has no address"):
                    use(address)
        with self.assertRaisesRegex(ctypes.ArgumentError, "weights/0.weight has no address"):
            ctypes.CDLL(None).malloc_usable_size(address)
        for use in (ctypes.c_void_p, (ctypes.c_uint8 * 4).from_address):
            with self.assertRaises(TypeError):
                use(address)

    def test_what_would_lie_raises(self):
        run = self.run_of()
        model = st.offload(tiny_model(), run)
        weight = model[0].weight

        def set_data(value):
            weight.data = value

        if hasattr(torch._C, "_set_storage_data_ptr_access_error_msg"):
            with self.assertRaisesRegex(RuntimeError, "bytes of a tensor in the engine"):
                torch.utils.dlpack.to_dlpack(weight.detach())
        for what in (lambda: weight.detach().apply_(float),
                     lambda: weight.detach().map_(weight.detach(), max), lambda: copy.deepcopy(model.state_dict()), lambda: pickle.dumps(weight), weight.share_memory_,
                     weight.untyped_storage, lambda: torch.from_dlpack(weight.detach()),
                     lambda: set_data(torch.zeros(4, 4)), lambda: model.to(torch.bfloat16), weight.detach().t_,
                     lambda: weight.detach().resize_(3, 3), lambda: weight.detach().set_(torch.ones(200, 32)),
                     lambda: torch.add(torch.zeros(2, 2), 1, out=weight.detach())):
            with self.assertRaisesRegex(spillway.FailedPrecondition, "weights/0.weight"):
                what()
        with self.assertRaisesRegex(spillway.InvalidArgument, "is a view of weights/0.weight"):
            st.AdamW([torch.nn.Parameter(weight[:3].detach())], store=run)
        with self.assertRaisesRegex(spillway.InvalidArgument, "weights/0.weight.* of another run"):
            st.AdamW(model.parameters(), store=self.run_of())
        square = st.offload(torch.nn.ParameterList([torch.arange(9.0).view(3, 3)]), run)[0]
        for other in (square.data.t(), square.data[:2], square.data[0]):
            with self.assertRaises((spillway.FailedPrecondition, RuntimeError)):
                square.data = other
        square.data = square.data
        self.assertIn("weights/0.weight", repr(weight))
        set_data(torch.full((200, 32), 2.0))
        self.assertEqual(weight.sum().item(), 2.0 * 200 * 32)
        with torch.inference_mode():
            self.assertEqual(weight.t()[0].sum().item(), 400.0)

    def test_a_tensor_in_memory_cannot_share_the_bytes(self):
        weight = st.offload(tiny_model(), self.run_of())[0].weight
        with self.assertRaisesRegex(spillway.FailedPrecondition, "would share the bytes of .*weights/0.weight"):
            torch.ones(3).set_(weight.detach())
        taker = torch.nn.Linear(32, 200)
        if hasattr(torch._C, "_set_storage_data_ptr_access_error_msg"):
            taker.weight.data = weight.data  # which PyTorch does without asking
            for use in (taker.weight.clone, taker.weight.detach().numpy, taker.weight.data_ptr, taker.weight.detach().zero_,
                        lambda: taker(torch.ones(32))):
                with self.assertRaisesRegex(RuntimeError, r"bytes of a tensor in the engine: .*copy_"):
                    use()

    def test_a_parameter_that_left_the_engine_raises(self):
        model = st.offload(tiny_model(), run := self.run_of())
        optimizer = st.AdamW(model.parameters(), store=run)
        self.addCleanup(torch.__future__.set_swap_module_params_on_conversion, False)
        torch.__future__.set_swap_module_params_on_conversion(True)
        model.load_state_dict(tiny_model().state_dict(), assign=True)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "has left the engine"):
            train(model, optimizer, 1)

    def test_torch_distributed_is_given_copies(self):
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
        self.addCleanup(torch.distributed.destroy_process_group)
        weight = st.offload(tiny_model(), st.open(None))[0].weight.detach()
        for call in (lambda: torch.distributed.all_reduce(weight), lambda: torch.distributed.broadcast(weight, 0),
                     lambda: torch.distributed.all_gather([torch.empty(weight.shape)], weight)):
            with self.assertRaisesRegex(spillway.Unimplemented, r"a clone\(\), and copy its result back"):
                call()
        copy = weight.clone()
        torch.distributed.all_reduce(copy)
        self.assertTrue(torch.equal(copy, weight))
        # Those that return a new tensor, as the full_tensor() of a DTensor calls them, take a copy by themselves.
        collectives = torch.ops._c10d_functional
        self.assertTrue(torch.equal(collectives.wait_tensor(collectives.all_reduce(weight, "sum", "0")), weight))

    def test_norms_of_a_list_have_the_given_type(self):
        weights = [torch.arange(8.0), torch.ones(3)]
        expected = [torch.linalg.vector_norm(weight, 1.0, dtype=torch.float64) for weight in weights]
        moved = st.offload(torch.nn.ParameterList(weights), st.open(None))
        self.assert_same(expected, torch._foreach_norm([weight.detach() for weight in moved], 1.0, dtype=torch.float64))

    def test_two_runs_in_one_operation_are_two(self):
        one, other = st.offload(tiny_model(), self.run_of()), st.offload(tiny_model(), self.run_of())
        with torch.no_grad():
            other[0].weight.zero_()
            self.assertFalse(torch.equal(one[0].weight, other[0].weight))
            one[0].weight.copy_(other[0].weight)
        self.assertEqual(one[0].weight.abs().max().item(), 0)

    def test_a_gradient_that_was_used_is_void(self):
        model = tiny_model()
        optimizer = st.AdamW(model.parameters(), store=self.run_of(), gradients="engine")
        model(torch.ones(2, 32)).sum().backward()
        old = model[0].weight.grad
        optimizer.step()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "is void"):
            old.sum()
        with self.assertRaisesRegex(spillway.InvalidArgument, "can only be dropped"):
            optimizer.zero_grad(set_to_none=False)

    def test_an_edit_of_weights_is_a_change(self):
        model = st.offload(tiny_model(), run := self.run_of())
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        train(model, optimizer, 1)
        first, weight = optimizer.state_dict(), model[0].weight.clone()
        with torch.no_grad():
            model[0].weight.fill_(3)
        self.assertNotEqual(optimizer.state_dict()["spillway"]["label"], first["spillway"]["label"])
        optimizer.load_state_dict(first)
        self.assertTrue(torch.equal(model[0].weight, weight))

    def test_parameters_that_were_collected_before_are_trained(self):
        class Keeps(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(8, 8)
                self.weights = [self.linear.weight]

            def forward(self, x):
                return torch.nn.functional.linear(x, self.weights[0], self.linear.bias)

        def trained(moves, late):
            torch.manual_seed(3)
            model, run = Keeps(), self.run_of()
            groups = [{"params": model.weights}, {"params": [model.linear.bias], "weight_decay": 0.0}]
            early = None if late else torch.optim.SGD(groups, lr=0.1)
            if moves:
                st.offload(model, run)
                self.assertIsInstance(model.weights[0], EngineTensor)
                self.assertIs(model.weights[0], model.linear.weight)
            optimizer = early or st.SGD(groups, lr=0.1, store=run)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 8)).square().mean().backward()
                optimizer.step()
            return [each.detach().clone() for each in model.parameters()]

        for late in (True, False):
            self.assert_same(trained(True, late), trained(False, late))

    def test_parameters_that_were_collected_before_and_replaced_are_refused(self):
        model, run = torch.nn.LSTM(4, 8), self.run_of()
        before = list(model.parameters())
        st.offload(model, run)
        with self.assertRaisesRegex(spillway.FailedPrecondition, r"parameter 0.0 was replaced.*collect the parameters after off"):
            st.SGD(before, lr=0.1, store=run)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "parameter 0 was replaced"):
            st.offload(torch.nn.ParameterList(before), run)
        optimizer = st.SGD(model.parameters(), lr=0.1, store=run)
        weight = model.weight_hh_l0.detach().clone()
        model(torch.ones(2, 3, 4))[0].sum().backward()
        optimizer.step()
        self.assertFalse(torch.equal(model.weight_hh_l0, weight))

    def test_an_offloaded_parameter_that_was_frozen_is_trained(self):
        results = []
        for moves in (False, True):
            model = tiny_model().requires_grad_(False)
            run = self.run_of()
            if moves:
                st.offload(model, run)
            optimizer = st.SGD(model.parameters(), lr=0.1, store=run)
            train(model.requires_grad_(True), optimizer, 2)
            results.append([each.detach().clone() for each in model.parameters()])
        self.assert_same(*results)

    def test_torch_compile_leaves_the_packages_code_alone(self):
        from torch._dynamo import convert_frame
        files = []
        hook = convert_frame.register_bytecode_hook(lambda code, _: files.append(code.co_filename))
        self.addCleanup(torch._dynamo.reset)
        self.addCleanup(hook.remove)
        package = os.path.dirname(st.__file__)
        results = []
        for compiles in (False, True):
            model, run = tiny_model(), self.run_of()
            st.offload(model, run)
            optimizer = st.AdamW(model.parameters(), store=run, gradients="engine")

            def loss_of(x):
                return (model(x * 2) * 3).square().mean()

            compute = torch.compile(loss_of, backend="eager") if compiles else loss_of
            for step in range(3):
                with st.saved_tensors(run):
                    loss = compute(torch.ones(100 + step, 32))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            results.append([param.detach().clone() for param in model.parameters()])
        self.assertIn(__file__, files)  # what surrounds the operations on weights is compiled
        self.assertEqual([file for file in files if file.startswith(package)], [])
        self.assert_same(*results)

    def test_a_parameter_that_cannot_be_swapped_is_replaced(self):
        model = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])
        model[1].weight = model[0].weight
        before, reference = model[0].weight.detach().clone(), weakref.ref(model[0].weight)
        st.offload(model, self.run_of())
        self.assertIs(model[1].weight, model[0].weight)
        self.assertIsInstance(model[0].weight, EngineTensor)
        self.assertTrue(torch.equal(model[0].weight, before))
        del reference

    def test_what_offload_would_lose_is_refused(self):
        model = tiny_model()
        model[0].weight.register_hook(lambda gradient: gradient * 0)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "parameter 0.weight has hooks"):
            st.offload(model, self.run_of())

    def test_built_parameters_stay_tied_and_models_make_room(self):
        run = self.run_of()
        with st.parameters(run):
            model = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])
            tied = torch.nn.Parameter(torch.ones(8, 8))
            model[0].weight, model[1].weight = tied, tied
        self.assertIs(model[0].weight, model[1].weight)
        del model, tied
        gc.collect()
        with st.parameters(run):  # gets the same names
            torch.nn.Linear(8, 8)

    def test_updates_in_backward_refuse_what_would_go_wrong(self):
        def make():
            model = tiny_model()
            return model, st.AdamW(model.parameters(), lr=1e-2, update="backward")

        model, optimizer = make()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "clipping, GradScaler, .* and accumulation"):
            train(model, optimizer, 1, clip=1.0)
        model, optimizer = make()
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
        self.addCleanup(torch.distributed.destroy_process_group)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "DistributedDataParallel .*need update='step'"):
            train(torch.nn.parallel.DistributedDataParallel(model), optimizer, 1)
        model, optimizer = make()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "parameter 0.* was used by its update"):
            train(model, optimizer, 1, accumulate=2)
        model, optimizer = make()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "GradScaler.* needs? update='step'"):
            train(model, optimizer, 1, scaler=torch.amp.GradScaler(DEVICE.type))
        with self.assertRaisesRegex(spillway.InvalidArgument, "update is 'sometimes'"):
            st.AdamW(tiny_model().parameters(), update="sometimes")
        with self.assertRaisesRegex(spillway.InvalidArgument, "for nothing"):
            st.AdamW(tiny_model().parameters(), update="backward", gradients="engine")

    def test_save_pretrained_streams_what_torch_would_have(self):
        from_memory, moved = tiny_model(torch.bfloat16), st.offload(tiny_model(torch.bfloat16), self.run_of())
        folder = pathlib.Path(self.folder) / "saved"
        st.save_pretrained(moved, folder)
        self.assertEqual([each.name for each in folder.iterdir()], ["model.safetensors"])
        import json
        import struct
        content = (folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:8 + size])
        for name, value in from_memory.state_dict().items():
            begin, end = header[name]["data_offsets"]
            self.assertEqual(content[8 + size + begin:8 + size + end], bytes(value.cpu().view(torch.uint8).numpy().tobytes()))
            self.assertEqual(header[name]["shape"], list(value.shape))
            self.assertEqual(header[name]["dtype"], "BF16")

    def test_save_pretrained_aligns_tensors_as_safetensors_does(self):
        import safetensors.torch
        types = (torch.bfloat16, torch.float32, torch.int8, torch.float64, torch.bool, torch.int64, torch.float16,
                 torch.uint8, torch.int32, torch.float8_e5m2, torch.int16, torch.float8_e4m3fn)
        for number, given in enumerate((
                {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.ones(2)},
                {"a": torch.ones((), dtype=torch.int8), "b": torch.ones(3, dtype=torch.float16), "c": torch.zeros(0),
                 "d": torch.ones(1, dtype=torch.float64)},
                {f"é.{name}": torch.ones(count, dtype=dtype)
                 for name, dtype in enumerate(types) for count in [name % 4 + 1]},
        )):
            st.save_pretrained(torch.nn.Linear(1, 1), self.folder / str(number), state_dict=given)
            content = (self.folder / str(number) / "model.safetensors").read_bytes()
            self.assertEqual(content, safetensors.torch.save(given, {"format": "pt"}))

        class Mixed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a = torch.nn.Parameter(torch.full((3,), 1.5, dtype=torch.bfloat16))
                self.b = torch.nn.Parameter(torch.arange(5.0))

        from_memory, moved = Mixed(), st.offload(Mixed(), self.run_of())
        st.save_pretrained(moved, self.folder / "moved")
        expected = safetensors.torch.save(dict(from_memory.state_dict()), {"format": "pt"})
        self.assertEqual((self.folder / "moved/model.safetensors").read_bytes(), expected)

    def test_threads_wait_for_room_that_others_hold(self):
        run = self.run_of("1MiB")
        # Each has 300 KB, so an operation on two of them takes more than half of the budget.
        weights = torch.nn.ParameterList([torch.zeros(75_000) for _ in range(4)])
        st.offload(weights, run)
        failures = []

        def add(to, what):
            try:
                with torch.no_grad():
                    for _ in range(60):
                        to.add_(what + 1)  # the sum is a tensor in memory
                        to.copy_(torch.maximum(to, what))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=add, args=(weights[i], weights[i + 1])) for i in (0, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        for each in weights[::2]:
            self.assertTrue(bool((each == 60).all()))

    def test_a_state_dict_is_made_beside_another_threads_forward(self):
        run = self.run_of("1MiB")
        model = st.offload(tiny_model(), run)
        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run)
        train(model, optimizer, 1)
        ends = threading.Event()
        failures = []

        def work():
            try:
                with torch.no_grad():
                    while not ends.is_set():
                        model(torch.ones(8, 32, device=DEVICE))  # other threads have no default device
            except Exception as error:
                failures.append(error)

        other = threading.Thread(target=work)
        other.start()
        try:
            for step in range(1, 8):
                train(model, optimizer, 1, first=step)
                self.assertEqual(optimizer.state_dict()["spillway"]["commit"], step)
        finally:
            ends.set()
            other.join()
        self.assertEqual(failures, [])

    def test_what_never_fits_is_said_beside_another_thread(self):
        run = self.run_of("1MiB")
        weights = torch.nn.ParameterList([torch.zeros(75_000) for _ in range(4)])
        st.offload(weights, run)
        ends = threading.Event()

        def work():
            with torch.no_grad():
                while not ends.is_set():
                    weights[3].add_(1)

        other = threading.Thread(target=work)
        other.start()
        try:
            with torch.no_grad(), self.assertRaisesRegex(spillway.ResourceExhausted, "pinned="):
                torch.cat(list(weights))
        finally:
            ends.set()
            other.join()

class SavedTensorsTest(TorchTest):
    def setUp(self):
        super().setUp()
        self.run = st.open(self.store(), pinned="4MiB")
        self.addCleanup(self.run.close)

    def tearDown(self):
        super().tearDown()

    def gradients(self, compute, shape, saved):
        torch.manual_seed(5)
        x = torch.randn(shape, requires_grad=True)
        if saved:
            with st.saved_tensors(self.run):
                y = compute(x)
        else:
            y = compute(x)
        y.sum().backward()
        return x.grad

    def check(self, compute, shape=(300, 400)):
        self.assertTrue(torch.equal(self.gradients(compute, shape, True), self.gradients(compute, shape, False)))

    def test_views_strides_and_checkpointing(self):
        self.check(lambda x: (x.t() @ x).exp() * 1e-3)
        self.check(lambda x: x[:, ::2].tanh() * x[:, 1::2])
        self.check(lambda x: torch.nn.functional.softmax(x.view(30, 10, 400).transpose(0, 1), -1).square())
        self.check(lambda x: torch.utils.checkpoint.checkpoint(lambda z: (z @ z.t()).sigmoid(), x, use_reentrant=False))
        self.check(lambda x: x.to(torch.bfloat16).square().float())

    def test_nested_tensors_stay_where_they_are(self):
        results = []
        for is_saved in (False, True):
            model = tiny_model()
            rows = [torch.ones(length, 32) / length for length in (100, 200)]
            for layout in (torch.strided, torch.jagged):
                nested = torch.nested.nested_tensor(rows, layout=layout)
                with st.saved_tensors(self.run) if is_saved else contextlib.nullcontext():
                    out = model[3](model[0](nested).relu())
                    loss = out.to_padded_tensor(0.0).square().mean()
                loss.backward()
            results.append([param.grad for param in model[0].parameters()])
        self.assert_same(*results)

    def test_the_same_tensor_is_saved_once(self):
        x = torch.randn(300, 400, requires_grad=True)
        with st.saved_tensors(self.run):
            h = x * 2
            y = h.sin() + h.cos() + h * h
        self.assertEqual(self.num_made(), 1)
        y.sum().backward()

    def test_a_change_in_place_is_told(self):
        x = torch.randn(8, requires_grad=True)
        with st.saved_tensors(self.run):
            y = x.sigmoid()
            z = y * 1
        y.detach().add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            z.sum().backward()
            y.sum().backward()

    def test_conjugates_and_rewritten_memory(self):
        def compute(x):
            z = torch.complex(x[:150], x[150:]) * 1
            return z.abs().square().sum() + (z.conj() ** 2).imag.sum()

        self.check(compute)
        factor = torch.full((300, 400), 2.0)
        x = torch.randn(300, 400, requires_grad=True)
        with st.saved_tensors(self.run):
            first = x * factor
            factor.data.mul_(3)
            second = x * factor
        (first + second).sum().backward()
        self.assertEqual(x.grad.unique().tolist(), [8.0])

    def test_graphs_and_engines_are_freed(self):
        import weakref
        x = torch.randn(300, 400, requires_grad=True)
        for _ in range(5):
            with st.saved_tensors(self.run):
                y = (x * 1).exp().sum().sigmoid()
            gone = weakref.ref(y)
            del y
            gc.collect()
            self.assertIsNone(gone())
        self.assertLessEqual(self.num_made(), 2)
        run = st.open(store := self.store(), pinned="4MiB")
        with st.saved_tensors(run):
            (x * 1).exp().sum().backward()
        del run
        gc.collect()
        st.open(store, pinned="4MiB").close()

    def test_backward_twice(self):
        x = torch.randn(300, 400, requires_grad=True)
        with st.saved_tensors(self.run):
            y = x.sin()
        y.sum().backward(retain_graph=True)
        first = x.grad.clone()
        y.sum().backward()
        self.assertTrue(torch.equal(x.grad, 2 * first))

    def test_nothing_grows(self):
        made = []
        for _ in range(3):
            for rows in range(100, 400, 7):
                x = torch.randn(rows, 300, requires_grad=True)
                with st.saved_tensors(self.run):
                    y = (x.sin() @ x.t()).exp().mean()
                y.backward()
                del x, y
            made.append(self.num_made())
        self.assertEqual(made[0], made[1])
        self.assertEqual(made[0], made[2])
        self.assertLess(made[0], 60)

    def num_made(self):
        made = 0
        while True:
            try:
                self.run.engine.find(f"saved/{made + 1}")
            except spillway.NotFound:
                return made
            made += 1


if __name__ == "__main__":
    unittest.main()
