"""The container runtime of a host: whether it answers, whether it can pass GPUs in, and which images it has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.agent.nvidia_smi import QUERY_GPUS, parse_gpus
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import Answers, Check, CheckResult, fault, ok, remedy, unknown, warning
from ci_tasks.hosts.queries import fact_queries, list_value, parse_facts, parse_json_object

_REMEDIES = (
    ("no srun on PATH", "install Slurm's client there, or name a login node of the cluster in hosts.yaml"),
    ("no --container-image", "ask the cluster's administrators for pyxis, or set another `runtime` in hosts.yaml"),
    ("not on PATH", "install it, or set another `runtime` in hosts.yaml (docker, podman, apptainer, none)"),
    ("permission denied", "`sudo usermod -aG docker $USER`, then log in again"),
    ("cannot connect|daemon running", "`sudo systemctl enable --now docker`; see also DOCKER_HOST of the host's `env`"),
    ("no answer", "`sudo systemctl restart docker`; `journalctl -u docker` says why"),
)  # fmt: skip
_GPU_SET_UP = {
    "docker": "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`",
    "podman": "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
}


def containers(host: HostSpec, images: Sequence[str]) -> Check:
    """Whether a container can start, as `plan` asks it, what is missing beside, and which of CI's images are here."""
    name = host.runtime
    queries: dict[str, Sequence[str]] = {**fact_queries(host, gpus=False, container=True)}
    if name in _GPU_SET_UP:
        inspect = [name, "image", "inspect", "--format", "{{json .}}", "--"]
        queries |= {
            "info": [name, "info", "--format", "{{json .}}"],
            **{image: [*inspect, image] for image in images},
            "nvidia-ctk": ["nvidia-ctk", "--version"],
            "cdi": ["nvidia-ctk", "cdi", "list"],
            "gpus": QUERY_GPUS,
        }
    answers = yield queries
    if problem := parse_facts(host, answers, simulates=True).container_problem:
        step = remedy(problem, _REMEDIES, f"run `{name} info` there and read its output").replace("docker", name)
        return [fault(name, f"rows in containers are blocked: {problem}", step)]
    if name == "pyxis":
        is_new = "--container-env" in answers["container"].out
        return [ok(name, "srun has its options") if is_new else fault(name, "older than 0.15", "have it updated")]
    if name == "apptainer":
        return [ok(name, answers["container"].last_line)]
    info = parse_json_object(answers["info"])
    results = [_daemon(name, info)]
    if host.gpus != 0 and not host.simulate and parse_gpus(answers["gpus"].out):
        results.append(_gpus_inside(name, info, answers))
    return [*results, *(_image(host, image, answers[image]) for image in dict.fromkeys(images))]


def _daemon(name: str, info: Mapping[str, Any]) -> CheckResult:
    version = str(info.get("ServerVersion") or _part(info, "version").get("Version") or "of unknown version")
    if "name=rootless" in list_value(info, "SecurityOptions") or _part(info, "host", "security").get("rootless"):
        return warning(name, f"{version}, rootless: your own limits (`ulimit -l`) apply")
    return ok(name, version)


def _gpus_inside(name: str, info: Mapping[str, Any], answers: Answers) -> CheckResult:
    """Whether `--gpus` (docker) or `--device nvidia.com/gpu=` (podman) will work; without it the row is blocked."""
    devices = answers["cdi"].out + str(info.get("DiscoveredDevices"))
    if "nvidia.com/gpu" in devices or (name == "docker" and "nvidia" in _part(info, "Runtimes")):
        return ok("NVIDIA runtime", f"{name} can pass GPUs in")
    if answers["nvidia-ctk"].code != 0:
        step = f"install nvidia-container-toolkit; {_GPU_SET_UP[name]}"
        return fault("NVIDIA runtime", f"no NVIDIA container toolkit, so {name} finds no GPU driver", step)
    result = warning if name == "docker" else fault
    return result("NVIDIA runtime", f"installed, but not set up for {name}", _GPU_SET_UP[name])


def _image(host: HostSpec, image: str, answer: QueryAnswer) -> CheckResult:
    """Whether the host has it, with its digest, or how it will come."""
    info = parse_json_object(answer)
    if answer.code == 0 and info:
        digests = [str(digest).rpartition("@")[2] for digest in list_value(info, "RepoDigests")]
        return ok("image", f"{image}: {[*digests, 'no registry has it'][0]}")
    if not re.search(r"no such image|not known", answer.err, re.IGNORECASE):
        return unknown("image", f"{image}: {answer.last_line}")
    if host.pull == "never":
        step = f"`{host.runtime} pull {image}`, or `pull: missing` in hosts.yaml"
        return fault("image", f"{image}: missing, and `pull: never` forbids pulling it", step)
    return ok("image", f"{image}: not pulled yet, the first run pulls it")


def _part(json: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The object under `names`; docker says null for what it does not know."""
    for name in names:
        value = json.get(name)
        json = value if isinstance(value, dict) else {}
    return dict(json)
