#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rule_golden.h: the results of torch.optim for a few parameters in a few steps, rule by rule.

Run once, with any PyTorch, when a case changes:  tests/optim/rule_golden.py > tests/optim/rule_golden.h
The numbers are checked in, so that the test needs no Python. PyTorch has no Lion, so its case is the algorithm of
arXiv:2302.06675, written here with the same tensors in fp32.
"""

import torch

ELEMENTS = 12
LEARNING_RATES = [1e-3, 3e-3, 1e-2, 2e-3, 0.0, 5e-4]
WEIGHT_DECAY = 0.1


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                average = state["exp_avg"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = average * beta1 + parameter.grad * (1 - beta1)
                parameter.add_(torch.sign(update), alpha=-group["lr"])
                average.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


# Name, the rule in C++, the optimizer, and the moments in the order of the state.
CASES = [
    ("kAdamW", "{.kind = RuleKind::kAdamW, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8}",
     lambda p: torch.optim.AdamW(p, betas=(0.9, 0.95), eps=1e-8, weight_decay=WEIGHT_DECAY),
     ["exp_avg", "exp_avg_sq"]),
    ("kAdam", "{.kind = RuleKind::kAdam, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}",
     lambda p: torch.optim.Adam(p, betas=(0.9, 0.999), eps=1e-8, weight_decay=WEIGHT_DECAY),
     ["exp_avg", "exp_avg_sq"]),
    ("kSgd", "{.kind = RuleKind::kSgd}",
     lambda p: torch.optim.SGD(p, lr=1, weight_decay=WEIGHT_DECAY), []),
    ("kSgdMomentum", "{.kind = RuleKind::kSgd, .momentum = 0.9}",
     lambda p: torch.optim.SGD(p, lr=1, momentum=0.9, weight_decay=WEIGHT_DECAY), ["momentum_buffer"]),
    ("kRmsProp", "{.kind = RuleKind::kRmsProp, .epsilon = 1e-8, .alpha = 0.99}",
     lambda p: torch.optim.RMSprop(p, alpha=0.99, eps=1e-8, weight_decay=WEIGHT_DECAY), ["square_avg"]),
    ("kRmsPropMomentum", "{.kind = RuleKind::kRmsProp, .epsilon = 1e-8, .alpha = 0.99, .momentum = 0.9}",
     lambda p: torch.optim.RMSprop(p, alpha=0.99, eps=1e-8, momentum=0.9, weight_decay=WEIGHT_DECAY),
     ["square_avg", "momentum_buffer"]),
    ("kAdamWAmsgrad", "{.kind = RuleKind::kAdamW, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .amsgrad = true}",
     lambda p: torch.optim.AdamW(p, betas=(0.9, 0.95), eps=1e-8, weight_decay=WEIGHT_DECAY, amsgrad=True),
     ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
    ("kAdamAmsgradMaximize",
     "{.kind = RuleKind::kAdam, .beta1 = 0.9, .beta2 = 0.9, .epsilon = 1e-8, .amsgrad = true, .maximize = true}",
     lambda p: torch.optim.Adam(p, betas=(0.9, 0.9), eps=1e-8, weight_decay=WEIGHT_DECAY, amsgrad=True, maximize=True),
     ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
    ("kSgdNesterov", "{.kind = RuleKind::kSgd, .momentum = 0.9, .nesterov = true}",
     lambda p: torch.optim.SGD(p, lr=1, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY), ["momentum_buffer"]),
    ("kSgdDampening", "{.kind = RuleKind::kSgd, .momentum = 0.9, .dampening = 0.25}",
     lambda p: torch.optim.SGD(p, lr=1, momentum=0.9, dampening=0.25, weight_decay=WEIGHT_DECAY),
     ["momentum_buffer"]),
    ("kRmsPropCentered", "{.kind = RuleKind::kRmsProp, .epsilon = 1e-8, .alpha = 0.9, .centered = true}",
     lambda p: torch.optim.RMSprop(p, alpha=0.9, eps=1e-8, centered=True, weight_decay=WEIGHT_DECAY),
     ["grad_var", "grad_avg"]),
    ("kRmsPropCenteredMomentum",
     "{.kind = RuleKind::kRmsProp, .epsilon = 1e-8, .alpha = 0.9, .momentum = 0.9, .centered = true}",
     lambda p: torch.optim.RMSprop(p, alpha=0.9, eps=1e-8, centered=True, momentum=0.9, weight_decay=WEIGHT_DECAY),
     ["grad_var", "momentum_buffer", "grad_avg"]),
    ("kLion", "{.kind = RuleKind::kLion, .beta1 = 0.9, .beta2 = 0.99}",
     lambda p: Lion(p, betas=(0.9, 0.99), weight_decay=WEIGHT_DECAY), ["exp_avg"]),
]


def literal(value):
    """Returns a float as a C++ literal of nine digits, from which a compiler gets the same float."""
    text = f"{value:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def row(values):
    """Returns one tensor as a C++ initialiser, six numbers per line."""
    numbers = [literal(value) for value in values.tolist()]
    lines = [", ".join(numbers[i : i + 6]) for i in range(0, len(numbers), 6)]
    return "{" + ",\n     ".join(lines) + "}"


def table(rows):
    return "{\n" + "".join(f"    {row(values)},\n" for values in rows) + "}"


def start():
    """Returns the parameter and its gradient in each step. Gradients have scales from 1e-6 to 1e5, so that epsilon matters to
    some elements. In each step another element is zero."""
    generator = torch.Generator().manual_seed(20261121)
    initial = torch.randn(ELEMENTS, generator=generator)
    gradients = []
    for step in range(len(LEARNING_RATES)):
        gradient = torch.randn(ELEMENTS, generator=generator) * torch.logspace(-6, 5, ELEMENTS)
        gradient[step] = 0
        gradients.append(gradient)
    return initial, gradients


def moment(state, name):
    """Returns a moment. The variance is a difference of PyTorch's."""
    if name == "grad_var":
        return (state["square_avg"].double() - state["grad_avg"].double() ** 2).float()
    return state[name].clone()


