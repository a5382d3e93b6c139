import pytest
from megatron.bridge import AutoBridge
from megatron.bridge.models.conversion.param_mapping import PARTS, fuse, hf_names, split
from megatron.core import GPTModel


def test_attention_and_gate_weights_are_fused():
    assert [name.split(".")[-2] for name in hf_names("decoder.layers.3.self_attention.linear_qkv.weight")] == [
        "q_proj",
        "k_proj",
        "v_proj",
    ]
    assert hf_names("decoder.layers.3.mlp.linear_fc2.weight") == ["model.layers.3.mlp.down_proj.weight"]


@pytest.mark.parametrize("parts", PARTS.values())
def test_fusing_undoes_splitting(parts):
    assert fuse(split(0.25, len(parts))) == 0.25


def test_a_parameter_without_mapping_is_named():
    with pytest.raises(KeyError, match="rotary"):
        hf_names("decoder.layers.0.rotary.weight")


def test_weights_survive_an_export_and_an_import(directory):
    bridge = AutoBridge({"num_hidden_layers": 2})
    exported, imported = GPTModel(2, 64), GPTModel(2, 64)
    for number, (_, parameter) in enumerate(exported.named_parameters()):
        parameter.value = number / 8
    bridge.save_hf_weights(exported, directory)
    AutoBridge.from_hf_pretrained(directory).load_hf_weights(imported, directory)
    assert [p.value for _, p in imported.named_parameters()] == [p.value for _, p in exported.named_parameters()]


def test_an_export_without_a_sibling_tensor_is_refused(directory):
    with pytest.raises(KeyError, match="visual"):
        AutoBridge({}).save_hf_weights(GPTModel(1, 64), directory, expected=["visual.weight"])
