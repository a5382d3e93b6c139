"""The one door to Megatron-Bridge."""

try:
    from megatron.bridge import AutoBridge
except ImportError:
    print("Megatron-Bridge package not found. It must be on the PYTHONPATH of this worker.")
    raise

__all__ = ["AutoBridge"]
