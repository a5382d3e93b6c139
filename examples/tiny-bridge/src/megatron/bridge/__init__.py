"""A pretend Megatron-Bridge. `megatron` itself is a namespace: its other half is 3rdparty/Megatron-LM."""

from megatron.bridge.models.conversion.auto_bridge import AutoBridge

__version__ = "0.0.1"
__all__ = ["AutoBridge"]
