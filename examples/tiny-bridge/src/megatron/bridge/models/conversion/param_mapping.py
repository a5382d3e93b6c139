"""Which Hugging Face tensors make up a Megatron parameter: attention and gate weights are fused."""

import re

PARTS = {
    "self_attention.linear_qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention.linear_proj": ["self_attn.o_proj"],
    "mlp.linear_fc1": ["mlp.gate_proj", "mlp.up_proj"],
    "mlp.linear_fc2": ["mlp.down_proj"],
}


def hf_names(megatron_name):
    """The Hugging Face tensors of `megatron_name`, in the order in which they are fused. Raises KeyError."""
    found = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)\.weight", megatron_name)
    if not found or found[2] not in PARTS:
        raise KeyError(f"no mapping for {megatron_name}")
    return [f"model.layers.{found[1]}.{part}.weight" for part in PARTS[found[2]]]


def fuse(parts):
    return sum(parts) / len(parts)


def split(value, count):
    return [value] * count
