"""The words of a triage: causes, and their groups. The answer itself is `records.Triage`."""

from ci_tasks.records import CANCELLED, FAILED, Triage

NOTHING = "pass"
"""The cause where nothing failed."""

UNKNOWN = "unknown"
CODE, MACHINE, DEPENDENCY, NETWORK = "code", "machine", "dependency", "network"
_GROUPS = {
    CODE: "argument_error checkpoint_missing_keys config_hydra cuda_graph_capture file_not_found jit_compile numeric "
    "reward_fn segfault_illegal_access sglang_engine_crash shape_mismatch test_assertion tokenizer_chat_template "
    "vllm_engine_crash weight_sync",
    "gpu_memory": "cuda_oom",
    "host_memory": "host_oom_killed shm_too_small",
    "hang": "lock_timeout timeout_hang",
    "communication": "nccl_error ray_cluster",
    DEPENDENCY: "dependency_version_mismatch import_error",
    NETWORK: "hf_download network_ssh",
    MACHINE: "disk_full gpu_busy gpu_hardware permission_docker port_in_use rocr_conflict",
    CANCELLED: CANCELLED,
}
GROUPS = (*_GROUPS, UNKNOWN)
_GROUP_OF = {cause: group for group, causes in _GROUPS.items() for cause in causes.split()}
TIMEOUT_HANG = "timeout_hang"

NOT_SEEN = Triage(UNKNOWN, UNKNOWN, None, "", "", 0.0)
"""Of a log whose end was not read, and that shows no failure until there."""

NOT_ANALYSED = Triage(UNKNOWN, FAILED, None, "", "", 0.0)
"""Of a log at which nobody looked."""


def group_of(cause: str) -> str:
    return _GROUP_OF.get(cause, UNKNOWN)
