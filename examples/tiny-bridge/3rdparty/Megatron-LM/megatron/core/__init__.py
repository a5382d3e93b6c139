"""A pretend Megatron-Core: parallel sizes, a model of linear layers, and the two wrappers for data parallelism.

A parameter knows how many elements it stands for, and computes with one number. A model's output is the weighted sum
of its parameters, so that gradients are exact, freezing really stops learning, and twenty steps take no time.
"""

import logging
import math
from dataclasses import dataclass

from megatron.core.parallel_state import initialize_model_parallel, parallel_sizes  # noqa: F401

logger = logging.getLogger(__name__)

BLOCK = {
    "linear_qkv": "self_attention",
    "linear_proj": "self_attention",
    "linear_fc1": "mlp",
    "linear_fc2": "mlp",
}


class Parameter:
    dtype = "torch.float32"

    def __init__(self, value, numel):
        self.value, self._numel = value, numel
        self.requires_grad, self.grad = True, 0.0

    def numel(self):
        return self._numel


class Module:
    """What all models can be asked, as torch's can."""

    def parameters(self):
        return [parameter for _, parameter in self.named_parameters()]

    def modules(self):
        return [self]


class Linear(Module):
    def __init__(self, in_features, out_features, share):
        self.in_features, self.out_features, self.share = in_features, out_features, share
        self.weight = Parameter(0.0, in_features * out_features)

    def named_parameters(self):
        yield "weight", self.weight

    def forward(self):
        return self.share * self.weight.value

    def backward(self, gradient):
        if self.weight.requires_grad:
            self.weight.grad += self.share * gradient


class GPTModel(Module):
    def __init__(self, num_layers, hidden_size):
        self.bias = 0.0
        share = 1 / math.sqrt(num_layers * len(BLOCK))
        self.layers = {
            f"decoder.layers.{layer}.{block}.{name}": Linear(hidden_size, hidden_size, share)
            for layer in range(num_layers)
            for name, block in BLOCK.items()
        }

    def named_parameters(self):
        for name, module in self.layers.items():
            for parameter_name, parameter in module.named_parameters():
                yield f"{name}.{parameter_name}", parameter

    def modules(self):
        return [self, *self.layers.values()]

    def forward(self):
        return self.bias + sum(module.forward() for module in self.layers.values())

    def backward(self, gradient):
        for module in self.layers.values():
            module.backward(gradient)


@dataclass
class DistributedDataParallelConfig:
    grad_reduce_in_fp32: bool = True
    overlap_grad_reduce: bool = False
    use_distributed_optimizer: bool = True
    check_for_nan_in_grad: bool = True
    use_megatron_fsdp: bool = False
    data_parallel_sharding_strategy: str = "no_shard"


class DistributedDataParallel(Module):
    """Holds gradient buckets for the parameters that are trainable when it is made, and for no others."""

    def __init__(self, config, module):
        # The same words for both wrappers, as in Megatron-Core: only the configuration tells them apart.
        logger.info(f"Setting up DistributedDataParallel with config {config}")
        self.config, self.module = config, module
        self.buckets = [parameter for _, parameter in module.named_parameters() if parameter.requires_grad]
        logger.info(f"Number of buckets for gradient all-reduce / reduce-scatter: {min(1, len(self.buckets))}")

    def named_parameters(self):
        return self.module.named_parameters()

    def modules(self):
        return [self, *self.module.modules()]

    def step(self, gradient, learning_rate):
        """Descend along `gradient` of the output, and return the norm of the parameters' gradients."""
        for parameter in self.buckets:
            parameter.grad = 0.0
        self.module.backward(gradient)
        for parameter in self.buckets:
            parameter.value -= learning_rate * parameter.grad
        return math.sqrt(sum(parameter.grad**2 for parameter in self.buckets))


class FullyShardedDataParallel(DistributedDataParallel):
    """Shards what DistributedDataParallel copies; with one number per parameter there is nothing to shard."""
