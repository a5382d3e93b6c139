"""The words of a triage: causes and their groups, and what is known of a job beside its log. The answer itself is
`records.Triage`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ci_tasks import registry
from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs import own_modules
from ci_tasks.logs.own_modules import IsOwnModule
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


@dataclass(frozen=True)
class JobEnd:
    """How a run ended, from its status.json. `end` is None where the runner vanished before it could say. `oom_kills`
    counts what the kernel of the job's only host killed for its memory meanwhile; None where that is not known."""

    end: str | None
    exit_code: int | None
    error: str = ""
    timeout_minutes: float = 0
    log_error: str = ""
    oom_kills: int | None = None


@dataclass(frozen=True)
class JobKnowledge:
    """What is known of a job beside its log and its end: what its processes noted, logs of runs of it that passed, as
    pieces of bytes, and which modules the code under test would have."""

    evidence: RunEvidence | None = None
    passed: Sequence[Iterable[bytes]] = ()
    is_own_module: IsOwnModule = own_modules.none


FailureAnalysis = Callable[[Iterable[bytes], JobEnd, JobKnowledge], Triage]
"""Why a job failed: its log's bytes, cut anywhere, how it ended, and what else is known."""


def analyse(log: Iterable[bytes], ended: JobEnd, known: JobKnowledge = JobKnowledge()) -> Triage | None:
    """Why a job failed, as far as its log says; None where no feature analyses failures."""
    failure_analysis: FailureAnalysis | None = registry.hook("failure_analysis")
    return failure_analysis(log, ended, known) if failure_analysis else None
