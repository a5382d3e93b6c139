"""The older bridge of verl's own ("vanilla"): no provider, no LoRA, nothing of megatron.bridge."""

import json
from pathlib import Path

from megatron.core import DistributedDataParallel, DistributedDataParallelConfig, GPTModel


class AutoBridge:
    def __init__(self, config):
        self.config = config

    @classmethod
    def from_config(cls, path):
        return cls(json.loads(Path(path, "config.json").read_text()))

    def get_model(self, wrap_with_ddp):
        model = GPTModel(self.config.get("num_hidden_layers", 4), self.config.get("hidden_size", 64))
        return DistributedDataParallel(DistributedDataParallelConfig(), model) if wrap_with_ddp else model

    def save_hf_weights(self, model, path, expected=()):
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(self.config))
