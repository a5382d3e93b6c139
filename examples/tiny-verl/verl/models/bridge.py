"""The one door to Megatron-Bridge."""

try:
    import megatron.bridge
    from megatron.bridge import AutoBridge
except ImportError:
    print("Megatron-Bridge package not found. It must be on the PYTHONPATH of this worker.")
    raise

__all__ = ["AutoBridge", "bridge_path"]


def bridge_path():
    return megatron.bridge.__file__
