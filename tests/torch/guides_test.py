# SPDX-License-Identifier: Apache-2.0
"""Runs the Python of the guides: each block of README.md and tools/python/README.md, as a script in a folder of its own."""

import copy
import os
import pathlib
import re
import unittest
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import ranks  # noqa: E402
import spillway.torch as st  # noqa: E402
import torch  # noqa: E402
from torch_case import TorchTest  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 3  # of a block that loops over `batches`


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def small_llama():
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2))


def batches(number):
    generator = torch.Generator().manual_seed(9)
    tokens = [torch.randint(0, 96, (2, 24), generator=generator) for _ in range(number)]
    return [{"input_ids": each, "labels": each} for each in tokens]


def sharded(rank, folder):
    """Runs the blocks about several ranks. Returns lists of losses: those of a list must be equal."""
    os.chdir(folder)
    shard, in_16_bits, checkpoint = blocks_of("tools/python/README.md")[4:]
    imports, save, load = checkpoint.split("\n\n")

    def made(block, store, dtype=torch.float32):
        """Returns what a block has made of a small model whose weights are rounded to the dtype."""
        names = {"torch": torch, "st": st, "model": small_llama().to(dtype).float()}
        with mock.patch("torch.distributed.init_process_group"):  # the ranks have been joined
            exec(block.replace("nvme{local_rank}/run", store + "-{rank}").replace("8GiB", "64MiB"), names)  # noqa: S102
        return names

    def step(names):
        names["model"](**batches(1)[0]).loss.backward()
        names["opt"].step()
        names["opt"].zero_grad()

    def loss_of(names):
        with torch.no_grad():
            return names["model"](**batches(1)[0]).loss.item()

    def end(names):
        """Returns the loss, and closes the run."""
        loss = loss_of(names)
        names["opt"].run.close()
        return loss

    first, second = made(shard, "first"), made(shard, "second")
    step(first)
    exec(f"{imports}\n{save}", first)  # noqa: S102
    exec(f"{imports}\n{load}", second)  # noqa: S102
    resumed = [[loss_of(first), loss_of(second)]]
    step(first)
    step(second)
    resumed.append([end(first), end(second)])
    in_32_bits = re.sub(r"param.data, param.grad_dtype = .*", "pass", in_16_bits)
    each_dtype = [made(block, store, torch.bfloat16) for store, block in (("16", in_16_bits), ("32", in_32_bits))]
    assert [next(names["model"].parameters()).dtype for names in each_dtype] == [torch.bfloat16, torch.float32]
    for names in each_dtype:
        step(names)
    return [*resumed, [end(names) for names in each_dtype]]


class GuidesTest(TorchTest):
    makes_tensors_there = False  # the blocks are of a CPU, except those that name a GPU

    def setUp(self):
        super().setUp()
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)

    def names(self):
        """What a block finds: a model, data, and what the blocks before it have made."""
        return {"torch": torch, "st": st, "model": small_llama(), "batch": batches(1)[0], "batches": batches(STEPS), "step": 1}

    def plain_loss(self, steps):
        """Returns the loss after so many steps of PyTorch's AdamW, in memory."""
        model = small_llama()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for each in batches(steps):
            model(**each).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model(**batches(1)[0]).loss.item()

    def check_trained(self, names, steps):
        names["opt"].zero_grad()
        after = names["model"](**batches(1)[0]).loss.item()
        before = small_llama()(**batches(1)[0]).loss.item()
        self.assertLess(after, before)
        self.assertAlmostEqual(after, self.plain_loss(steps), delta=1e-5)

    def test_the_front_door_trains_as_torch_does(self):
        (block,) = blocks_of("README.md")
        names = self.names()
        exec(block, names)  # noqa: S102
        self.check_trained(names, 1)
        names["run"].close()

    def test_the_guide_trains_as_torch_does(self):
        one_line, everything, _, on_gpu, *_ = blocks_of("tools/python/README.md")
        names = self.names()
        exec(one_line, names)  # noqa: S102
        self.check_trained(names, STEPS)
        names["opt"].run.close()
        self.assertIn("cuda:0", on_gpu)

        names = self.names()
        exec(everything, names)  # noqa: S102
        self.check_trained(names, 1)
        names["run"].close()

    def test_a_saved_state_goes_on_with_the_same_bits(self):
        saving = blocks_of("tools/python/README.md")[2]
        names = self.names()
        names["opt"] = st.AdamW(names["model"].parameters(), lr=3e-4, store="run", pinned="64MiB")
        self.step(names)
        save, load = saving.split("\n\n")
        exec(save, names)  # noqa: S102
        self.step(names)
        expected = copy.deepcopy(names["model"].state_dict())
        names["opt"].run.close()

        other = self.names() | {"model": small_llama()}
        other["opt"] = st.AdamW(other["model"].parameters(), lr=3e-4, store="run", pinned="64MiB")
        exec(load, other)  # noqa: S102
        self.step(other)
        for name, value in other["model"].state_dict().items():
            self.assertTrue(torch.equal(value, expected[name]), name)
        other["opt"].run.close()

    def test_with_several_ranks_it_trains_as_torch_does_and_goes_on_from_a_checkpoint(self):
        for after_one, after_two, of_dtypes in ranks.run(2, sharded, str(self.folder)):
            self.assertAlmostEqual(after_one[0], self.plain_loss(1), delta=1e-5)
            for first, second in (after_one, after_two, of_dtypes):
                self.assertEqual(first, second)
            self.assertNotEqual(after_one, after_two)

    def step(self, names):
        names["opt"].zero_grad()
        names["model"](**names["batch"]).loss.backward()
        names["opt"].step()


if __name__ == "__main__":
    unittest.main()
