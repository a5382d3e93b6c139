"""Low-rank adapters: the base model is frozen, and each target module gets two small trainable factors."""

import logging
from dataclasses import dataclass, field

from megatron.core import Module, Parameter

logger = logging.getLogger(__name__)

ALL = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]


@dataclass
class LoRA:
    target_modules: list = field(default_factory=lambda: list(ALL))
    dim: int = 32
    alpha: int = 32

    def __call__(self, model, training=True):
        """Put adapters into `model`. Raises ValueError where a target module is not in it."""
        present = {name.rsplit(".", 1)[-1] for name in model.layers}
        unknown = [name for name in self.target_modules if name not in present]
        if unknown:
            raise ValueError(f"LoRA target modules {unknown} are not in the model, which has {sorted(present)}")
        for _, parameter in model.named_parameters():
            parameter.requires_grad = False
        for name, module in list(model.layers.items()):
            if name.rsplit(".", 1)[-1] in self.target_modules:
                logger.info(f"Adding lora to: {name}")
                model.layers[name] = LoRALinear(module, self.dim, self.alpha / self.dim, training)
        return model


class LoRALinear(Module):
    def __init__(self, base, dim, scale, training):
        self.base, self.scale = base, scale
        self.lora_a = Parameter(base.share, dim * base.in_features)
        self.lora_b = Parameter(0.0, dim * base.out_features)
        self.lora_a.requires_grad = self.lora_b.requires_grad = training

    def named_parameters(self):
        yield from self.base.named_parameters()
        yield "adapter.lora_A", self.lora_a
        yield "adapter.lora_B", self.lora_b

    def forward(self):
        return self.base.forward() + self.scale * self.lora_a.value * self.lora_b.value

    def backward(self, gradient):
        self.base.backward(gradient)
        if self.lora_b.requires_grad:
            self.lora_a.grad += self.scale * self.lora_b.value * gradient
            self.lora_b.grad += self.scale * self.lora_a.value * gradient
