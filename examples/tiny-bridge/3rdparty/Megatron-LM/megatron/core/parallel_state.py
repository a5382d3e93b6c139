"""The parallel sizes of this process."""

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


def get_tensor_model_parallel_world_size():
    return parallel_sizes["tensor_model_parallel_size"]


def get_pipeline_model_parallel_world_size():
    return parallel_sizes["pipeline_model_parallel_size"]


def get_context_parallel_world_size():
    return parallel_sizes["context_parallel_size"]


def get_expert_model_parallel_world_size():
    return parallel_sizes["expert_model_parallel_size"]


def get_data_parallel_world_size():
    return parallel_sizes["data_parallel_size"]
