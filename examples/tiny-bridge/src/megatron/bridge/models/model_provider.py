"""Providers: a configuration that is finalized once, checked against Megatron's parallel state, and makes models."""

from dataclasses import dataclass, field, fields

from megatron.core import DistributedDataParallel, FullyShardedDataParallel, GPTModel, parallel_sizes


class ModelProviderMixin:
    """What every provider can do, whatever it provides."""

    def register_pre_wrap_hook(self, hook):
        """`hook(model)` returns a model; hooks run in order, after the model is made and before it is wrapped."""
        self.pre_wrap_hooks.append(hook)

    def provide_distributed_model(self, ddp_config=None):
        """The model after all hooks, in the wrapper that `ddp_config` asks for, or bare where there is none."""
        if not self.finalized:
            raise RuntimeError("finalize the provider before it provides a model")
        model = self.provide()
        for hook in self.pre_wrap_hooks:
            model = hook(model)
        print(f" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): {count(model)}")
        if ddp_config is None:
            return model
        if ddp_config.use_megatron_fsdp:
            if self.gradient_accumulation_fusion:
                raise ValueError("gradient_accumulation_fusion must be False with Megatron-FSDP")
            return FullyShardedDataParallel(ddp_config, model)
        return DistributedDataParallel(ddp_config, model)


@dataclass
class GPTModelProvider(ModelProviderMixin):
    num_layers: int = 4
    hidden_size: int = 64
    num_attention_heads: int = 8
    num_moe_experts: int | None = None
    load_weights: bool = True
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    gradient_accumulation_fusion: bool = True
    moe_enable_routing_replay: bool = False
    pre_wrap_hooks: list = field(default_factory=list, repr=False)
    finalized: bool = field(default=False, repr=False)

    def apply_overrides_and_finalize(self, **overrides):
        known = {item.name for item in fields(self)}
        for name, value in overrides.items():
            if name not in known:
                raise AttributeError(f"{type(self).__name__} has no setting {name}")
            setattr(self, name, value)
        self.finalize()

    def finalize(self):
        """Raises ValueError where sizes contradict each other or what Megatron was initialized with."""
        for name, initialized in parallel_sizes.items():
            if getattr(self, name, initialized) != initialized:
                raise ValueError(f"{name} is {getattr(self, name)} in the provider and {initialized} in Megatron's mpu")
        if self.num_attention_heads % self.tensor_model_parallel_size:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"tensor_model_parallel_size ({self.tensor_model_parallel_size})"
            )
        stages = self.pipeline_model_parallel_size * (self.virtual_pipeline_model_parallel_size or 1)
        if self.num_layers % stages:
            raise ValueError(f"num_layers ({self.num_layers}) must be a multiple of the {stages} pipeline stages")
        if self.expert_model_parallel_size > 1 and self.num_moe_experts is None:
            raise ValueError("num_moe_experts must be set for expert parallelism")
        self.finalized = True

    def provide(self):
        return GPTModel(self.num_layers, self.hidden_size)


def count(model):
    return sum(parameter.numel() for _, parameter in model.named_parameters())
