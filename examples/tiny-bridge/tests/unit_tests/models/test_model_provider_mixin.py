import pytest
from megatron.bridge.models.model_provider import GPTModelProvider
from megatron.bridge.training.config_utils import create_ddp_config
from megatron.core import DistributedDataParallel, FullyShardedDataParallel, initialize_model_parallel, parallel_sizes


@pytest.fixture(autouse=True)
def _no_parallel_state():
    parallel_sizes.clear()
    yield
    parallel_sizes.clear()


def test_hooks_run_in_order_before_the_wrapper():
    provider = GPTModelProvider()
    seen = []
    for name in ("first", "second"):
        provider.register_pre_wrap_hook(lambda model, name=name: seen.append(name) or model)
    provider.finalize()
    provider.provide_distributed_model()
    assert seen == ["first", "second"]


@pytest.mark.parametrize("fsdp, wrapper", [(False, DistributedDataParallel), (True, FullyShardedDataParallel)])
def test_the_configuration_chooses_the_wrapper(fsdp, wrapper):
    provider = GPTModelProvider(gradient_accumulation_fusion=False)
    provider.finalize()
    assert type(provider.provide_distributed_model(create_ddp_config(use_megatron_fsdp=fsdp))) is wrapper


def test_fsdp_refuses_fused_gradient_accumulation():
    provider = GPTModelProvider()
    provider.finalize()
    with pytest.raises(ValueError, match="gradient_accumulation_fusion"):
        provider.provide_distributed_model(create_ddp_config(use_megatron_fsdp=True))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"tensor_model_parallel_size": 2}, "1 in Megatron's mpu"),
        ({"num_layers": 3, "virtual_pipeline_model_parallel_size": 2}, "pipeline stages"),
        ({"num_moe_experts": None, "expert_model_parallel_size": 1, "num_attention_heads": 0.5}, "must be a multiple"),
    ],
)
def test_sizes_that_contradict_are_refused(settings, message):
    initialize_model_parallel(8)
    with pytest.raises(ValueError, match=message):
        GPTModelProvider(**settings).finalize()


def test_experts_are_needed_for_expert_parallelism():
    with pytest.raises(ValueError, match="num_moe_experts"):
        GPTModelProvider(expert_model_parallel_size=2).finalize()


def test_an_unknown_override_is_refused():
    with pytest.raises(AttributeError, match="nonsense"):
        GPTModelProvider().apply_overrides_and_finalize(nonsense=1)


def test_only_a_finalized_provider_provides():
    with pytest.raises(RuntimeError, match="finalize"):
        GPTModelProvider().provide_distributed_model()


@pytest.mark.parametrize("sizes", [{"tensor": 3}, {"pipeline": 2, "context": 8}, {"expert": 16}])
def test_ranks_must_be_divisible(sizes):
    with pytest.raises(RuntimeError, match="not divisible"):
        initialize_model_parallel(8, **sizes)
