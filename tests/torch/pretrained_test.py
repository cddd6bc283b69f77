# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that are loaded into the engine, weight by weight, and written from there."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from unittest import mock

import spillway
import spillway.torch as st
import torch
from accelerate import init_empty_weights, load_checkpoint_in_model
from hf_case import HfTest, loss_of, tiny_llama
from safetensors.torch import save_file
from spillway.torch._tensor import EngineTensor
from torch_case import DEVICE
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers import LlamaForSequenceClassification

MIB = 1 << 20


def anonymous_bytes():
    """Returns how much memory of this process is no file's."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def load_and_measure(folder, dtype):
    """Prints how much memory a process of its own takes at most, at a weight's arrival in the engine, and the loss."""
    with st.open(str(pathlib.Path(folder).parent / "store"), pinned="16MiB", device="cpu", report=False) as run:
        register, most = spillway.Engine.register, 0

        def measured(*args, **kwargs):
            nonlocal most
            most = max(most, anonymous_bytes())
            return register(*args, **kwargs)

        LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                     num_attention_heads=1))  # whatever is imported late
        before = anonymous_bytes()
        with mock.patch.object(spillway.Engine, "register", measured), st.parameters(run):
            model = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        print(json.dumps({"taken": most - before, "loss": loss_of(model).item()}))