def run(initial, gradients, make, names):
    """Returns the parameter and each moment after each step."""
    parameter = torch.nn.Parameter(initial.clone())
    optimizer = make([parameter])
    parameters, moments = [], [[] for _ in names]
    for learning_rate, gradient in zip(LEARNING_RATES, gradients):
        parameter.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
        parameters.append(parameter.detach().clone())
        for rows, name in zip(moments, names):
            rows.append(moment(optimizer.state[parameter], name))
    return parameters, moments


def main():
    initial, gradients = start()
    version = torch.__version__.split("+")[0]
    print("// SPDX-License-Identifier: Apache-2.0")
    print("//")
    print(f"// Written by rule_golden.py with PyTorch {version}: a row a step. Do not edit.")
    print()
    print("#ifndef SPILLWAY_TESTS_OPTIM_RULE_GOLDEN_H_")
    print("#define SPILLWAY_TESTS_OPTIM_RULE_GOLDEN_H_")
    print()
    print('#include "spillway/optimizer.h"')
    print()
    print("namespace spillway::optim::golden {")
    print()
    print("// clang-format off")
    print(f"inline constexpr int kSteps = {len(LEARNING_RATES)};")
    print(f"inline constexpr int kElements = {ELEMENTS};")
    print(f"inline constexpr double kLearningRates[] = {{{', '.join(map(repr, LEARNING_RATES))}}};")
    print(f"inline constexpr double kWeightDecay = {WEIGHT_DECAY!r};")
    print("using Row = float[kElements];")
    print(f"inline constexpr Row kInitial =\n    {row(initial)};")
    print(f"inline constexpr Row kGradients[kSteps] = {table(gradients)};")
    print()
    print("struct Case {")
    print("  const char* name;")
    print("  Rule rule;")
    print("  int num_moments;")
    print("  Row parameters[kSteps];")
    print("  Row moments[3][kSteps];")
    print("};")
    for name, rule, make, names in CASES:
        parameters, moments = run(initial, gradients, make, names)
        print(f'inline constexpr Case {name} = {{"{name[1:]}", {rule}, {len(names)},')
        print(f"{table(parameters)},")
        print("{" + ", ".join(table(rows) for rows in moments) + "}};")
    print(f"inline constexpr const Case* kCases[] = {{{', '.join('&' + case[0] for case in CASES)}}};")
    print("// clang-format on")
    print()
    print("}  // namespace spillway::optim::golden")
    print()
    print("#endif  // SPILLWAY_TESTS_OPTIM_RULE_GOLDEN_H_")


if __name__ == "__main__":
    main()
