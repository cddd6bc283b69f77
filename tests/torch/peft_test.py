# SPDX-License-Identifier: Apache-2.0
"""PEFT's adapters on weights in the engine give the same bits as in memory: trained, merged and saved, whether the model was
offloaded before it got them or afterwards."""

import copy
import pickle
import unittest
import warnings
from unittest import mock

import spillway
import spillway.torch as st
import torch
from hf_case import HfTest, loss_of, tiny_llama
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTuner
from safetensors.torch import save_file, save_model
from spillway.torch._tensor import EngineTensor, Home
from torch_case import DEVICE
from transformers import LlamaForCausalLM

ORDERS = ("memory", "offload first", "adapters first")


class PeftTest(HfTest):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")  # PEFT warns of tied embeddings
        self.addCleanup(warnings.resetwarnings)

    def run_of(self, pinned="1MiB"):
        run = st.open(self.store(), pinned=pinned, device=DEVICE, report=False)
        self.addCleanup(run.close)
        return run

    def adapted(self, order, config, tie=True, dtype=torch.float32):
        """Returns a LLaMA with adapters, and the run in whose engine its weights are."""
        model, run = tiny_llama(tie).to(dtype), None if order == "memory" else self.run_of()
        if order == "offload first":
            st.offload(model, run)
        torch.manual_seed(5)
        model = get_peft_model(model, config())
        if order == "adapters first":
            st.offload(model, run)
        return model

    def trained(self, *args, **more):
        model = self.adapted(*args, **more)
        trainable = [param for param in model.parameters() if param.requires_grad]
        optimizer = torch.optim.SGD(trainable, lr=0.5, foreach=False)
        for step in range(3):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    def assert_every_order(self, compute, *args, **more):
        """Asserts that `compute` returns the same weights from a trained model, wherever its weights are."""
        expected, *others = [compute(self.trained(order, *args, **more), order) for order in ORDERS]
        for other in others:
            self.assert_same_weights(expected, other)
        return expected

    def merged(self, model, order):
        before = loss_of(model, 9).item()
        merged = model.merge_and_unload()
        self.assertIsInstance(merged, LlamaForCausalLM)
        self.assertAlmostEqual(loss_of(merged, 9).item(), before, places=2)
        folder = self.folder / f"merged {order}"
        merged.save_pretrained(folder)
        loaded = LlamaForCausalLM.from_pretrained(folder, dtype=merged.dtype)
        self.assert_same_model(loaded, merged)
        self.assertEqual(loaded.config.tie_word_embeddings, merged.config.tie_word_embeddings)
        return {**merged.state_dict(), "tied": torch.tensor(merged.config.tie_word_embeddings)}

    def test_lora_is_merged(self):
        for dtype in (torch.float32, torch.bfloat16):
            self.assert_every_order(self.merged, lambda: LoraConfig(target_modules=["q_proj"]), dtype=dtype)

    def test_lora_of_weights_that_are_not_tied_is_merged(self):
        self.assert_every_order(self.merged, lambda: LoraConfig(target_modules=["q_proj", "down_proj"]), tie=False)

    def test_dora_and_ia3_are_merged(self):
        self.assert_every_order(self.merged, lambda: LoraConfig(target_modules=["q_proj", "v_proj"], use_dora=True))
        self.assert_every_order(self.merged, lambda: IA3Config(target_modules=["k_proj", "down_proj"],
                                                               feedforward_modules=["down_proj"]))

    def test_a_merge_is_undone(self):
        def merged_and_back(model, order):
            model.merge_adapter()
            there = {f"merged.{name}": value.clone() for name, value in model.state_dict().items()}
            model.unmerge_adapter()
            return {**there, **model.state_dict()}

        self.assert_every_order(merged_and_back, lambda: LoraConfig(target_modules=["q_proj"]))

    def test_a_safe_merge_that_fails_leaves_the_weights(self):
        for order in ORDERS:
            model = self.adapted(order, lambda: LoraConfig(target_modules=["q_proj"]))
            with torch.no_grad():
                for name, param in model.named_parameters():
                    if "lora_" in name:
                        param.fill_(float("inf"))
            with self.assertRaisesRegex(ValueError, "NaNs detected"):
                model.merge_adapter(safe_merge=True)
            for name, value in tiny_llama().named_parameters():
                if "q_proj" in name:
                    name = name.replace("q_proj.", "q_proj.base_layer.")
                self.assertTrue(torch.equal(model.base_model.model.get_parameter(name), value), name)

    def test_several_adapters_are_saved_and_merged(self):
        def two(model, order):
            torch.manual_seed(6)
            model.add_adapter("other", LoraConfig(target_modules=["v_proj"], init_lora_weights=False))
            model.save_pretrained(self.folder / order)
            saved = {f"{folder}{name}": value for folder in ("", "other/")
                     for name, value in self.weights_in(self.folder / order / folder, "adapter_model.safetensors").items()}
            again = PeftModel.from_pretrained(tiny_llama(), self.folder / order)
            again.load_adapter(self.folder / order / "other", "other")
            for each in (model, again):
                each.base_model.set_adapter(["default", "other"])
            self.assertEqual(loss_of(model).item(), loss_of(again).item())
            return {**saved, **model.merge_and_unload(adapter_names=["default", "other"]).state_dict()}

        self.assert_every_order(two, lambda: LoraConfig(target_modules=["q_proj"]))

    def saved(self, model, order):
        model.save_pretrained(self.folder / order)
        again = PeftModel.from_pretrained(tiny_llama("lm_head" not in str(model.peft_config)), self.folder / order)
        self.assertEqual(loss_of(again).item(), loss_of(model).item())
        return self.weights_in(self.folder / order, "adapter_model.safetensors")

    def test_modules_to_save_are_trained_and_saved(self):
        def config():
            return LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])

        saved = self.assert_every_order(self.saved, config, tie=False)
        self.assertIn("base_model.model.lm_head.weight", saved)
        self.assertFalse(torch.equal(saved["base_model.model.lm_head.weight"], tiny_llama(False).lm_head.weight.cpu()))
        self.assert_every_order(self.merged, config, tie=False)
        if hasattr(BaseTuner, "merge_and_unload"):  # since then PEFT tells the config that embeddings are tied no longer
            self.assertFalse(self.assert_every_order(self.merged, config)["tied"])

    def test_adapters_of_embeddings_are_trained_and_saved(self):
        def config():
            return LoraConfig(target_modules=["embed_tokens"])

        saved = self.assert_every_order(self.saved, config)
        self.assertIn("base_model.model.model.embed_tokens.base_layer.weight", saved)
        self.assert_every_order(self.merged, config, tie=False)
        self.assert_every_order(lambda model, order: model.save_pretrained(self.folder / order, safe_serialization=False)
                                or torch.load(self.folder / order / "adapter_model.bin"), config)

    def test_layers_that_share_weights_are_saved_under_every_name(self):
        results = []
        for order in ORDERS:
            model = self.adapted(order, lambda: LoraConfig(target_modules=["q_proj"], layer_replication=[(0, 1), (0, 1)]))
            merged = model.merge_and_unload()
            results.append(loss_of(merged).item())
            if order == "memory":
                with self.assertRaisesRegex(RuntimeError, "contained shared tensors"):
                    merged.save_pretrained(self.folder / order)
                continue
            merged.save_pretrained(self.folder / order)
            self.assertNotIn("lm_head.weight", self.weights_in(self.folder / order))
            loaded, info = LlamaForCausalLM.from_pretrained(self.folder / order, output_loading_info=True)
            self.assertEqual(list(info["missing_keys"]), [])
            self.assertEqual(loss_of(loaded).item(), results[0])
        self.assertEqual(results, results[:1] * 3)

    def test_only_what_is_saved_is_read(self):
        for order in ORDERS[1:]:
            model = self.adapted(order, lambda: LoraConfig(target_modules=["embed_tokens", "q_proj"]))
            names, leased = [], Home.leased

            def noted(home, access):
                names.append(home.name)
                return leased(home, access)

            with mock.patch.object(Home, "leased", noted):
                model.save_pretrained(self.folder / order)
            self.assertEqual([name for name in names if "lora_" not in name and "embed_tokens" not in name], [])
            self.assertTrue(any("embed_tokens" in name for name in names))

    def test_transformers_own_adapters_are_saved(self):
        check = mock.patch("transformers.integrations.peft.check_peft_version")  # it wants a PEFT that may not be out yet
        check.start()
        self.addCleanup(check.stop)
        saved = []
        for order in ORDERS:
            model = tiny_llama()
            if order == "offload first":
                st.offload(model, self.run_of())
            torch.manual_seed(5)
            model.add_adapter(LoraConfig(target_modules=["q_proj"]))
            if order == "adapters first":
                st.offload(model, self.run_of())
            model.save_pretrained(self.folder / order)
            saved.append(self.weights_in(self.folder / order, "adapter_model.safetensors"))
        self.assert_same_weights(saved[0], saved[1])
        self.assert_same_weights(saved[0], saved[2])


    def test_adapters_are_saved_from_the_state_dict_that_is_given(self):
        for order in ORDERS[1:]:
            model = self.adapted(order, lambda: LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]), tie=False)
            given = {name: torch.full(value.shape, 7.0) for name, value in model.state_dict().items()}
            for number, each in enumerate((given, model.state_dict(), None)):
                folder = self.folder / f"{order} {number}"
                model.save_pretrained(folder, state_dict=each)
                saved = self.weights_in(folder, "adapter_model.safetensors")
                self.assertEqual(len(saved), 3)
                self.assertEqual({value.unique().tolist() == [7.0] for value in saved.values()}, {number == 0})