class PretrainedTest(HfTest):
    def run_of(self, store=None, pinned="1MiB"):
        run = st.open(self.store() if store is None else store, pinned=pinned, device=DEVICE, report=False)
        self.addCleanup(run.close)
        return run

    def loaded(self, folder, run=None, of=LlamaForCausalLM, **more):
        with st.parameters(self.run_of() if run is None else run):
            model = of.from_pretrained(folder, **more)
        for name, param in model.named_parameters():
            self.assertIsInstance(param, EngineTensor, name)
            self.assertIsInstance(param, torch.nn.Parameter, name)
        return model.to(DEVICE)

    def assert_loads_as_in_memory(self, folder, of=LlamaForCausalLM, **more):
        torch.manual_seed(4)
        expected = of.from_pretrained(folder, **more).to(DEVICE)
        torch.manual_seed(4)
        model = self.loaded(folder, of=of, **more)
        self.assert_same_model(model, expected)
        for name, param in expected.named_parameters(remove_duplicate=False):
            self.assertEqual(model.get_parameter(name).requires_grad, param.requires_grad)
        self.assertEqual(model.training, expected.training)
        if hasattr(model, "lm_head"):
            self.assertEqual(loss_of(model).item(), loss_of(expected).item())
            self.assertEqual(model.lm_head.weight is model.get_input_embeddings().weight,
                             expected.lm_head.weight is expected.get_input_embeddings().weight)
        return model

    def test_it_loads_as_in_memory(self):
        for tie in (True, False):
            folder = self.folder / f"tie {tie}"
            tiny_llama(tie, layers=2).save_pretrained(folder)
            self.assert_loads_as_in_memory(folder)
            self.assert_loads_as_in_memory(folder, dtype=torch.bfloat16)
            self.assert_loads_as_in_memory(folder, of=AutoModelForCausalLM, dtype="float16")

    def test_shards_and_other_files_are_loaded(self):
        tiny_llama(layers=2).save_pretrained(self.folder / "shards", max_shard_size="60KB")
        self.assertGreater(len(list((self.folder / "shards").glob("*.safetensors"))), 3)
        self.assert_loads_as_in_memory(self.folder / "shards")
        self.assert_loads_as_in_memory(self.folder / "shards", dtype=torch.bfloat16)
        torch.manual_seed(1)
        gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2))
        gpt2.save_pretrained(self.folder / "gpt2")
        self.assert_loads_as_in_memory(self.folder / "gpt2", of=GPT2LMHeadModel)
        state = gpt2.state_dict()
        (self.folder / "gpt2" / "model.safetensors").unlink()
        torch.save(state, self.folder / "gpt2" / "pytorch_model.bin")
        self.assert_loads_as_in_memory(self.folder / "gpt2", of=GPT2LMHeadModel)

    def test_weights_that_no_file_has_are_initialised(self):
        tiny_llama().save_pretrained(self.folder / "base")
        self.assert_loads_as_in_memory(self.folder / "base", of=LlamaForSequenceClassification, num_labels=3)

    def test_the_names_are_those_of_a_model_built_from_its_config(self):
        folder = self.folder / "plain"
        tiny_llama(layers=2).save_pretrained(folder)
        run = self.run_of()
        model = self.loaded(folder, run)
        optimizer = st.SGD(model.parameters(), lr=0.5, store=run)
        for step in range(2):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        saved, expected = optimizer.state_dict(), {name: value.clone() for name, value in model.state_dict().items()}
        names = {name: param._home.name for name, param in model.named_parameters()}
        store = run.store
        run.close()
        del model, optimizer
        for build in (lambda run: self.loaded(folder, run), lambda run: LlamaForCausalLM(LlamaConfig.from_pretrained(folder))):
            run = self.run_of(store)
            with st.parameters(run):
                model = build(run)
            self.assertEqual({name: param._home.name for name, param in model.named_parameters()}, names)
            st.SGD(model.parameters(), lr=0.5, store=run).load_state_dict(saved)
            self.assert_same_weights(model.state_dict(), expected)
            run.close()
            del model

    def test_a_model_that_was_loaded_is_saved(self):
        plain = tiny_llama(layers=2)
        plain.save_pretrained(self.folder / "plain")
        model = self.loaded(self.folder / "plain")
        model.save_pretrained(self.folder / "again")
        self.assert_same_model(LlamaForCausalLM.from_pretrained(self.folder / "again"), plain.cpu())
        averages = {"lm_head.weight": torch.full((2, 2), 7.0)}
        model.save_pretrained(self.folder / "averages", state_dict=averages)
        self.assert_same_weights(self.weights_in(self.folder / "averages"), averages)
        model.save_pretrained(self.folder / "none", is_main_process=False)
        self.assertFalse((self.folder / "none").exists())
        plain.save_pretrained(self.folder / "memory", max_shard_size="60KB")  # as before
        self.assertTrue((self.folder / "memory" / "model.safetensors.index.json").exists())

    def test_values_may_come_in_other_ways(self):
        def assigned(model):
            model.load_state_dict({"weight": torch.full((3, 2), 1.0), "bias": torch.full((3,), 1.0)}, assign=True)

        def emptied(model):
            model.to_empty(device=DEVICE)
            for param in model.parameters():
                param.data.fill_(1)

        def put(model):  # as accelerate does
            for name, param in list(model._parameters.items()):
                model._parameters[name] = torch.nn.Parameter(torch.ones(param.shape, device=DEVICE))

        for load in (assigned, emptied, put):
            with st.parameters(self.run_of()):
                model = torch.nn.Linear(2, 3, device="meta")
                load(model)
            for param in model.parameters():
                self.assertIsInstance(param, EngineTensor)
                self.assertEqual(param.unique().tolist(), [1.0])
            self.assertEqual(sorted(param._home.name for param in model.parameters()), ["weights/0.weight", "weights/1.bias"])

    def test_weights_of_a_file_that_share_memory(self):
        plain = tiny_llama().cpu()
        plain.save_pretrained(folder := self.folder / "tied")
        (folder / "model.safetensors").unlink()
        torch.save(plain.state_dict(), folder / "pytorch_model.bin")
        self.assert_loads_as_in_memory(folder)
        with self.assertRaisesRegex(spillway.InvalidArgument, "lm_head.*overlaps|overlaps.*make them one object"):
            self.loaded(folder, tie_word_embeddings=False)

    def test_a_weight_that_gets_no_values_is_said(self):
        with self.assertRaisesRegex(spillway.InvalidArgument, "parameter 1.bias is on the meta device at the end of param"):
            with st.parameters(self.run_of()):
                model = torch.nn.Linear(2, 3, device="meta")
                model.weight = torch.nn.Parameter(torch.ones(3, 2))
        with self.assertRaisesRegex(ZeroDivisionError, "by zero"):  # and not that
            with st.parameters(self.run_of()):
                model = torch.nn.Linear(2, 3, device="meta")
                1 / 0
        del model

    def test_accelerates_ways_to_load(self):
        plain = tiny_llama()
        plain.save_pretrained(self.folder / "plain")
        moved = st.offload(tiny_llama(seed=99), self.run_of())
        load_checkpoint_in_model(moved, self.folder / "plain")
        self.assert_same_model(moved, plain)
        self.assertTrue(all(isinstance(param, EngineTensor) for param in moved.parameters()))
        with st.parameters(self.run_of()):
            with torch.device("meta"):
                built = LlamaForCausalLM(plain.config)
            load_checkpoint_in_model(built, self.folder / "plain", device_map={"": "cpu"})
            built.tie_weights()
        self.assert_same_weights(dict(built.named_parameters()), dict(plain.named_parameters()))
        self.assertTrue(all(isinstance(param, EngineTensor) for param in built.parameters()))
        run = self.run_of()
        with st.parameters(run):
            with init_empty_weights():
                built = LlamaForCausalLM(plain.config)
            self.assertTrue(all(param.is_meta for param in built.parameters()))
            load_checkpoint_in_model(built, self.folder / "plain", device_map={"": "cpu"})
            built.tie_weights()
        self.assert_same_weights(dict(built.named_parameters()), dict(plain.named_parameters()))
        self.assertEqual(built.model.layers[0].self_attn.q_proj.weight._home.name, "weights/1.weight")
        with self.assertRaisesRegex(spillway.FailedPrecondition, "is not made by its class: .*offload"):
            EngineTensor(torch.ones(2))

    def test_how_transformers_loads_is_set_only_within(self):
        variable = "HF_DEACTIVATE_ASYNC_LOAD"
        for value in (None, "0"):
            with mock.patch.dict(os.environ, {} if value is None else {variable: value}):
                with st.parameters(self.run_of()):
                    self.assertEqual(os.environ[variable], "1")
                self.assertEqual(os.environ.get(variable), value)

    def test_weights_stream_into_the_engine(self):
        torch.manual_seed(2)
        plain = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=512, intermediate_size=1536, num_hidden_layers=16,
                                             num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64))
        for written, loaded in ((torch.float32, "float32"), (torch.bfloat16, "float32")):
            folder = self.folder / "big"
            plain.to(written).save_pretrained(folder, max_shard_size="40MB")
            expected = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
            size = sum(param.numel() * 4 for param in expected.parameters())
            self.assertGreater(size, 200 * MIB)
            code = f"import pretrained_test; pretrained_test.load_and_measure({str(folder)!r}, {loaded!r})"
            more = {"MALLOC_MMAP_THRESHOLD_": str(MIB), "CUDA_VISIBLE_DEVICES": ""}
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True,
                                  timeout=500, env={**os.environ, **more})
            got = json.loads(done.stdout.splitlines()[-1])
            self.assertAlmostEqual(got["loss"], loss_of(expected).item(), places=5)
            # 16 MiB of pinned memory, weights of 3 MiB, and what the engine and the libraries need.
            self.assertLess(got["taken"], 64 * MIB, (written, size))
            shutil.rmtree(folder)
            shutil.rmtree(self.folder / "store", ignore_errors=True)


if __name__ == "__main__":
    unittest.main()
