#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes norm_golden.h: the results of the rules that take norms of a whole tensor, for a few tensors and steps.

Run once, with any PyTorch, when a case changes:  tests/optim/norm_golden.py > tests/optim/norm_golden.h
The numbers are checked in, so that the test needs no Python. PyTorch lacks LAMB and LARS. They are algorithm 2 of
arXiv:1904.00962 and algorithm 1 of arXiv:1708.03888, written here in fp64. Adafactor is torch.optim.Adafactor if PyTorch
has it (from 2.5 on). Otherwise it is the algorithm of that class's documentation, also in fp64. PyTorch 2.9.0's function
gives the same parameters and state to 2e-7 of each.
"""

import torch

from rule_golden import LEARNING_RATES, WEIGHT_DECAY, literal

EPSILON = torch.finfo(torch.float32).eps
TRUST = 1e-3


class Lamb:
    """You et al., "Large Batch Optimization for Deep Learning". A vector's learning rate is not scaled."""

    names = ("exp_avg", "exp_avg_sq")

    def __init__(self, parameter, beta1=0.9, beta2=0.999, epsilon=1e-6):
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.state = {name: torch.zeros_like(parameter) for name in self.names}

    def step(self, parameter, gradient, learning_rate, t):
        m, v = (self.state[name] for name in self.names)
        m.mul_(self.beta1).add_(gradient, alpha=1 - self.beta1)
        v.mul_(self.beta2).add_(gradient * gradient, alpha=1 - self.beta2)
        ratio = (m / (1 - self.beta1**t)) / ((v / (1 - self.beta2**t)).sqrt() + self.epsilon)
        update = ratio + WEIGHT_DECAY * parameter
        trust = parameter.norm() / update.norm() if parameter.dim() > 1 else 1
        parameter.sub_(learning_rate * trust * update)


class Lars:
    """You et al., "Large Batch Training of Convolutional Networks". A vector's learning rate is not scaled."""

    names = ("momentum_buffer",)

    def __init__(self, parameter, momentum=0.9):
        self.momentum = momentum
        self.state = {name: torch.zeros_like(parameter) for name in self.names}

    def step(self, parameter, gradient, learning_rate, t):
        rate = 1
        if parameter.dim() > 1:
            rate = TRUST * parameter.norm() / (gradient.norm() + WEIGHT_DECAY * parameter.norm())
        m = self.state["momentum_buffer"]
        m.mul_(self.momentum).add_(learning_rate * rate * (gradient + WEIGHT_DECAY * parameter))
        parameter.sub_(m)


class Adafactor:
    """Shazeer and Stern, with the differences that torch.optim.Adafactor documents."""

    def __init__(self, parameter, epsilon1=EPSILON, epsilon2=1e-3, threshold=1.0, decay=0.8):
        self.constants = epsilon1, epsilon2, threshold, decay
        if parameter.dim() < 2:
            self.state = {"variance": torch.zeros_like(parameter)}
        else:
            self.state = {"row_var": torch.zeros_like(parameter[..., :1]),
                          "col_var": torch.zeros_like(parameter[..., :1, :])}
        self.names = tuple(self.state)

    def step(self, parameter, gradient, learning_rate, t):
        epsilon1, epsilon2, threshold, decay = self.constants

        def rms(tensor):
            return tensor.square().mean().sqrt().item()

        def average(name, square):
            self.state[name].mul_(1 - t**-decay).add_(square, alpha=t**-decay)
            return self.state[name]

        alpha = max(epsilon2, rms(parameter)) * min(learning_rate, t**-0.5)
        parameter.mul_(1 - learning_rate * WEIGHT_DECAY)
        square = gradient.square()
        if parameter.dim() < 2:
            variance = average("variance", square)
        else:
            rows = average("row_var", square.mean(dim=-1, keepdim=True))
            columns = average("col_var", square.mean(dim=-2, keepdim=True))
            variance = rows * columns / rows.mean(dim=-2, keepdim=True).clamp(min=epsilon1)
        update = gradient / variance.clamp(min=epsilon1**2).sqrt()
        parameter.sub_(alpha / max(1.0, rms(update) / threshold) * update)


class TorchAdafactor:
    """torch.optim.Adafactor with the interface of the classes above."""

    def __init__(self, parameter):
        self.parameter = torch.nn.Parameter(parameter.float())
        self.optimizer = torch.optim.Adafactor([self.parameter], weight_decay=WEIGHT_DECAY)
        self.names = ("variance",) if parameter.dim() < 2 else ("row_var", "col_var")

    def step(self, parameter, gradient, learning_rate, t):
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.parameter.grad = gradient.float()
        self.optimizer.step()
        self.state = {name: self.optimizer.state[self.parameter][name] for name in self.names}
        parameter.copy_(self.parameter.detach())


