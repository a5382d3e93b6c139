"""The words of a triage: causes and their groups, and what is known of a job beside its log. The answer itself is
`records.Triage`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence

from ci_tasks.agent.evidence import NotedException, ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, PASSED, Triage

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
    MACHINE: "disk_full gpu_busy gpu_hardware image_pull permission_docker port_in_use rocr_conflict",
    CANCELLED: CANCELLED,
}
GROUPS = (*_GROUPS, UNKNOWN)
_GROUP_OF = {cause: group for group, causes in _GROUPS.items() for cause in causes.split()}
TIMEOUT_HANG = "timeout_hang"
NOT_SAID = "no line says why; this is one of the last"

NOT_SEEN = Triage(UNKNOWN, UNKNOWN, None, "", "", 0.0)
"""Of a log whose end was not read, and that shows no failure until there."""


VERDICTS = {
    FAILED: "failed: the code under test, or its configuration",
    BLOCKED: "blocked: the environment, not the code",
    CANCELLED: "cancelled: a person or a newer run stopped it",
    PASSED: "passed: nothing failed in this log",
    UNKNOWN: "unknown: the log shows no end of the job; `triage --exit-code N` takes its exit code",
}
_MOST_TESTS, _FEW_TESTS = 10, 2  # that are named, and that a command names


def cause_sentence(triage: Triage) -> str:
    """The cause in words, and its name."""
    return f"{triage.reason} ({triage.cause})" if triage.reason else triage.cause


def tests_sentence(triage: Triage) -> str:
    """`2 tests failed: tests/a.py::x (a.py:42), …`"""
    count, shown = len(triage.tests), ", ".join(triage.tests[:_MOST_TESTS])
    return f"{count} test{'s' * (count > 1)} failed: {shown}{', …' if count > _MOST_TESTS else ''}"


def next_command(triage: Triage, source: str, takes_gpus: bool = False) -> str:
    """What to do about it; "" if nothing is known to have failed. `source` is the log's file or URL, `-` what was
    piped in. A job that `takes_gpus` needs a host. Of few tests that failed, it runs those alone."""
    option = "--url" if source.startswith("https://") else "--log"
    log = f"{'FILE' if source == '-' else shlex.quote(source)}{' --host HOST' * takes_gpus}"
    tests = [test.partition(" (")[0].partition("[")[0] for test in triage.tests if ".py::" in test]
    only = "".join(f" --test {shlex.quote(test)}" for test in tests) if len(triage.tests) <= _FEW_TESTS else ""
    first, *others = [name for names in triage.jobs for name in re.split(r", (?![^(]*\))", names)] or [""]
    job = f" --job {shlex.quote(first)}" if others else ""  # of several that failed, `reproduce` asks for one
    blocked = "start the job again; if it ran on your host, `ci-tasks doctor --host H`"
    return {FAILED: f"ci-tasks reproduce {option} {log}{job}{only}", BLOCKED: blocked}.get(triage.verdict, "")


def group_of(cause: str) -> str:
    return _GROUP_OF.get(cause, UNKNOWN)


@dataclass(frozen=True)
class JobEnd:
    """How a run ended, from its status.json. `end` is None if the runner vanished before it could say. `oom_kills`
    counts what the kernel of the job's only host killed for its memory meanwhile; None if that is not known."""

    end: str | None
    exit_code: int | None
    error: str = ""
    timeout_minutes: float = 0
    log_error: str = ""
    oom_kills: int | None = None


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
