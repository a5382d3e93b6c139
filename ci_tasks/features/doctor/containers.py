"""The container runtime of a host: whether it answers, whether it can pass GPUs in, and which images it has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.agent.containers.docker_argv import PODMAN
from ci_tasks.agent.containers.rewrite import INIT_PROGRAMS, OWN_INIT
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import daemonless, disks
from ci_tasks.features.doctor.check_results import CheckResult, fault, ok, unknown, warning
from ci_tasks.features.doctor.gpus import uses_gpus, visible_gpus
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers, gb, part
from ci_tasks.hosts.queries import list_value, parse_json_object

RUNTIMES = ("docker", "podman")
INFO, TOOLKIT, CDI, SOCKET, USER, INIT = "runtime", "nvidia-ctk", "cdi", "socket", "user", "init"
_FIND_INIT = (
    *("sh", "-c", 'for program; do command -v "$program" && exit; done; exit 1', "sh"),
    *(OWN_INIT, *INIT_PROGRAMS),
)
_SOCKET = "/var/run/docker.sock"
_CONTAINERD = "io.containerd.snapshotter.v1"
_CONTAINERD_ROOT = "/var/lib/containerd"


def facts(host: HostSpec, images: Sequence[str]) -> list[HostFact]:
    if host.runtime == "none":
        return []
    if host.runtime not in RUNTIMES:
        return [daemonless.fact(host)]
    name = host.runtime
    queries: dict[str, Sequence[str]] = {INFO: [host.runtime, "info", "--format", "{{json .}}"], USER: ["id"]}
    queries[SOCKET] = ["stat", "-L", "-c", "%U %G %a", _socket(host)]
    facts = [HostFact(queries, lambda answers: [_reachable(host, answers)])]
    if uses_gpus(host):
        toolkit_queries = {TOOLKIT: ["nvidia-ctk", "--version"], CDI: ["nvidia-ctk", "cdi", "list"]}
        facts.append(
            HostFact({INFO: queries[INFO], **toolkit_queries}, lambda answers: _gpu_passthrough(name, answers))
        )
    if name == PODMAN:
        facts.append(HostFact({INIT: _FIND_INIT}, lambda answers: _init(answers[INIT])))
    return facts + [_image(host, image) for image in dict.fromkeys(images)]


def _init(answer: QueryAnswer) -> list[CheckResult]:
    """podman does not come with the program that `--init` needs; docker does."""
    if answer.code is None:
        return []  # podman's own line says why the host does not answer
    path = answer.out.strip()
    if answer.code == 0 and path:
        return [ok("init", path)]
    text = "no init program, so containers run without --init and end at SIGKILL"
    return [warning("init", text, f"install one of {', '.join(INIT_PROGRAMS)}")]


def store_facts(host: HostSpec, images: Sequence[str], answers: QueryAnswers) -> list[HostFact]:
    """The image store's disk: only the runtime knows where it is."""
    info = answers.get(INFO)
    path = _store(host, parse_json_object(info)) if info is not None and info.code == 0 else ""
    if not path:
        return []
    here = all(answers[_query_name(image)].code == 0 for image in images)
    return [disks.store(host.runtime, path, disks.CONTAINERS if here else disks.PULL)]


def _reachable(host: HostSpec, answers: QueryAnswers) -> CheckResult:
    name, answer = host.runtime, answers[INFO]
    info = parse_json_object(answer)
    problem = _problem(answer, info)
    if problem:
        return _unreachable(host, problem, answers)
    version = info.get("ServerVersion") or part(info, "version").get("Version") or "of unknown version"
    rootless = "name=rootless" in list_value(info, "SecurityOptions") or part(info, "host", "security").get("rootless")
    if not rootless:
        return ok(name, f"{version}")
    text = f"{version}, rootless: your own limits (`ulimit -l`) apply, and files of containers belong to you"
    step = "for GPUs, once: sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place"
    return warning(name, text, step if name == "docker" else "")


def _problem(answer: QueryAnswer, info: Mapping[str, Any]) -> str:
    """`docker info` of some versions ends with 0 and says among its answer that it reached no daemon."""
    errors = [str(error) for error in list_value(info, "ServerErrors")]
    if errors:
        return errors[0]
    return "" if answer.code == 0 and info else answer.last_line


def _unreachable(host: HostSpec, problem: str, answers: QueryAnswers) -> CheckResult:
    name, answer = host.runtime, answers[INFO]
    if answer.is_missing:
        step = f"install {name}, or name another `runtime` in hosts.yaml (docker, podman, apptainer, none)"
        return fault(name, "not on PATH", step)
    if answer.timed_out:
        return fault(name, problem, f"`sudo systemctl restart {name}`; `journalctl -u {name}` says why")
    if "permission denied" in problem.lower():
        return _permission_denied(host, answers)
    if "cannot connect" in problem.lower() or "is the docker daemon running" in problem.lower():
        chosen = (
            f"; hosts.yaml sets DOCKER_HOST={_without_login(host.env['DOCKER_HOST'])}"
            if "DOCKER_HOST" in host.env
            else ""
        )
        return fault(name, problem, f"`sudo systemctl enable --now {name}`{chosen}")
    return fault(name, problem, f"run `{name} info` there and see what it says")


