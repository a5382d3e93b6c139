import json

import pytest
from megatron.bridge import AutoBridge
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.peft.utils import create_peft_hook, is_adapter
from megatron.bridge.training.config_utils import create_ddp_config


@pytest.fixture
def provider(directory):
    (directory / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "hidden_act": "silu"}))
    provider = AutoBridge.from_hf_pretrained(directory).to_megatron_provider(load_weights=False)
    provider.finalize()
    return provider


@pytest.mark.parametrize("rank", [0, 4])
def test_gradient_descent_moves_the_output(provider, rank):
    if rank:
        provider.register_pre_wrap_hook(create_peft_hook(LoRA(dim=rank, alpha=rank)))
    model = provider.provide_distributed_model(create_ddp_config())
    assert model.module.forward() == 0.0
    assert model.step(gradient=-1.0, learning_rate=0.1) > 0
    assert model.module.forward() == pytest.approx(0.1)


def test_only_adapters_are_trainable_with_lora(provider):
    provider.register_pre_wrap_hook(create_peft_hook(LoRA(dim=4, alpha=4)))
    model = provider.provide_distributed_model(create_ddp_config())
    assert {is_adapter(name) for name, p in model.module.named_parameters() if p.requires_grad} == {True}


def test_an_unknown_target_module_is_named(provider):
    provider.register_pre_wrap_hook(create_peft_hook(LoRA(target_modules=["linear_nope"])))
    with pytest.raises(ValueError, match="linear_nope"):
        provider.provide_distributed_model()


def test_a_missing_checkpoint_is_named(directory):
    with pytest.raises(OSError, match="config.json"):
        AutoBridge.from_hf_pretrained(directory / "none")
