"""The container runtime of a host: whether it answers, whether it can pass GPUs in, and which images it has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.facts import disks, rootless
from ci_tasks.hosts.facts.fact import Answers, Fact, gb, listed, loaded, part
from ci_tasks.hosts.facts.gpus import found as found_gpus
from ci_tasks.hosts.facts.gpus import wanted as gpus_wanted
from ci_tasks.model import HostSpec
from ci_tasks.report.doctor import FAULT, OK, UNKNOWN, WARNING, Finding

RUNTIMES = ("docker", "podman")
INFO, TOOLKIT, CDI, SOCKET, USER = "runtime", "nvidia-ctk", "cdi", "socket", "user"
_SOCKET = "/var/run/docker.sock"
# What chooses the daemon; hosts.yaml's `env` counts here as it does for the job.
_CHOOSING = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "CONTAINER_HOST")
_CONTAINERD = "io.containerd.snapshotter.v1"
_CONTAINERD_ROOT = "/var/lib/containerd"


def facts(host: HostSpec, images: Sequence[str]) -> list[Fact]:
    if host.runtime == "none":
        return []
    if host.runtime not in RUNTIMES:
        return [rootless.fact(host)]
    name = host.runtime
    questions: dict[str, Sequence[str]] = {INFO: _command(host, "info", "--format", "{{json .}}"), USER: ["id"]}
    questions[SOCKET] = ["stat", "-L", "-c", "%U %G %a", _socket(host)]
    said = [Fact(questions, lambda answers: [_reachable(host, answers)])]
    if gpus_wanted(host):
        asked = {TOOLKIT: ["nvidia-ctk", "--version"], CDI: ["nvidia-ctk", "cdi", "list"]}
        said.append(Fact({INFO: questions[INFO], **asked}, lambda answers: _gpus_pass(name, answers)))
    return said + [_image(host, image) for image in dict.fromkeys(images)]


def more(host: HostSpec, images: Sequence[str], answers: Answers) -> list[Fact]:
    """The image store's disk: only the runtime knows where it is."""
    info = answers.get(INFO)
    path = _store(host, loaded(info)) if info is not None and info.code == 0 else ""
    if not path:
        return []
    here = all(answers[_question(image)].code == 0 for image in images)
    return [disks.store(host.runtime, path, disks.CONTAINERS if here else disks.PULL)]


def _reachable(host: HostSpec, answers: Answers) -> Finding:
    name, answer = host.runtime, answers[INFO]
    found = loaded(answer)
    problem = _problem(answer, found)
    if problem:
        return _unreachable(host, problem, answers)
    version = found.get("ServerVersion") or part(found, "version").get("Version") or "of unknown version"
    rootless = "name=rootless" in listed(found, "SecurityOptions") or part(found, "host", "security").get("rootless")
    if not rootless:
        return Finding(name, OK, f"{version}")
    text = f"{version}, rootless: your own limits (`ulimit -l`) apply, and files of containers belong to you"
    step = "for GPUs, once: sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place"
    return Finding(name, WARNING, text, step if name == "docker" else "")


def _problem(answer: Answer, found: Mapping[str, Any]) -> str:
    """`docker info` of some versions ends with 0 and says among its answer that it reached no daemon."""
    errors = [str(error) for error in listed(found, "ServerErrors")]
    if errors:
        return errors[0]
    return "" if answer.code == 0 and found else answer.said


def _unreachable(host: HostSpec, problem: str, answers: Answers) -> Finding:
    name, answer = host.runtime, answers[INFO]
    if answer.absent:
        step = f"install {name}, or name another `runtime` in hosts.yaml (docker, podman, apptainer, none)"
        return Finding(name, FAULT, "not on PATH", step)
    if answer.timed_out:
        return Finding(name, FAULT, problem, f"`sudo systemctl restart {name}`; `journalctl -u {name}` says why")
    if "permission denied" in problem.lower():
        return _denied(host, answers)
    if "cannot connect" in problem.lower() or "is the docker daemon running" in problem.lower():
        chosen = (
            f"; hosts.yaml sets DOCKER_HOST={_public(host.env['DOCKER_HOST'])}" if "DOCKER_HOST" in host.env else ""
        )
        return Finding(name, FAULT, problem, f"`sudo systemctl enable --now {name}`{chosen}")
    return Finding(name, FAULT, problem, f"run `{name} info` there and see what it says")


