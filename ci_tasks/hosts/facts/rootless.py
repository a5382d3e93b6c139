"""The container runtimes without a daemon: apptainer, and Slurm's pyxis as far as a login node shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ci_tasks.hosts.facts.fact import Answers, Fact
from ci_tasks.model import HostSpec
from ci_tasks.report.doctor import FAULT, OK, UNKNOWN, WARNING, Finding

_TOPIC = "runtime"
_VERSION, _NAMESPACE, _HELP = "apptainer", "user namespace", "srun"
_OLDEST = (1, 1)  # the first with --no-eval, without which apptainer expands the `$` in what CI wrote


def fact(host: HostSpec) -> Fact:
    """Whether `host` can start a container with its runtime, apptainer or pyxis."""
    if host.runtime == "pyxis":
        return Fact({_HELP: ["srun", "--help"]}, lambda answers: [_pyxis(answers)])
    questions: dict[str, Sequence[str]] = {_VERSION: ["apptainer", "--version"]}
    questions[_NAMESPACE] = ["unshare", "--user", "--map-root-user", "true"]
    return Fact(questions, lambda answers: _apptainer(host, answers))


def _pyxis(answers: Answers) -> Finding:
    answer = answers[_HELP]
    if answer.absent:
        return Finding(_TOPIC, FAULT, "pyxis: no srun on PATH", "load Slurm's module in the login shell's start file")
    if answer.code != 0:
        return Finding(_TOPIC, UNKNOWN, f"pyxis: {answer.said}")
    if "--container-image" not in answer.out:
        step = "have it installed, or name another `runtime` (apptainer, none)"
        return Finding(_TOPIC, FAULT, "pyxis: srun has no --container-image", step)
    if "--container-env" not in answer.out:
        return Finding(_TOPIC, FAULT, "pyxis: older than 0.15: srun has no --container-env", "have it updated")
    return Finding(_TOPIC, OK, "pyxis: srun has its options")


def _apptainer(host: HostSpec, answers: Answers) -> list[Finding]:
    answer = answers[_VERSION]
    if answer.absent and host.kind == "slurm":
        return [Finding(_TOPIC, UNKNOWN, "apptainer: not on the login node; the others may have it")]
    if answer.absent:
        step = "install apptainer, or name another `runtime` in hosts.yaml"
        return [Finding(_TOPIC, FAULT, "apptainer: not on PATH", step)]
    version = re.search(r"(\d+)\.(\d+)\S*", answer.out)
    if answer.code != 0 or not version:
        return [
            Finding(_TOPIC, FAULT, f"apptainer: {answer.said}", "run `apptainer --version` there and see what it says")
        ]
    if (int(version[1]), int(version[2])) < _OLDEST:
        return [Finding(_TOPIC, FAULT, f"apptainer {version[0]} is too old", "update it to 1.1 or newer")]
    if host.kind != "slurm" and answers[_NAMESPACE].code != 0:
        text = f"apptainer {version[0]}, and no user namespaces: --fakeroot needs them or a line in /etc/subuid"
        return [Finding(_TOPIC, WARNING, text, "`sysctl kernel.unprivileged_userns_clone user.max_user_namespaces`")]
    return [Finding(_TOPIC, OK, f"apptainer {version[0]}")]
