"""torch's flight recorder, by which a rank says which collective it has begun: in memory, and written when it is asked.

The job, its workflow and its image decide: what one of them has set stays. Only in processes that import torch.
"""

import os

_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # and their older names
_DUMP = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_ENTRIES = "2000"


def set_flight_recorder(directory: str, path: str) -> None:
    """`path` is of the file of this process. What its parent got from us would be the parent's."""
    stem = path.rpartition(".")[0] + "."
    sizes = [os.environ[name] for name in _SIZE if name in os.environ]
    if "0" in sizes or not _has_pipes(stem):
        return
    if not sizes:
        os.environ[_SIZE[0]] = _ENTRIES
    if _is_ours(os.environ.get(_PIPE), directory):
        os.environ[_PIPE] = stem
    if _is_ours(os.environ.get(_DUMP[0], os.environ.get(_DUMP[1])), directory):
        os.environ[_DUMP[0]] = stem + "fr-"


def _is_ours(value: "str | None", directory: str) -> bool:
    return value is None or value.startswith(directory + "/")


def _has_pipes(stem: str) -> bool:
    """Torch ends a job whose pipe it cannot make."""
    try:
        os.mkfifo(stem + "pipe", 0o600)
        os.unlink(stem + "pipe")
    except OSError:
        return False
    return True
