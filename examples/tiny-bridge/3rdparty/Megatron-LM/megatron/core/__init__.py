"""A pretend Megatron-Core: parallel sizes, a model of linear layers, and the two wrappers for data parallelism.

A parameter knows how many elements it stands for, and computes with one number. A model's output is the weighted sum
of its parameters, so that gradients are exact, freezing really stops learning, and twenty steps take no time.
"""

import logging
import math
from dataclasses import dataclass

logger = logging.getLogger(__name__)

BLOCK = {
    "linear_qkv": "self_attention",
    "linear_proj": "self_attention",
    "linear_fc1": "mlp",
    "linear_fc2": "mlp",
}
parallel_sizes = {}


def initialize_model_parallel(world_size, tensor=1, pipeline=1, context=1, expert=1, expert_tensor=1):
    """Fix the sizes for this process. Raises RuntimeError where the ranks cannot be divided so."""
    for product in (tensor * pipeline * context, expert * expert_tensor * pipeline):
        if world_size % product:
            raise RuntimeError(f"world_size ({world_size}) is not divisible by {product}")
    parallel_sizes.update(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        context_parallel_size=context,
        expert_model_parallel_size=expert,
        expert_tensor_parallel_size=expert_tensor,
        data_parallel_size=world_size // (tensor * pipeline * context),
    )


class Parameter:
    def __init__(self, value, numel):
        self.value, self.numel = value, numel
        self.requires_grad, self.grad = True, 0.0


class Linear:
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


class GPTModel:
    def __init__(self, num_layers, hidden_size):
        self.bias = 0.0
        share = 1 / math.sqrt(num_layers * len(BLOCK))
        self.modules = {
            f"decoder.layers.{layer}.{block}.{name}": Linear(hidden_size, hidden_size, share)
            for layer in range(num_layers)
            for name, block in BLOCK.items()
        }

    def named_parameters(self):
        for name, module in self.modules.items():
            for parameter_name, parameter in module.named_parameters():
                yield f"{name}.{parameter_name}", parameter

    def forward(self):
        return self.bias + sum(module.forward() for module in self.modules.values())

    def backward(self, gradient):
        for module in self.modules.values():
            module.backward(gradient)


@dataclass
class DistributedDataParallelConfig:
    grad_reduce_in_fp32: bool = True
    overlap_grad_reduce: bool = False
    use_distributed_optimizer: bool = True
    check_for_nan_in_grad: bool = True
    use_megatron_fsdp: bool = False
    data_parallel_sharding_strategy: str = "no_shard"


class DistributedDataParallel:
    """Holds gradient buckets for the parameters that are trainable when it is made, and for no others."""

    def __init__(self, config, module):
        # The same words for both wrappers, as in Megatron-Core: only the configuration tells them apart.
        logger.info(f"Setting up DistributedDataParallel with config {config}")
        self.config, self.module = config, module
        self.buckets = [parameter for _, parameter in module.named_parameters() if parameter.requires_grad]
        logger.info(f"Number of buckets for gradient all-reduce / reduce-scatter: {min(1, len(self.buckets))}")

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
