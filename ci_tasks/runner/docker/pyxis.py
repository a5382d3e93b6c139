"""CI's `docker run` as a step of a Slurm job, in pyxis' container: one `srun` in the job's allocation. Pure.

Needs pyxis 0.15 (`--container-env`) over enroot. Variables reach the container through srun's own environment, and
`--container-env` names those that win over the image's, so no value stands in an argv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..words import Deviation, deviation, is_secret_name
from .docker_argv import DockerRun
from .rootless import Call, Mount, check, command, is_file, looks_like_root, losses, mounts, reference
from .rules import PYXIS

RAY = "/tmp/ray"
# What srun and enroot need themselves: the job, where the image's credentials lie, the way to a registry.
_CLIENT = frozenset(("PATH", "HOME", "USER", "LOGNAME", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD"))
_CLIENT_PREFIXES = ("SLURM", "ENROOT_", "XDG_", "SSL_CERT_")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_DEVICES = "NVIDIA_VISIBLE_DEVICES"

# One task on this node, beside the script that waits for it, with all that the job has. A step would take its export
# rule from an sbatch --export=NONE, bind its one task to one core where the cluster binds tasks, and load MPI's plugin.
_STEP = ("--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--cpu-bind=none", "--mpi=none")


def call(run: DockerRun, given: Mapping[str, str], environ: Mapping[str, str], scratch: str | None) -> Call:
    """The step that runs `run`, with the variables `given` in it. `scratch` is a directory of the run, for Ray's logs;
    None where they stay in the container.

    Raises DockerArgvError for what cannot be done without a daemon.
    """
    check(run, PYXIS)
    said = losses(run, PYXIS, own_processes=False)
    bound = mounts(run, said)
    client = {name: value for name, value in environ.items() if _is_clients(name)}
    given = {_DEVICES: "all" if run.has("gpus") else "void", **given}
    inside = {name: value for name, value in given.items() if _turns_head(name) and client.get(name) != value}
    outside = {name: value for name, value in given.items() if name not in inside}
    said += _told(run, bound)
    words = ["srun", *_STEP, *_here(environ), *_container(run), *_mounted(bound, scratch)]
    if outside:
        words.append("--container-env=" + ",".join(outside))
    words += [*_inner_env(inside), *command(run, PYXIS)]
    return Call(words, {**client, **outside}, said)


def image_name(image: str) -> str:
    """The image as enroot names it: `REGISTRY#NAME:TAG`. A file is a path.

    A digest stands in the tag's place: enroot 3 reads `NAME@sha256:…` as a user's name, and both 3 and 4 hand what
    stands there to the registry as it is.
    """
    if is_file(image):
        return image
    registry, name, tag, digest = reference(image)
    version = digest or tag
    return (f"{registry}#" if registry else "") + name + (f":{version}" if version else "")


def _is_clients(name: str) -> bool:
    return name in _CLIENT or name.startswith(_CLIENT_PREFIXES) or name.lower() in _PROXIES


def _turns_head(name: str) -> bool:
    """Whether another value of it is not for srun: the command sets it. What may be a secret stands in no argv."""
    return _is_clients(name) and name.lower() not in _PROXIES and not is_secret_name(name)


def _here(environ: Mapping[str, str]) -> list[str]:
    """The node of the script: srun would take the first of the job's."""
    node = environ.get("SLURMD_NODENAME")
    return [f"--nodelist={node}"] if node else []


def _container(run: DockerRun) -> list[str]:
    words = [f"--container-image={image_name(run.image)}", "--no-container-mount-home"]
    words.append("--container-remap-root" if looks_like_root(run) else "--no-container-remap-root")
    words.append("--container-readonly" if run.is_on("read-only") else "--container-writable")
    # As docker: the image's entrypoint, unless the run names one. pyxis runs it once, before the command.
    words.append("--no-container-entrypoint" if run.has("entrypoint") else "--container-entrypoint")
    directory = run.last("workdir")
    return [*words, *([f"--container-workdir={directory}"] if directory else [])]


def _mounted(bound: Sequence[Mount], scratch: str | None) -> list[str]:
    words = [f"{one.source or 'tmpfs'}:{one.destination}" + (":ro" if one.readonly else "") for one in bound]
    words += [f"{scratch}/ray:{RAY}"] if scratch else []
    return ["--container-mounts=" + ",".join(words)] if words else []


def _inner_env(inside: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in inside.items())] if inside else []


def _told(run: DockerRun, bound: Sequence[Mount]) -> list[Deviation]:
    said = [
        deviation("environment", "the image's and -e", "and Slurm's, proxies, XDG_*", "srun and enroot need them"),
        deviation(RAY, "in the container", "a directory of the run", "so that Ray's logs outlive the container"),
    ]
    if run.has("gpus"):
        said.append(deviation("gpus", f"--gpus {run.last('gpus')}", "those of the job", "Slurm has chosen them"))
    if not run.has("entrypoint"):
        why = "pyxis runs it around a shell first; one that does not end in exec cannot start there"
        said.append(deviation("entrypoint", "the image's, around the command", "the image's, before the command", why))
    return said