ADAFACTOR = TorchAdafactor if hasattr(torch.optim, "Adafactor") else Adafactor
LAMB_RULE = "{.kind = RuleKind::kLamb, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6}"
ADAFACTOR_RULE = "{.kind = RuleKind::kAdafactor, .epsilon = std::numeric_limits<float>::epsilon()}"
# Name, the rule in C++, the class of the optimizer, and the tensor's shape.
CASES = [
    ("kLambMatrix", LAMB_RULE, Lamb, (6, 5)),
    ("kLambVector", LAMB_RULE, Lamb, (7,)),
    ("kLarsMatrix", "{.kind = RuleKind::kLars, .momentum = 0.9}", Lars, (6, 5)),
    ("kLarsVector", "{.kind = RuleKind::kLars, .momentum = 0.9}", Lars, (7,)),
    ("kAdafactorMatrix", ADAFACTOR_RULE, ADAFACTOR, (6, 5)),
    ("kAdafactorVector", ADAFACTOR_RULE, ADAFACTOR, (7,)),
    ("kAdafactorStack", ADAFACTOR_RULE, ADAFACTOR, (2, 3, 4)),
]


def numbers(tensor):
    """Returns a tensor as a C++ initialiser."""
    return "{" + ", ".join(literal(value) for value in tensor.float().flatten().tolist()) + "}"


def table(tensors):
    """Returns tensors as a C++ initialiser, one per line."""
    return "{\n" + "".join(f"    {numbers(tensor)},\n" for tensor in tensors) + "}"


def start(shape):
    """Returns the tensor and its gradient in each step. Along the last dimension a gradient's scale rises from 1e-4 to 1e2.
    In each step another element is zero."""
    generator = torch.Generator().manual_seed(20261124)
    initial = torch.randn(shape, generator=generator) * 0.3
    gradients = []
    for step in range(len(LEARNING_RATES)):
        gradient = torch.randn(shape, generator=generator) * torch.logspace(-4, 2, shape[-1])
        gradient.view(-1)[step] = 0
        gradients.append(gradient)
    return initial, gradients


def run(make, initial, gradients):
    """Returns the parameter and each state tensor after each step."""
    parameter = initial.double()
    optimizer = make(parameter)
    parameters, states = [], [[] for _ in optimizer.names]
    for t, (learning_rate, gradient) in enumerate(zip(LEARNING_RATES, gradients), 1):
        optimizer.step(parameter, gradient.double(), learning_rate, t)
        parameters.append(parameter.clone())
        for of_name, name in zip(states, optimizer.names):
            of_name.append(optimizer.state[name].clone())
    return parameters, states


def main():
    version = torch.__version__.split("+")[0]
    made_by = "torch.optim's" if ADAFACTOR is TorchAdafactor else "the script's"
    print("// SPDX-License-Identifier: Apache-2.0")
    print("//")
    print(f"// Written by norm_golden.py with PyTorch {version}; Adafactor is {made_by}. Do not edit.")
    print()
    print("#ifndef SPILLWAY_TESTS_OPTIM_NORM_GOLDEN_H_")
    print("#define SPILLWAY_TESTS_OPTIM_NORM_GOLDEN_H_")
    print()
    print("#include <cstdint>")
    print("#include <limits>")
    print()
    print('#include "spillway/optimizer.h"')
    print()
    print("namespace spillway::optim::golden {")
    print()
    print("// clang-format off")
    print(f"inline constexpr int kNormSteps = {len(LEARNING_RATES)};")
    print(f"inline constexpr double kNormRates[] = {{{', '.join(map(repr, LEARNING_RATES))}}};")
    print(f"inline constexpr double kNormWeightDecay = {WEIGHT_DECAY!r};")
    print()
    print("struct NormCase {")
    print("  const char* name;")
    print("  Rule rule;")
    print("  int64_t shape[3];  // 0: no such dimension")
    print("  float initial[30];")
    print("  float gradients[kNormSteps][30];")
    print("  float parameters[kNormSteps][30];")
    print("  float state[2][kNormSteps][30];")
    print("};")
    for name, rule, make, shape in CASES:
        initial, gradients = start(shape)
        parameters, states = run(make, initial, gradients)
        print(f'inline constexpr NormCase {name} = {{"{name[1:]}", {rule}, {{{", ".join(map(str, shape))}}},')
        print(f"{numbers(initial)},")
        print(f"{table(gradients)},")
        print(f"{table(parameters)},")
        print("{" + ", ".join(table(tensors) for tensors in states) + "}};")
    print(f"inline constexpr const NormCase* kNormCases[] = {{{', '.join('&' + case[0] for case in CASES)}}};")
    print("// clang-format on")
    print()
    print("}  // namespace spillway::optim::golden")
    print()
    print("#endif  // SPILLWAY_TESTS_OPTIM_NORM_GOLDEN_H_")


if __name__ == "__main__":
    main()