def _denied(host: HostSpec, answers: Answers) -> Finding:
    """The socket says which group may; a session that began before the person joined it does not know yet."""
    path = _socket(host)
    socket = re.fullmatch(r"(\S+) (\S+) (\d+)\s*", answers[SOCKET].out)
    user = re.search(r"uid=\d+\(([^)]*)\)", answers[USER].out)
    who = user[1] if user else "$USER"
    if not socket or socket[2] == "root":
        step = (
            f"have an administrator open it to a group (`sudo groupadd docker`) and add {who}; or use rootless docker"
        )
        return Finding(host.runtime, FAULT, f"{who} may not use {path}", step)
    owner, group, mode = socket.groups()
    text = f"{who} may not use {path} ({owner}:{group} {mode})"
    if f"({group})" in answers[USER].out:
        return Finding(host.runtime, FAULT, text, f"{who} is in {group} already: `sudo chmod g+rw {path}`")
    step = f"sudo usermod -aG {group} {who}, then log in anew: a session keeps the groups that it began with"
    return Finding(host.runtime, FAULT, text, step)


def _gpus_pass(name: str, answers: Answers) -> list[Finding]:
    """Whether `--gpus` (docker) or `--device nvidia.com/gpu=` (podman) will work; without it the row is blocked."""
    info = loaded(answers[INFO])
    if not found_gpus(answers) or _problem(answers[INFO], info):
        return []
    toolkit = re.search(r"version (\S+)", answers[TOOLKIT].out) if answers[TOOLKIT].code == 0 else None
    version = f", toolkit {toolkit[1]}" if toolkit else ""
    devices = "nvidia.com/gpu" in answers[CDI].out or "nvidia.com/gpu" in str(info.get("DiscoveredDevices"))
    topic = "NVIDIA runtime"
    if name == "docker" and any("nvidia" in runtime for runtime in part(info, "Runtimes")):
        return [Finding(topic, OK, f"registered with docker{version}")]
    if devices:
        return [Finding(topic, OK, f"GPUs are CDI devices{version}")]
    if not toolkit:
        lacking = 'docker will say: could not select device driver ""' if name == "docker" else "podman finds no GPU"
        return [Finding(topic, FAULT, f"no toolkit: {lacking}", f"install nvidia-container-toolkit; {_setup(name)}")]
    if name == "docker":
        return [Finding(topic, WARNING, f"installed, but not registered with docker{version}", _setup(name))]
    return [Finding(topic, FAULT, f"no CDI device nvidia.com/gpu{version}", _setup(name))]


def _setup(name: str) -> str:
    if name == "podman":
        return "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
    return "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`"


def _image(host: HostSpec, image: str) -> Fact:
    name = _question(image)

    def read(answers: Answers) -> list[Finding]:
        if answers[INFO].code != 0:
            return []  # the runtime's own line says why
        answer = answers[name]
        found = loaded(answer)
        if answer.code == 0 and found:
            return [Finding("image", OK, f"{image}: {_identity(found)}{_refreshed(host)}")]
        if re.search(r"no such image|not known", answer.err, re.IGNORECASE):
            return [_absent(host, image)]
        return [Finding("image", UNKNOWN, f"{image}: {answer.said}")]

    return Fact({name: _command(host, "image", "inspect", "--format", "{{json .}}", "--", image)}, read)


def _identity(found: Mapping[str, Any]) -> str:
    """The digest by which a registry knows the image; one that was built here has none."""
    digests = [str(name).rpartition("@")[2] for name in listed(found, "RepoDigests")]
    size = found.get("Size")
    shown = digests[0] if digests else f"{found.get('Id')}, which no registry has"
    return shown + (f", {gb(size)}" if isinstance(size, int | float) else "")


def _refreshed(host: HostSpec) -> str:
    return {"always": "; pulled anew at every run", "never": "", "missing": ""}.get(
        host.pull or "", "; CI's own pull policy"
    )


def _absent(host: HostSpec, image: str) -> Finding:
    if host.pull == "never":
        step = f"`{host.runtime} pull {image}`, or `pull: missing` in hosts.yaml"
        return Finding("image", FAULT, f"{image}: not here, and `pull: never` forbids to fetch it", step)
    return Finding("image", OK, f"{image}: not here yet, the first run pulls it")


def _store(host: HostSpec, info: Mapping[str, Any]) -> str:
    if not host.env.get("DOCKER_HOST", "unix://").startswith("unix://"):
        return ""  # that daemon's disk is another machine's
    if _CONTAINERD in str(info.get("DriverStatus")):
        return _CONTAINERD_ROOT  # DockerRootDir has the containers then, and containerd the images
    return str(info.get("DockerRootDir") or part(info, "store").get("graphRoot") or "")


def _command(host: HostSpec, *words: str) -> list[str]:
    given = [f"{name}={host.env[name]}" for name in _CHOOSING if name in host.env]
    return [*(["env", *given] if given else []), host.runtime, *words]


def _socket(host: HostSpec) -> str:
    scheme, _, path = host.env.get("DOCKER_HOST", "").partition("://")
    return path if scheme == "unix" else _SOCKET


def _public(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//", address)


def _question(image: str) -> str:
    return f"image {image}"
