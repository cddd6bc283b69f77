# SPDX-License-Identifier: Apache-2.0
"""Norms of gradients in the engine, and of gradients that updates in backward have used, are those of gradients in memory.
A clip that changes no gradient writes none."""

import copy
import math
import pickle
import unittest

import spillway
import spillway.torch as st
import torch
from accelerate import Accelerator
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch_case import DEVICE, TorchTest, make_params


def backward(params, scale=1.0, poison=None):
    """Gives each parameter a gradient by one backward."""
    generator = torch.Generator(DEVICE).manual_seed(7)
    loss = 0.0
    for param in params:
        gradient = (torch.randn(param.shape, generator=generator) * scale).to(param.dtype)
        if poison is not None:
            gradient.view(-1)[0] = poison
        loss = loss + (param * gradient).float().sum()
    loss.backward()


class UsedGradientsTest(TorchTest):
    def params(self, **more):
        params = make_params(**more)
        return params, st.AdamW(params, lr=1e-2, update="backward")

    def test_the_norm_of_used_gradients_is_that_of_gradients_in_memory(self):
        for dtype in (torch.float32, torch.bfloat16):
            plain = make_params(dtype)
            backward(plain)
            expected = clip_grad_norm_(plain, math.inf)
            for foreach in (None, True, False):
                params, optimizer = self.params(dtype=dtype)
                backward(params)
                norm = clip_grad_norm_(params, math.inf, error_if_nonfinite=True, foreach=foreach)
                self.assertEqual(norm.dtype, expected.dtype)
                torch.testing.assert_close(torch.tensor(norm.item()), torch.tensor(expected.item()), rtol=1e-6, atol=0)
                optimizer.step()
                self.assertTrue(all(param.grad is None for param in params))
            for param, grad in zip(params, [each.grad for each in plain], strict=True):
                (param * grad).float().sum().backward()
                self.assertEqual(param.grad.data.norm(2).item(), torch.linalg.vector_norm(grad).item())
                with self.assertRaisesRegex(spillway.FailedPrecondition, "norm of order 1"):
                    torch.linalg.vector_norm(param.grad, 1)
                optimizer.step()

    def test_the_weights_are_those_of_a_run_that_asks_for_no_norm(self):
        results = []
        for asks in (False, True):
            params, optimizer = self.params()
            for _ in range(3):
                backward(params)
                if asks:
                    clip_grad_norm_(params, math.inf)
                    Accelerator(cpu=DEVICE.type == "cpu").clip_grad_norm_(params, math.inf)
                    params[0].grad.mul_(1.0)
                optimizer.step()
                optimizer.zero_grad()
            results.append([param.detach().clone() for param in params])
        self.assert_same(*results)

    def test_a_clip_with_a_limit_is_refused_whatever_the_norm_is(self):
        for scale, limit in ((1e-4, 1.0), (1.0, 1e-3), (1.0, 1e30)):
            for foreach in (None, True):
                params, optimizer = self.params()
                backward(params, scale)
                with self.assertRaisesRegex(spillway.FailedPrecondition, "parameter 0.0 was used .* clipping"):
                    clip_grad_norm_(params, limit, foreach=foreach)
                total = get_total_norm([param.grad for param in params], foreach=foreach)
                with self.assertRaisesRegex(spillway.FailedPrecondition, "parameter 0.0 was used .* clipping"):
                    clip_grads_with_norm_(params, limit, total, foreach=foreach)
                with self.assertRaisesRegex(spillway.FailedPrecondition, "was used"):
                    torch.nn.utils.clip_grad_value_(params, limit, foreach=foreach)
                optimizer.step()

    def test_one_used_gradient_among_others_decides(self):
        used, optimizer = self.params()
        others = make_params(seed_=2)
        backward(used + others)
        expected = [param.grad.clone() for param in others]
        clip_grad_norm_(others + used, math.inf)
        self.assert_same([param.grad for param in others], expected)
        with self.assertRaisesRegex(spillway.FailedPrecondition, "parameter 0.0 was used"):
            clip_grad_norm_(used + others, 1e30)

    def test_a_norm_that_is_not_finite_is_told(self):
        for poison in (math.nan, math.inf):
            params, optimizer = self.params()
            backward(params, poison=poison)
            with self.assertRaisesRegex(RuntimeError, "error_if_nonfinite"):
                clip_grad_norm_(params, math.inf, error_if_nonfinite=True)
            with self.assertRaisesRegex(spillway.FailedPrecondition, "parameter 0.0 was used.*not finite"):
                clip_grad_norm_(params, math.inf)
            optimizer.step()

    def test_the_norm_is_an_ordinary_tensor(self):
        params, optimizer = self.params()
        backward(params)
        norm = clip_grad_norm_(params, math.inf)
        for one in (pickle.loads(pickle.dumps(norm)), copy.deepcopy(norm), norm.detach(), norm.cpu()):
            self.assertEqual(one.item(), norm.item())
        torch.save({"norm": norm}, self.folder / "norm.pt")
        self.assertIs(type(torch.load(self.folder / "norm.pt", weights_only=True)["norm"]), torch.Tensor)
        self.assertEqual(float(norm), norm.item())
        self.assertEqual((1.0 / norm).item(), (1.0 / torch.tensor(norm.item())).item())
        self.assertEqual(torch.ones(3).mul(norm).tolist(), [norm.item()] * 3)
        self.assertIn("tensor(", repr(norm))
        optimizer.step()


