# SPDX-License-Identifier: Apache-2.0
"""Tests spillway.torch.from_deepspeed, which reads DeepSpeed configurations."""

import json
import unittest
import warnings

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
                  "aio": {"block_size": 1048576}, "flops_profiler": {}}
        with self.assertWarnsRegex(UserWarning, "overlap_comm.*aio.block_size.*flops_profiler"):
            settings = st.from_deepspeed(config)
        self.assertEqual(len(settings.without_counterpart), 4)
        self.assertIsNone(settings.store)

    def test_what_cannot_be_raises(self):
        for config, words in ((
                {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "no zero_optimization.offload_optimizer.nvme_path"),
                ({"zero_optimization": {"offload_param": {"device": "tape"}}}, "'tape': it must be nvme, cpu or none"),
                ({"optimizer": {"type": "OneBitAdam"}}, "'OneBitAdam': there are adamw")):
            with self.assertRaisesRegex(spillway.InvalidArgument, words):
                st.from_deepspeed(config)


if __name__ == "__main__":
    unittest.main()
