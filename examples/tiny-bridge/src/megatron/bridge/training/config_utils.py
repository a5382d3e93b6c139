"""The wrapper's configuration, from the few words that a trainer outside says about it."""

from megatron.core import DistributedDataParallelConfig


def create_ddp_config(wrap_with_ddp=True, use_megatron_fsdp=False):
    if not wrap_with_ddp:
        return None
    if use_megatron_fsdp:
        return DistributedDataParallelConfig(
            overlap_grad_reduce=True,
            use_megatron_fsdp=True,
            data_parallel_sharding_strategy="optim_grads_params",
        )
    return DistributedDataParallelConfig()
