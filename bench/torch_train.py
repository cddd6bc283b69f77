#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast does eager PyTorch train on a GPU what `spillway bench train` trains there?

Limit: with everything on the device, Spillway reaches at least 0.9 of the tokens/s of eager PyTorch in bf16 with its fused
attention and its fused AdamW. The model, the window and the micro-batch are the same, and weights are random. Both run in
turns; medians over steps; the first two steps of a turn are left out. Where DeepSpeed is installed, ZeRO-Infinity trains,
too, with state on the drive and as much pinned memory; Spillway's row from NVMe must be ahead. A model that does not fit is
skipped with the reason. Exits with 1 if a limit is missed.

  build/torch-venv/bin/python bench/torch_train.py --spillway build/release/bin/spillway --drive /mnt/nvme0 --out results.json

Needs torch, transformers and a GPU; with --device cpu it shows that it runs.
"""

import argparse
import gc
import json
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import transformers

LIMIT = 0.9
WARM_UP = 2
# As `spillway plan` has them.
SHAPES = {
    "1.1B": {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
             "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048},
    "3.2B": {"vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
             "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
             "rope_theta": 500000.0, "tie_word_embeddings": True},
    "7B": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096},
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spillway", type=pathlib.Path, required=True)
    parser.add_argument("--drive", type=pathlib.Path, required=True, help="a folder on the drive for state on NVMe")
    parser.add_argument("--models", default="1.1B,3.2B,7B", help="of %(default)s, or folders with a config.json")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=pathlib.Path, help="one JSON object, in a file")
    return parser.parse_args()


def config_of(model):
    if model in SHAPES:
        return transformers.LlamaConfig(**SHAPES[model])
    return transformers.AutoConfig.from_pretrained(model)


def tokens_of(config, arguments):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (arguments.batch, arguments.seq), generator=generator).to(arguments.device)


def timed(step, arguments):
    """Returns the seconds of each measured step."""
    seconds = []
    for number in range(WARM_UP + arguments.steps):
        begin = time.monotonic()
        step()
        if arguments.device.startswith("cuda"):
            torch.cuda.synchronize()
        if number >= WARM_UP:
            seconds.append(time.monotonic() - begin)
    return seconds


def torch_turn(model, arguments):
    config = config_of(model)
    with torch.device(arguments.device):
        network = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6, fused=arguments.device.startswith("cuda"))
    tokens = tokens_of(config, arguments)

    def step():
        with torch.autocast(arguments.device.split(":")[0], dtype=torch.bfloat16):
            loss = network(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(step, arguments)


def deepspeed_turn(model, arguments):
    """ZeRO-Infinity with weights and optimizer state on the drive. Raises ImportError without DeepSpeed."""
    import deepspeed  # pylint: disable=import-outside-toplevel
    config = config_of(model)
    offload = {"device": "nvme", "nvme_path": str(arguments.drive), "pin_memory": True}
    settings = {
        "train_micro_batch_size_per_gpu": arguments.batch, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-6}},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
    }
    with deepspeed.zero.Init(config_dict_or_path=settings):
        network = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa",
                                                                torch_dtype=torch.bfloat16)
    network.gradient_checkpointing_enable()
    engine = deepspeed.initialize(model=network, config=settings)[0]
    tokens = tokens_of(config, arguments)

    def step():
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()

    return timed(step, arguments)


def spillway_turn(model, place, arguments):
    """Returns the row of `spillway bench train`."""
    device = "host" if arguments.device == "cpu" else arguments.device
    command = [arguments.spillway, "bench", "train", arguments.drive, "--model", model, "--place", place, "--device", device,
               "--seq", arguments.seq, "--batch", arguments.batch, "--steps", arguments.steps, "--json"]
    finished = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
    if finished.returncode != 0:
        raise RuntimeError(finished.stderr.strip().splitlines()[-1])
    return json.loads(finished.stdout)["rows"][0]


def attempt(turn, *arguments):
    """Returns (result, None), or (None, why there is none)."""
    try:
        return turn(*arguments), None
    except (RuntimeError, ImportError) as error:  # CUDA's lack of memory is a RuntimeError
        return None, str(error).splitlines()[0]
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def compare(model, arguments):
    """Returns a row: tokens/s of each contender, and why one has none."""
    rates, skipped = {}, {}
    contenders = {f"spillway {place}": (spillway_turn, model, place, arguments) for place in ("device", "pinned", "nvme")}
    contenders["torch"] = (torch_turn, model, arguments)
    contenders["deepspeed nvme"] = (deepspeed_turn, model, arguments)
    for _ in range(arguments.rounds):
        for name, (turn, *rest) in contenders.items():
            if name in skipped:
                continue
            result, why = attempt(turn, *rest)
            if isinstance(result, dict) and "skipped" in result:
                result, why = None, result["skipped"]
            if why is not None:
                skipped[name] = why
                continue
            tokens = arguments.seq * arguments.batch
            rate = result["tokens_per_second"] if isinstance(result, dict) else tokens / statistics.median(result)
            rates.setdefault(name, []).append(rate)
    return {"model": model, "tokens_per_second": {name: statistics.median(each) for name, each in rates.items()},
            "skipped": skipped}


def verdicts(rows):
    """Returns a sentence for each limit that is missed."""
    missed = []
    for row in rows:
        rates = row["tokens_per_second"]
        pairs = (("spillway device", "torch", LIMIT), ("spillway nvme", "deepspeed nvme", 1.0))
        for ours, theirs, limit in pairs:
            if ours in rates and theirs in rates:
                row[f"{ours} of {theirs}"] = ratio = rates[ours] / rates[theirs]
                if ratio < limit:
                    missed.append(f"{row['model']}: {ours} has {ratio:.2f} of {theirs}, and {limit} is the limit")
    return missed


def main():
    arguments = parse()
    rows = [compare(model, arguments) for model in arguments.models.split(",")]
    missed = verdicts(rows)
    name = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "cpu"
    report = {"v": 1, "rows": rows, "missed": missed, "device": name, "torch": torch.__version__,
              "transformers": transformers.__version__, "seq": arguments.seq, "batch": arguments.batch}
    for row in rows:
        print(row["model"])
        for contender, rate in row["tokens_per_second"].items():
            print(f"  {contender:16} {rate:10.1f} tokens/s")
        for contender, why in row["skipped"].items():
            print(f"  {contender:16} skipped: {why}")
    print("\n".join(missed) or "no limit is missed")
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