class CopiesTest(HfTest):
    def test_a_copy_of_a_module_is_in_the_engine_too(self):
        run = st.open(self.store(), pinned="1MiB", device=DEVICE, report=False)
        self.addCleanup(run.close)
        model = st.offload(tiny_llama(), run)
        before = loss_of(model).item()
        model.model.norm.requires_grad_(False)
        first, second = copy.deepcopy(model), copy.deepcopy(model.model)
        self.assertIs(first.lm_head.weight, first.model.embed_tokens.weight)
        self.assertFalse(first.model.norm.weight.requires_grad)
        homes = set()
        for each in (model, first, second):
            for param in each.parameters():
                self.assertIsInstance(param, EngineTensor)
                self.assertIsInstance(param, torch.nn.Parameter)
                homes.add(param._home.name)
        self.assertEqual(len(homes), sum(len(list(each.parameters())) for each in (model, first, second)))
        optimizer = st.SGD(first.parameters(), lr=0.5, store=run)
        for step in range(2):
            loss_of(first, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        self.assert_same_model(model, tiny_llama())
        self.assertEqual(loss_of(model).item(), before)
        self.assertLess(loss_of(first).item(), before)

    def test_an_average_of_weights_is_in_the_engine_too(self):
        results = []
        for moves in (False, True):
            model = tiny_llama()
            if moves:
                st.offload(model, st.open(None, device=DEVICE, report=False))
            average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=None)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
            for step in range(3):
                loss_of(model, step).backward()
                optimizer.step()
                optimizer.zero_grad()
                average.update_parameters(model)
            results.append(average.module.state_dict())
        self.assert_same_weights(*results)

    def test_a_state_dict_says_what_to_call_instead(self):
        model = st.offload(tiny_llama(), st.open(None, device=DEVICE, report=False))
        state = model.state_dict()
        for what in (lambda: torch.save(state, self.folder / "weights.pt"), lambda: pickle.dumps(state),
                     lambda: copy.deepcopy(state), lambda: save_file(state, self.folder / "weights.safetensors"),
                     lambda: save_model(model, str(self.folder / "weights.safetensors"))):
            with self.assertRaisesRegex(spillway.FailedPrecondition, r"spillway\.torch\.save_pretrained\(model, folder\)"):
                what()
        self.assertFalse((self.folder / "weights.safetensors").exists())

    def test_a_storage_is_not_taken_for_one_of_another_tensor(self):
        weight = st.offload(tiny_llama(), st.open(None, device=DEVICE, report=False)).lm_head.weight
        for what in (weight.untyped_storage, weight.storage):
            with self.assertRaises(spillway.FailedPrecondition) as caught:
                what()
            self.assertNotIsInstance(caught.exception, NotImplementedError)


if __name__ == "__main__":
    unittest.main()