class EngineGradientsTest(TorchTest):
    def leases_for_writing(self, clip, scale=1.0, poison=None):
        """Returns how many gradients a clip leases for writing."""
        run = st.open(None, report=False)
        params = make_params()
        optimizer = st.AdamW(params, store=run, gradients="engine")
        backward(params, scale, poison)
        writes, leased = [], type(params[0].grad._home).leased

        def counted(home, access):
            writes.append(access != "read")
            return leased(home, access)

        type(params[0].grad._home).leased = counted
        try:
            clip(params)
        finally:
            type(params[0].grad._home).leased = leased
        gradients = [param.grad.clone() for param in params]
        optimizer.step()
        return sum(writes), gradients

    def in_memory(self, clip, scale=1.0, poison=None):
        params = make_params()
        backward(params, scale, poison)
        clip(params)
        return [param.grad for param in params]

    def test_a_clip_that_changes_nothing_writes_no_gradient(self):
        clips = [lambda params, more=more: clip_grad_norm_(params, limit, **more)
                 for limit in (math.inf, 1e9) for more in ({}, {"foreach": True}, {"error_if_nonfinite": True})]
        accelerator = Accelerator(cpu=DEVICE.type == "cpu")
        clips += [lambda params: accelerator.clip_grad_norm_(params, math.inf),
                  lambda params: [param.grad.mul_(1) for param in params],
                  lambda params: [param.grad.mul_(torch.ones((), dtype=torch.float64)) for param in params]]
        for clip in clips:
            writes, gradients = self.leases_for_writing(clip)
            self.assertEqual(writes, 0)
            self.assert_same(gradients, self.in_memory(clip))

    def test_a_clip_that_changes_gradients_gives_the_bits_of_memory(self):
        for limit in (0.5, 1e-3, 0.0):
            def clip(params):
                clip_grad_norm_(params, limit)

            writes, gradients = self.leases_for_writing(clip)
            self.assertEqual(writes, len(gradients))
            self.assert_same(gradients, self.in_memory(clip))

    def test_a_norm_that_is_not_finite_makes_the_gradients_that_it_makes_in_memory(self):
        for poison in (math.nan, math.inf):
            for limit in (math.inf, 1.0):
                def clip(params):
                    clip_grad_norm_(params, limit)

                _, gradients = self.leases_for_writing(clip, poison=poison)
                for ours, theirs in zip(gradients, self.in_memory(clip, poison=poison), strict=True):
                    self.assertTrue(torch.equal(ours.isnan(), theirs.isnan()))
                    self.assertTrue(torch.equal(ours.nan_to_num(), theirs.nan_to_num()))

            def strict(params):
                with self.assertRaisesRegex(RuntimeError, "error_if_nonfinite"):
                    clip_grad_norm_(params, math.inf, error_if_nonfinite=True)

            writes, _ = self.leases_for_writing(strict, poison=poison)
            self.assertEqual(writes, 0)

    def test_what_is_no_multiplication_by_one_is_done(self):
        param = torch.nn.Parameter(torch.ones(3))
        optimizer = st.AdamW([param], store=st.open(None, report=False), gradients="engine")
        for factor, error in ((torch.ones(3, 3), "output with shape"), (1 + 0j, "can't be cast"), ("1", "")):
            param.sum().backward()
            with self.assertRaisesRegex((RuntimeError, TypeError), error):
                param.grad.mul_(factor)
            optimizer.zero_grad()
        param.sum().backward()
        param.grad.mul_(torch.tensor([1.0, 2.0, 3.0]))
        self.assertEqual(param.grad.clone().tolist(), [1.0, 2.0, 3.0])
        void = param.grad
        optimizer.step()
        with self.assertRaisesRegex(spillway.FailedPrecondition, "is void"):
            void.mul_(1.0)


if __name__ == "__main__":
    unittest.main()
