"""Whether a host has what rows need: questions put to its programs, and pure parsers of their answers."""

from __future__ import annotations

from collections.abc import Mapping

from ci_tasks.hosts.ask import Answer, LocalAsker
from ci_tasks.model import HostSpec
from ci_tasks.plan.capacity import HostFacts

PATIENCE = 20.0  # seconds; a hung driver or daemon must not hang the question
_USABLE = ("docker", "podman")


def facts(host: HostSpec, *, gpus: bool, container: bool, simulates: bool) -> HostFacts:
    """What this machine offers as `host`; asks only for what is wanted, since a cold driver takes seconds to answer."""
    answers = LocalAsker().ask(questions(host, gpus=gpus, container=container), PATIENCE)
    return parse(host, answers, simulates=simulates)


def questions(host: HostSpec, *, gpus: bool, container: bool) -> dict[str, list[str]]:
    """What to ask of `host`."""
    asked = {}
    if gpus and host.gpus is None:
        asked["gpus"] = ["nvidia-smi", "--list-gpus"]
    if container and host.runtime != "none":
        # The host's own env counts: DOCKER_HOST says which daemon is meant.
        given = ["env", *(f"{name}={value}" for name, value in host.env.items())] if host.env else []
        asked["container"] = [*given, host.runtime, "version", "--format", "{{.Server.Version}}"]
    return asked


def parse(host: HostSpec, answers: Mapping[str, Answer], *, simulates: bool) -> HostFacts:
    """The facts that the answers hold."""
    found, problem = (host.gpus, "") if host.gpus is not None else _gpus(answers.get("gpus"))
    return HostFacts(
        gpus=found,
        gpu_problem=problem,
        container_problem=_container_problem(host.runtime, answers.get("container")),
        simulates=simulates,
    )


def parse_gpu_list(text: str) -> int:
    """The number of GPUs in the output of `nvidia-smi --list-gpus` (a line `GPU 0: NVIDIA H200 (UUID: …)` each; a line
    below one for each of its MIG devices)."""
    return sum(line.startswith("GPU ") for line in text.splitlines())


def _gpus(answer: Answer | None) -> tuple[int, str]:
    if answer is None:
        return 0, ""
    if answer.absent:
        return 0, "no nvidia-smi on PATH"
    count = parse_gpu_list(answer.out) if answer.code == 0 else 0
    return count, "" if count else answer.said


def _container_problem(runtime: str, answer: Answer | None) -> str:
    """Why `runtime` cannot start a container; empty when it can, or when nobody asked."""
    if answer is None or answer.code == 0:
        return ""
    if runtime not in _USABLE:
        return f"{runtime}, which this version cannot use"
    if answer.absent and "No such file" in answer.err:
        return f"{runtime} (not on PATH)"
    return f"{runtime} ({answer.said})"
