"""What the operating system says of this process."""

import os

VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RAY_JOB_ID", "RAY_NODE_ID", "PYTEST_XDIST_WORKER"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    *("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
LOW_FD, HIGH_FD = 200, 1000  # where the open file is out of the way of a job that closes and opens its own


def start_of(pid: int) -> int:
    """When a process started, in the kernel's ticks: with the pid it is nobody else's. 0 where that is not known."""
    try:
        return int(read_bytes("/proc/%d/stat" % pid, 4096).rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def namespace() -> str:
    """Where the pids count: each container has its own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def command_line() -> "list[str]":
    try:
        words = read_bytes("/proc/self/cmdline", 1 << 14).split(b"\0")[:-1]
    except OSError:
        return []
    return [word.decode("utf-8", "backslashreplace")[:1000] for word in words[:100]]


def working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def rank_variables() -> "dict[str, str]":
    found = ((name, os.environ.get(name)) for name in VARIABLES)
    return {name: value[:500] for name, value in found if value is not None}


def read_bytes(path: str, most: int) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(file, most)
    finally:
        os.close(file)


def moved_up(file: int) -> int:
    """The same open file under a number that a job's own files do not get."""
    for low in (HIGH_FD, LOW_FD):
        for number in range(low, low + 20):
            try:
                os.fstat(number)
            except OSError:
                try:
                    os.dup2(file, number, False)
                except OSError:
                    break  # over the limit
                os.close(file)
                return number
    return file