def _permission_denied(host: HostSpec, answers: QueryAnswers) -> CheckResult:
    """The socket says which group may; a session that began before the person joined it does not know yet."""
    path = _socket(host)
    socket = re.fullmatch(r"(\S+) (\S+) (\d+)\s*", answers[SOCKET].out)
    user = re.search(r"uid=\d+\(([^()]*)\)", answers[USER].out)
    who = user[1] if user else "$USER"
    if not socket or socket[2] == "root":
        step = (
            f"have an administrator open it to a group (`sudo groupadd docker`) and add {who}; or use rootless docker"
        )
        return fault(host.runtime, f"{who} may not use {path}", step)
    owner, group, mode = socket.groups()
    text = f"{who} may not use {path} ({owner}:{group} {mode})"
    if f"({group})" in answers[USER].out:
        return fault(host.runtime, text, f"{who} is in {group} already: `sudo chmod g+rw {path}`")
    step = f"sudo usermod -aG {group} {who}, then log in anew: a session keeps the groups that it began with"
    return fault(host.runtime, text, step)


def _gpu_passthrough(name: str, answers: QueryAnswers) -> list[CheckResult]:
    """Whether `--gpus` (docker) or `--device nvidia.com/gpu=` (podman) will work; without it the row is blocked."""
    info = parse_json_object(answers[INFO])
    if not visible_gpus(answers) or _problem(answers[INFO], info):
        return []
    toolkit = re.search(r"version (\S+)", answers[TOOLKIT].out) if answers[TOOLKIT].code == 0 else None
    version = f", toolkit {toolkit[1]}" if toolkit else ""
    devices = "nvidia.com/gpu" in answers[CDI].out or "nvidia.com/gpu" in str(info.get("DiscoveredDevices"))
    topic = "NVIDIA runtime"
    if name == "docker" and any("nvidia" in runtime for runtime in part(info, "Runtimes")):
        return [ok(topic, f"registered with docker{version}")]
    if devices:
        return [ok(topic, f"GPUs are CDI devices{version}")]
    if not toolkit:
        symptom = 'docker will say: could not select device driver ""' if name == "docker" else "podman finds no GPU"
        return [fault(topic, f"no toolkit: {symptom}", f"install nvidia-container-toolkit; {_setup_command(name)}")]
    if name == "docker":
        return [warning(topic, f"installed, but not registered with docker{version}", _setup_command(name))]
    return [fault(topic, f"no CDI device nvidia.com/gpu{version}", _setup_command(name))]


def _setup_command(name: str) -> str:
    if name == "podman":
        return "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
    return "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`"


def _image(host: HostSpec, image: str) -> HostFact:
    name = _query_name(image)

    def read(answers: QueryAnswers) -> list[CheckResult]:
        if answers[INFO].code != 0:
            return []  # the runtime's own line says why
        answer = answers[name]
        info = parse_json_object(answer)
        if answer.code == 0 and info:
            return [ok("image", f"{image}: {_identity(info)}{_refreshed(host)}")]
        if re.search(r"no such image|not known", answer.err, re.IGNORECASE):
            return [_absent(host, image)]
        return [unknown("image", f"{image}: {answer.last_line}")]

    return HostFact({name: [host.runtime, "image", "inspect", "--format", "{{json .}}", "--", image]}, read)


def _identity(info: Mapping[str, Any]) -> str:
    """The digest by which a registry knows the image; one that was built here has none."""
    digests = [str(name).rpartition("@")[2] for name in list_value(info, "RepoDigests")]
    size = info.get("Size")
    shown = digests[0] if digests else f"{info.get('Id')}, which no registry has"
    return shown + (f", {gb(size)}" if isinstance(size, int | float) else "")


def _refreshed(host: HostSpec) -> str:
    return {"always": "; pulled anew at every run", "never": "", "missing": ""}.get(
        host.pull or "", "; CI's own pull policy"
    )


def _absent(host: HostSpec, image: str) -> CheckResult:
    if host.pull == "never":
        step = f"`{host.runtime} pull {image}`, or `pull: missing` in hosts.yaml"
        return fault("image", f"{image}: not here, and `pull: never` forbids to fetch it", step)
    return ok("image", f"{image}: not here yet, the first run pulls it")


def _store(host: HostSpec, info: Mapping[str, Any]) -> str:
    if not host.env.get("DOCKER_HOST", "unix://").startswith("unix://"):
        return ""  # that daemon's disk is another machine's
    if _CONTAINERD in str(info.get("DriverStatus")):
        return _CONTAINERD_ROOT  # DockerRootDir has the containers then, and containerd the images
    return str(info.get("DockerRootDir") or part(info, "store").get("graphRoot") or "")


def _socket(host: HostSpec) -> str:
    scheme, _, path = host.env.get("DOCKER_HOST", "").partition("://")
    return path if scheme == "unix" else _SOCKET


def _without_login(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//", address)


def _query_name(image: str) -> str:
    return f"image {image}"
