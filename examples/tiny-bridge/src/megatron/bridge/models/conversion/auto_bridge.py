"""From a Hugging Face checkpoint to a Megatron model provider, and back."""

import json
import os
import warnings

from megatron.bridge.models.conversion.param_mapping import fuse, hf_names, split
from megatron.bridge.models.model_provider import GPTModelProvider

WEIGHTS = "weights.json"


class AutoBridge:
    def __init__(self, config):
        self.config = config

    @classmethod
    def from_hf_pretrained(cls, path):
        """Raises OSError where `path` is no directory with a config.json."""
        try:
            with open(os.path.join(path, "config.json")) as file:
                return cls(json.load(file))
        except FileNotFoundError:
            raise OSError(f"{path} does not appear to have a file named config.json") from None

    def to_megatron_provider(self, load_weights=True):
        if "hidden_act" not in self.config:
            warnings.warn("config.json names no hidden_act: assuming silu", stacklevel=1)
        return GPTModelProvider(
            num_layers=self.config.get("num_hidden_layers", 4),
            hidden_size=self.config.get("hidden_size", 64),
            num_attention_heads=self.config.get("num_attention_heads", 8),
            num_moe_experts=self.config.get("num_experts"),
            load_weights=load_weights,
        )

    def load_hf_weights(self, model, path):
        """Where the checkpoint has no weights, the model keeps its own: a configuration is enough for a try."""
        if not os.path.exists(os.path.join(path, WEIGHTS)):
            return
        with open(os.path.join(path, WEIGHTS)) as file:
            weights = json.load(file)
        for name, parameter in base_parameters(model):
            parameter.value = fuse([weights[part] for part in hf_names(name)])

    def save_hf_weights(self, model, path, expected=()):
        """Write `model` in Hugging Face's names. Raises KeyError where a tensor in `expected` was not made."""
        weights = {}
        for name, parameter in base_parameters(model):
            parts = hf_names(name)
            weights.update(zip(parts, split(parameter.value, len(parts)), strict=True))
        missing = sorted(set(expected) - set(weights))
        if missing:
            raise KeyError(f"tensors of the original checkpoint are missing in the export: {missing}")
        os.makedirs(path, exist_ok=True)
        for name, content in (("config.json", self.config), (WEIGHTS, weights)):
            with open(os.path.join(path, name), "w") as file:
                json.dump(content, file)


def base_parameters(model):
    return [(name, parameter) for name, parameter in model.named_parameters() if name.endswith(".weight")]
