"""What a triage is asked and answers with: what is known of a job beside its log, and causes with their groups. The
answer itself is `records.Triage`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ci_tasks.agent.evidence import NotedException, ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import CANCELLED

NOTHING = "pass"  # the cause where nothing failed
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
    MACHINE: "disk_full gpu_busy gpu_hardware image_pull permission_docker port_in_use rocr_conflict",
    CANCELLED: CANCELLED,
}
_GROUP_OF = {cause: group for group, causes in _GROUPS.items() for cause in causes.split()}
TIMEOUT_HANG = "timeout_hang"
NOT_SAID = "no line says why; this is one of the last"


def group_of(cause: str) -> str:
    return _GROUP_OF.get(cause, UNKNOWN)


@dataclass(frozen=True)
class JobEnd:
    """How a run ended, from its status.json. `end` is None if the runner vanished before it could say. `oom_kills`
    counts what the kernel of the job's only host killed for its memory meanwhile; None if that is not known. `cut` is
    why the end says nothing of the job: docker was still pulling, or went away."""

    end: str | None
    exit_code: int | None
    error: str = ""
    timeout_minutes: float = 0
    log_error: str = ""
    oom_kills: int | None = None
    cut: str = ""


@dataclass(frozen=True)
class JobKnowledge:
    """What is known of a job beside its log and its end: what its processes noted, logs of runs of it that passed, as
    pieces of bytes, and whether a module that could not be imported would be one of the code under test: then it is the
    code that lacks it, and not an installed package in another version."""

    evidence: RunEvidence | None = None
    passed: Sequence[Iterable[bytes]] = ()
    is_own_module: Callable[[str], bool] = lambda module: False


def uncaught_exceptions(evidence: RunEvidence) -> list[tuple[ProcessEvidence, NotedException]]:
    """The exceptions that ended a program, a thread or a worker, by time."""
    found = [(process, failure) for process in evidence.processes for failure in process.exceptions if failure.chain]
    return sorted(found, key=lambda pair: pair[1].t)
