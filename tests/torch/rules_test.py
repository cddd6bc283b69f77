# SPDX-License-Identifier: Apache-2.0
"""Compares each optimizer with torch.optim's or with its paper's rule. Both get the same gradients."""

import math
import unittest

import spillway.torch as st
import torch
from torch_case import SHAPES, TorchTest, make_params, set_gradients, since, tiny_model, train


class InDoublePrecision(torch.optim.Optimizer):
    """A rule that torch.optim lacks, as its paper has it. `update(p, g, state, t)` returns the next p, in float64."""

    def __init__(self, params, update):
        super().__init__(params, {})
        self.update = update

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            if not state:
                zeros = torch.zeros(param.shape, dtype=torch.float64)
                state.update(t=0, p=param.double(), m=zeros, v=zeros.clone())
            state["t"] += 1
            state["p"] = self.update(state["p"], param.grad.double(), state, state["t"])
            param.copy_(state["p"])


def lion(p, g, state, _, lr=1e-3, decay=0.1):
    direction = torch.sign(0.9 * state["m"] + 0.1 * g)
    state["m"] = 0.99 * state["m"] + 0.01 * g
    return p * (1 - lr * decay) - lr * direction


def lamb(p, g, state, t, lr=1e-2, decay=0.1):
    state["m"] = 0.9 * state["m"] + 0.1 * g
    state["v"] = 0.999 * state["v"] + 0.001 * g * g
    u = state["m"] / (1 - 0.9 ** t) / ((state["v"] / (1 - 0.999 ** t)).sqrt() + 1e-6) + decay * p
    return p - lr * (p.norm() / u.norm() if p.dim() > 1 else 1.0) * u


def by_dimensions(params):
    """Gives vectors a learning rate of their own, because LARS does not scale theirs by norms."""
    return [{"params": [p for p in params if p.dim() > 1], "lr": 1.0}, {"params": [p for p in params if p.dim() < 2], "lr": 1e-2}]


def lars(p, g, state, _, lr=1.0, decay=0.1):
    rate = lr * (0.02 * p.norm() / (g.norm() + decay * p.norm()) if p.dim() > 1 else 1e-2)
    state["m"] = 0.9 * state["m"] + rate * (g + decay * p)
    return p - state["m"]


class RulesTest(TorchTest):
    RULES = {
        "adamw": (lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
                  lambda params, **more: st.AdamW(params, lr=1e-2, weight_decay=0.1, **more)),
        "adam": (lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=0.1),
                 lambda params, **more: st.Adam(params, lr=1e-2, weight_decay=0.1, **more)),
        "sgd": (lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, weight_decay=0.1),
                lambda params, **more: st.SGD(params, lr=1e-2, momentum=0.9, weight_decay=0.1, **more)),
        "rmsprop": (lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.5),
                    lambda params, **more: st.RMSprop(params, lr=1e-3, momentum=0.5, **more)),
        "adafactor": (lambda params: torch.optim.Adafactor(params, lr=1e-2),
                      lambda params, **more: st.Adafactor(params, lr=1e-2, **more)),
        "lion": (lambda params: InDoublePrecision(params, lion),
                 lambda params, **more: st.Lion(params, lr=1e-3, weight_decay=0.1, **more)),
        "lamb": (lambda params: InDoublePrecision(params, lamb),
                 lambda params, **more: st.LAMB(params, lr=1e-2, weight_decay=0.1, **more)),
        "lars": (lambda params: InDoublePrecision(params, lars),
                 lambda params, **more: st.LARS(by_dimensions(params), weight_decay=0.1, trust_coefficient=0.02, **more)),
    }

    def test_each_is_torchs_or_its_papers(self):
        for rule in self.RULES:
            if rule != "adafactor":
                self.compare(rule)

    @since(2, 5, "Adafactor")
    def test_adafactor_is_torchs(self):
        self.compare("adafactor")

    def compare(self, rule):
        shapes = [shape for shape in SHAPES if shape]  # torch's Adafactor needs at least one dimension
        theirs, ours = self.RULES[rule]
        with self.subTest(rule):
            a, b = make_params(shapes=shapes), make_params(shapes=shapes)
            one, other = theirs(a), ours(b, store=self.store(), pinned="1MiB")
            for step in range(20):
                set_gradients(a, step)
                set_gradients(b, step)
                one.step()
                other.step()
            for mine, its in zip(b, a):
                torch.testing.assert_close(mine, its, rtol=2e-5, atol=2e-6)

    def test_adamw_is_as_near_to_double_precision_as_torchs(self):
        steps = 200
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            with self.subTest(dtype):
                exact = [param.detach().double() for param in make_params(dtype)]
                m = [torch.zeros_like(p) for p in exact]
                v = [torch.zeros_like(p) for p in exact]
                params = make_params(dtype)
                ours = st.AdamW(params, lr=1e-3, weight_decay=0.1)
                # torch's AdamW in fp32, with fp32 master weights and the same gradients
                masters = [torch.nn.Parameter(param.detach().float()) for param in make_params(dtype)]
                theirs = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.1, foreach=True)
                for step in range(1, steps + 1):
                    set_gradients(params, step, 0.1)
                    for i, param in enumerate(params):
                        masters[i].grad = param.grad.float()
                        g = param.grad.double()
                        exact[i] *= 1 - 1e-3 * 0.1
                        m[i].mul_(0.9).add_(g, alpha=0.1)
                        v[i].mul_(0.999).addcmul_(g, g, value=0.001)
                        denominator = (v[i] / (1 - 0.999**step)).sqrt() + 1e-8
                        exact[i] -= 1e-3 / (1 - 0.9**step) * m[i] / denominator
                    ours.step()
                    theirs.step()
                mine = [ours._engine_state.masters(ours._known[param].number) for param in params]

                def error(values):
                    return math.sqrt(sum(((a.cpu().double() - b.cpu()) ** 2).sum().item() for a, b in zip(values, exact)))

                self.assertLessEqual(error(mine), 1.1 * error([param.detach() for param in masters]))

    def test_a_tight_budget_gives_the_same_bits_as_memory(self):
        for state_format in ("fp32", "bf16", "8bit", "compact"):
            for dtype in (torch.float32, torch.bfloat16):
                if state_format == "compact" and dtype == torch.float32:
                    continue
                with self.subTest(state_format, dtype=dtype):
                    results = []
                    for store, pinned in ((None, None), (self.store(), "256KiB")):
                        model = tiny_model(dtype)
                        optimizer = st.AdamW(model.parameters(), lr=1e-2, store=store, pinned=pinned,
                                             state_format=state_format)
                        losses = train(model, optimizer, 10, clip=0.5, accumulate=2)
                        results.append((losses, [param.detach().clone() for param in model.parameters()]))
                    self.assertEqual(results[0][0], results[1][0])
                    self.assert_same(results[0][1], results[1][1])


if __name__ == "__main__":
    unittest.main()
