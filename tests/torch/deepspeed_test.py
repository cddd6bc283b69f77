# SPDX-License-Identifier: Apache-2.0
"""Tests spillway.torch.from_deepspeed, which reads DeepSpeed configurations."""

import importlib
import json
import os
import re
import unittest
import warnings
from unittest import mock

import spillway
import spillway.torch as st
from torch_case import TorchTest, make_params, set_gradients


class DeepSpeedTest(TorchTest):
    def test_what_says_where_state_rests_is_followed(self):
        config = {
            "zero_optimization": {"stage": 3,
                                  "offload_optimizer": {"device": "nvme", "nvme_path": str(self.folder), "pin_memory": True},
                                  "offload_param": {"device": "nvme", "nvme_path": str(self.folder)}},
            "aio": {"queue_depth": 16},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.98], "weight_decay": "auto"}},
            "gradient_clipping": 1.0, "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": True}}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            settings = st.from_deepspeed(config)
        self.assertTrue(settings.offload_parameters)
        self.assertEqual(settings.optimizer_arguments, {"lr": 0.01, "betas": (0.9, 0.98), "weight_decay": 0.0})
        self.assertIs(st.from_deepspeed({"optimizer": {"type": "Adam"}}).optimizer, st.AdamW)
        self.assertIs(st.from_deepspeed({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}).optimizer, st.Adam)
        self.assertEqual(settings.trainers, ["gradient_clipping", "train_micro_batch_size_per_gpu", "bf16"])
        file = self.folder / "ds.json"
        file.write_text(json.dumps(config))
        self.assertEqual(st.from_deepspeed(file), settings)
        with settings.open(pinned="1MiB") as run:
            params = make_params()
            optimizer = settings.optimizer(params, store=run, **settings.optimizer_arguments)
            set_gradients(params, 1)
            optimizer.step()
            self.assertTrue((self.folder / "spillway").is_dir())

    def test_what_has_no_counterpart_is_named(self):
        config = {"zero_optimization": {"offload_optimizer": {"device": "cpu", "buffer_count": 4}, "overlap_comm": True},
                  "aio": {"block_size": 1048576}, "flops_profiler": {}, 7: 8}
        with self.assertWarnsRegex(UserWarning, "overlap_comm.*aio.block_size.*flops_profiler; 7"):
            settings = st.from_deepspeed(config)
        self.assertEqual(len(settings.without_counterpart), 5)
        self.assertIsNone(settings.store)

    def test_roles_on_two_drives_share_a_store_on_both(self):
        roles = {role: {"device": "nvme", "nvme_path": str(self.folder / drive)}
                 for role, drive in (("offload_param", "nvme1"), ("offload_optimizer", "nvme0"))}
        for config in (roles, dict(reversed(roles.items()))):  # a store's folders have an order
            settings = st.from_deepspeed({"zero_optimization": config})
            self.assertEqual(settings.store, [str(self.folder / drive / "spillway") for drive in ("nvme0", "nvme1")])
            with settings.open(pinned="16MiB", calibrate="off") as run:
                optimizer = st.AdamW(make_params(), store=run)
                set_gradients(optimizer.param_groups[0]["params"], 1)
                optimizer.step()
                self.assertEqual(optimizer.state_dict()["spillway"]["store"], settings.store)
        roles["offload_optimizer"]["device"] = "cpu"
        self.assertEqual(st.from_deepspeed({"zero_optimization": roles}).store, str(self.folder / "nvme1/spillway"))

    def test_a_stage_names_the_call_that_divides_the_model(self):
        for stage, call in ((0, "nn.parallel.DistributedDataParallel"), (1, "ZeroRedundancyOptimizer"),
                            (2, "fully_shard(model, reshard_after_forward=False)"), (3.0, "fully_shard(model)")):
            settings = st.from_deepspeed({"zero_optimization": {"stage": stage}})
            self.assertIn(call, settings.across_ranks)
            for word in re.findall(r"(torch(?:\.\w+)+\.\w+|spillway\.torch\.\w+)", settings.across_ranks):
                module, name = word.rsplit(".", 1)
                self.assertTrue(hasattr(importlib.import_module(module), name), word)
        self.assertEqual(st.from_deepspeed({}).across_ranks, "")

    def test_of_stage_3_over_ranks_weights_that_are_offloaded_rest_in_memory(self):
        def zero(device, stage=3):
            return {"zero_optimization": {"stage": stage, "offload_param": {"device": device, "nvme_path": "/mnt/nvme"}}}

        offloaded = "fully_shard(model, offload_policy=torch.distributed.fsdp.CPUOffloadPolicy())"
        with mock.patch.dict(os.environ, WORLD_SIZE="2"), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for device, store, named in (("cpu", None, 0), ("nvme", "/mnt/nvme/spillway-{rank}", 1)):
                settings = st.from_deepspeed(zero(device))
                self.assertTrue(settings.across_ranks.endswith(offloaded), settings)
                self.assertFalse(settings.offload_parameters)  # offload() of a sharded model raises
                self.assertEqual((settings.store, len(settings.without_counterpart)), (store, named))
            for config in (zero("none"), zero("cpu", 2)):
                self.assertNotIn("CPUOffloadPolicy", st.from_deepspeed(config).across_ranks)
        self.assertIn("offload_param.device=nvme: the weights of a model that is sharded over ranks rest in the host's memory",
                      str(seen[0].message))
        with mock.patch.dict(os.environ, WORLD_SIZE="1"):
            settings = st.from_deepspeed(zero("nvme"))
        self.assertTrue(settings.across_ranks.endswith("fully_shard(model)"))
        self.assertTrue(settings.offload_parameters)

    def test_of_several_ranks_each_has_a_store(self):
        config = {"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/mnt/nvme"}}}
        with mock.patch.dict(os.environ, WORLD_SIZE="2"):
            self.assertEqual(st.from_deepspeed(config).store, "/mnt/nvme/spillway-{rank}")
        with mock.patch.dict(os.environ, WORLD_SIZE="1"):
            self.assertEqual(st.from_deepspeed(config).store, "/mnt/nvme/spillway")

    def test_what_cannot_be_raises(self):
        def offload(value):
            return {"zero_optimization": {"offload_optimizer": value}}

        def params(kind, **values):
            return {"optimizer": {"type": kind, "params": values}}

        for config, words in (
                (offload({"device": "nvme"}), "no zero_optimization.offload_optimizer.nvme_path"),
                ({"zero_optimization": {"offload_param": {"device": "tape"}}}, "'tape': it must be nvme, cpu or none"),
                ({"optimizer": {"type": "OneBitAdam"}}, "'OneBitAdam': there are adamw"),
                ({"optimizer": {}}, "optimizer.type is None: there are adamw"),
                ([1], r"the DeepSpeed configuration is \[1\]: it must be a JSON object"),
                (None, "the DeepSpeed configuration is None: it must be a JSON object"),
                (5, "the DeepSpeed configuration is 5: it must be a JSON object"),
                ({"zero_optimization": True}, "zero_optimization is True: it must be a JSON object"),
                ({"zero_optimization": {"stage": True}}, "zero_optimization.stage is True: it must be 0, 1, 2 or 3"),
                ({"zero_optimization": {"stage": 2.5}}, "zero_optimization.stage is 2.5: it must be 0, 1, 2 or 3"),
                ({"zero_optimization": {"stage": "three"}}, "zero_optimization.stage is 'three': it must be 0, 1, 2 or 3"),
                (offload("nvme"), "zero_optimization.offload_optimizer is 'nvme': it must be a JSON object"),
                (offload({"device": []}), r"offload_optimizer.device is \[\]: it must be nvme, cpu or none"),
                (offload({"device": "nvme", "nvme_path": 5}), "offload_optimizer.nvme_path is 5: it must be the path of a folder"),
                (offload({"pin_memory": "yes"}), "offload_optimizer.pin_memory is 'yes': it must be true or false"),
                ({"aio": 3}, "aio is 3: it must be a JSON object"),
                ({"aio": {"queue_depth": -3}}, 'aio.queue_depth is -3: it must be an integer from 1 on, or "auto"'),
                ({"aio": {"queue_depth": "8"}}, "aio.queue_depth is '8': it must be an integer"),
                ({"aio": {"queue_depth": 8.0}}, "aio.queue_depth is 8.0: it must be an integer"),
                ({"aio": {"queue_depth": True}}, "aio.queue_depth is True: it must be an integer"),
                ({"optimizer": "Adam"}, "optimizer is 'Adam': it must be a JSON object"),
                ({"optimizer": {"type": "Adam", "params": []}}, r"optimizer.params is \[\]: it must be a JSON object"),
                (params("Adam", lr="1e-3"), "optimizer.params.lr is '1e-3': it must be a number"),
                (params("Adam", eps=True), "optimizer.params.eps is True: it must be a number"),
                (params("Adam", betas=[0.9]), r"optimizer.params.betas is \[0.9\]: it must be two numbers"),
                (params("Adam", betas=0.9), "optimizer.params.betas is 0.9: it must be two numbers"),
                (params("Adam", adam_w_mode="no"), "optimizer.params.adam_w_mode is 'no': it must be true or false")):
            with self.subTest(config), self.assertRaisesRegex(spillway.InvalidArgument, words):
                st.from_deepspeed(config)
        file = self.folder / "ds.json"
        for text in ("{", '{"aio": {"queue_depth": 0}}', "[]", "null"):
            file.write_text(text)
            with self.subTest(text), self.assertRaises(spillway.InvalidArgument):
                st.from_deepspeed(file)

    def test_null_and_auto_are_as_if_they_were_not_there(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for config in ({"zero_optimization": None}, {"zero_optimization": {"offload_optimizer": None, "offload_param": None}},
                           {"aio": None}, {"aio": {"queue_depth": "auto"}}, {"aio": {"queue_depth": None}}, {"optimizer": None}):
                self.assertEqual(st.from_deepspeed(config), st.from_deepspeed({}), config)
            self.assertEqual(st.from_deepspeed({"optimizer": {"type": "Adam", "params": None}}),
                             st.from_deepspeed({"optimizer": {"type": "Adam", "params": {"lr": "auto", "betas": None}}}))
        with st.from_deepspeed({"aio": {"queue_depth": "auto"}}).open(pinned="1MiB"):
            pass

    def test_each_rule_has_parameters_of_its_own(self):
        given = {"lr": 0.01, "betas": [0.9, 0.98], "eps": 1e-6, "weight_decay": 0.1, "momentum": 0.5}
        for kind, rule, missing in (
                ("AdamW", st.AdamW, ["momentum"]), ("Adam", st.AdamW, ["momentum"]), ("Lamb", st.LAMB, ["momentum"]),
                ("Lion", st.Lion, ["eps", "momentum"]), ("SGD", st.SGD, ["betas", "eps"])):
            with self.assertWarns(UserWarning):
                settings = st.from_deepspeed({"optimizer": {"type": kind, "params": given}})
            self.assertIs(settings.optimizer, rule)
            self.assertEqual([each for each in settings.without_counterpart if "coeff" not in each],
                             [f"optimizer.params.{word}" for word in missing])
            rule(make_params(), **settings.optimizer_arguments)

    def test_variants_of_rules_are_taken(self):
        for kind, params in (("Adam", {"amsgrad": True, "fused": True}), ("AdamW", {"amsgrad": True, "maximize": True}),
                             ("SGD", {"momentum": 0.9, "nesterov": True}), ("SGD", {"momentum": 0.9, "dampening": 0.5})):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                settings = st.from_deepspeed({"optimizer": {"type": kind, "params": params}})
            group = settings.optimizer(make_params(), **settings.optimizer_arguments).param_groups[0]
            self.assertEqual({word: group[word] for word in params}, params)
        with self.assertRaisesRegex(spillway.InvalidArgument, "optimizer.params.amsgrad is 1: it must be true or false"):
            st.from_deepspeed({"optimizer": {"type": "Adam", "params": {"amsgrad": 1}}})

    def test_defaults_are_those_of_deepspeed(self):
        for kind, lr, betas, eps in (("AdamW", 1e-3, (0.9, 0.999), 1e-8), ("Adam", 1e-3, (0.9, 0.999), 1e-8),
                                     ("Lion", 1e-3, (0.9, 0.999), None), ("Lamb", 1e-3, (0.9, 0.999), 1e-8)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                settings = st.from_deepspeed({"optimizer": {"type": kind}})
            group = settings.optimizer(make_params(), **settings.optimizer_arguments).param_groups[0]
            found = [group.get(word) for word in ("lr", "betas", "eps", "weight_decay")]
            self.assertEqual(found, [lr, betas, eps, 0], kind)

    def test_lamb_is_told_to_have_no_limits_of_its_ratio(self):
        for params, limits in (({}, "0.01 to 10.0"), ({"max_coeff": 0.3, "min_coeff": "auto"}, "0.01 to 0.3")):
            with self.assertWarnsRegex(UserWarning, "min_coeff and max_coeff.*" + limits):
                settings = st.from_deepspeed({"optimizer": {"type": "Lamb", "params": params}})
            self.assertEqual(len(settings.without_counterpart), 1)


if __name__ == "__main__":
    unittest.main()
