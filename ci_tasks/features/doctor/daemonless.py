"""The container runtimes without a daemon: apptainer, and Slurm's pyxis as far as a login node shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import CheckResult, fault, ok, unknown, warning
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers

_TOPIC = "runtime"
_VERSION, _NAMESPACE, _HELP = "apptainer", "user namespace", "srun"
_OLDEST = (1, 1)  # the first with --no-eval, without which apptainer expands the `$` in what CI wrote


def fact(host: HostSpec) -> HostFact:
    """Whether `host` can start a container with its runtime, apptainer or pyxis."""
    if host.runtime == "pyxis":
        return HostFact({_HELP: ["srun", "--help"]}, lambda answers: [_pyxis(answers)])
    queries: dict[str, Sequence[str]] = {_VERSION: ["apptainer", "--version"]}
    queries[_NAMESPACE] = ["unshare", "--user", "--map-root-user", "true"]
    return HostFact(queries, lambda answers: _apptainer(host, answers))


def _pyxis(answers: QueryAnswers) -> CheckResult:
    answer = answers[_HELP]
    if answer.is_missing:
        return fault(_TOPIC, "pyxis: no srun on PATH", "load Slurm's module in the login shell's start file")
    if answer.code != 0:
        return unknown(_TOPIC, f"pyxis: {answer.last_line}")
    if "--container-image" not in answer.out:
        step = "have it installed, or name another `runtime` (apptainer, none)"
        return fault(_TOPIC, "pyxis: srun has no --container-image", step)
    if "--container-env" not in answer.out:
        return fault(_TOPIC, "pyxis: older than 0.15: srun has no --container-env", "have it updated")
    return ok(_TOPIC, "pyxis: srun has its options")


def _apptainer(host: HostSpec, answers: QueryAnswers) -> list[CheckResult]:
    answer = answers[_VERSION]
    if answer.is_missing and host.kind == "slurm":
        return [unknown(_TOPIC, "apptainer: not on the login node; the others may have it")]
    if answer.is_missing:
        step = "install apptainer, or name another `runtime` in hosts.yaml"
        return [fault(_TOPIC, "apptainer: not on PATH", step)]
    version = re.search(r"(\d{1,9})\.(\d{1,9})\S*", answer.out)
    if answer.code != 0 or not version:
        return [fault(_TOPIC, f"apptainer: {answer.last_line}", "run `apptainer --version` there and read its output")]
    if (int(version[1]), int(version[2])) < _OLDEST:
        return [fault(_TOPIC, f"apptainer {version[0]} is too old", "update it to 1.1 or newer")]
    if host.kind != "slurm" and answers[_NAMESPACE].code != 0:
        text = f"apptainer {version[0]}, and no user namespaces: --fakeroot needs them or a line in /etc/subuid"
        return [warning(_TOPIC, text, "`sysctl kernel.unprivileged_userns_clone user.max_user_namespaces`")]
    return [ok(_TOPIC, f"apptainer {version[0]}")]
