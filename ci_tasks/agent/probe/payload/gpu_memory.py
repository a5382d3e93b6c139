"""What torch says of its own use of GPUs."""

import sys

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any


def gpu_memory() -> "list[dict[str, Any]]":
    """Torch's own peaks since they were last reset, of devices that were used. Imports and initializes nothing."""
    cuda = sys.modules.get("torch.cuda")
    found: "list[dict[str, Any]]" = []
    try:
        if cuda is None or not cuda.is_initialized():
            return []
        for device in range(cuda.device_count()):
            reserved = int(cuda.max_memory_reserved(device))
            if reserved > 0:
                allocated = int(cuda.max_memory_allocated(device))
                values: "dict[str, Any]" = {"device": device, "allocated": allocated, "reserved": reserved}
                uuid = str(getattr(cuda.get_device_properties(device), "uuid", ""))
                values["uuid"] = "GPU-" + uuid if uuid and "-" not in uuid[:4] else uuid  # as nvidia-smi has it
                found.append(values)
    except Exception:
        pass
    return found
