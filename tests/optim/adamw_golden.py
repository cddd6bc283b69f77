#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes adamw_golden.h: what torch.optim.AdamW makes of a few parameters in a few steps.

Run once, with any PyTorch, when the case changes:  tests/optim/adamw_golden.py > tests/optim/adamw_golden.h
The numbers are checked in, so that the test needs no Python.
"""

import torch

ELEMENTS = 12
LEARNING_RATES = [1e-3, 3e-3, 1e-2, 2e-3, 0.0, 5e-4]
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1


def literal(value):
    """A float with the nine digits that give it back exactly."""
    text = f"{value:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def row(values):
    """One tensor as a C++ initialiser, six numbers a line."""
    numbers = [literal(value) for value in values.tolist()]
    lines = [", ".join(numbers[i : i + 6]) for i in range(0, len(numbers), 6)]
    return "{" + ",\n     ".join(lines) + "}"


def table(name, rows):
    print(f"inline constexpr float {name}[{len(rows)}][{ELEMENTS}] = {{")
    for values in rows:
        print(f"    {row(values)},")
    print("};")


def main():
    generator = torch.Generator().manual_seed(20261121)
    parameter = torch.nn.Parameter(torch.randn(ELEMENTS, generator=generator))
    initial = parameter.detach().clone()
    optimizer = torch.optim.AdamW([parameter], betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY)
    gradients, parameters, moments1, moments2 = [], [], [], []
    for step, learning_rate in enumerate(LEARNING_RATES):
        # From 1e-6 to 1e5, so that epsilon matters to some elements, and zeros.
        gradient = torch.randn(ELEMENTS, generator=generator) * torch.logspace(-6, 5, ELEMENTS)
        gradient[step] = 0
        parameter.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
        state = optimizer.state[parameter]
        gradients.append(gradient)
        parameters.append(parameter.detach().clone())
        moments1.append(state["exp_avg"].clone())
        moments2.append(state["exp_avg_sq"].clone())

    print("// SPDX-License-Identifier: Apache-2.0")
    print("//")
    version = torch.__version__.split("+")[0]
    print(f"// Written by adamw_golden.py with PyTorch {version}: a row a step. Do not edit.")
    print()
    print("#ifndef SPILLWAY_TESTS_OPTIM_ADAMW_GOLDEN_H_")
    print("#define SPILLWAY_TESTS_OPTIM_ADAMW_GOLDEN_H_")
    print()
    print("namespace spillway::optim::golden {")
    print()
    print("// clang-format off")
    print(f"inline constexpr int kSteps = {len(LEARNING_RATES)};")
    print(f"inline constexpr int kElements = {ELEMENTS};")
    print(f"inline constexpr double kLearningRates[] = {{{', '.join(map(repr, LEARNING_RATES))}}};")
    print(f"inline constexpr double kBeta1 = {BETAS[0]!r};")
    print(f"inline constexpr double kBeta2 = {BETAS[1]!r};")
    print(f"inline constexpr double kEpsilon = {EPSILON!r};")
    print(f"inline constexpr double kWeightDecay = {WEIGHT_DECAY!r};")
    print(f"inline constexpr float kInitial[{ELEMENTS}] =\n    {row(initial)};")
    table("kGradients", gradients)
    table("kParameters", parameters)
    table("kMoments1", moments1)
    table("kMoments2", moments2)
    print("// clang-format on")
    print()
    print("}  // namespace spillway::optim::golden")
    print()
    print("#endif  // SPILLWAY_TESTS_OPTIM_ADAMW_GOLDEN_H_")


if __name__ == "__main__":
    main()
