"""The one door to Megatron-Bridge."""

try:
    from megatron.bridge import AutoBridge
except ImportError:
    print("Megatron-Bridge package not found. Please install Megatron-Bridge with `pip install megatron-bridge`")
    raise

__all__ = ["AutoBridge"]
