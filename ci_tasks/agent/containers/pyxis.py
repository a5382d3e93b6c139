"""CI's `docker run` as a step of a Slurm job, in pyxis' container: one `srun` in the job's allocation. Pure.

Needs pyxis 0.15 (`--container-env`) over enroot. Variables reach the container through srun's own environment, and
`--container-env` names those that win over the image's, so no value appears in an argv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..argv_masking import is_secret_name
from ..records import Deviation
from . import rootless
from .bare import container_command
from .docker_argv import DockerRun
from .rules import PYXIS

RAY = "/tmp/ray"
# What srun and enroot need themselves: the job, where the image's credentials lie, the way to a registry.
_CLIENT = frozenset(("PATH", "HOME", "USER", "LOGNAME", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD"))
_CLIENT_PREFIXES = ("SLURM", "ENROOT_", "XDG_", "SSL_CERT_")
_DEVICES = "NVIDIA_VISIBLE_DEVICES"

# One task on this node, beside the script that waits for it, with all that the job has. A step would take its export
# rule from an sbatch --export=NONE, bind its one task to one core where the cluster binds tasks, and load MPI's plugin.
_STEP = ("--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--cpu-bind=none", "--mpi=none")


def rootless_command(
    run: DockerRun, variables: Mapping[str, str], environ: Mapping[str, str], scratch: str | None
) -> rootless.RootlessCommand:
    """The step that runs `run`, with `variables` inside. `scratch` is a directory of the run, for Ray's logs; None
    where they stay in the container.

    Raises DockerArgvError for what cannot be done without a daemon.
    """
    rootless.check_supported(run, PYXIS)
    deviations = rootless.lost_options(run, PYXIS, own_processes=False)
    mounts = rootless.rootless_mounts(run, deviations)
    client = {name: value for name, value in environ.items() if _is_client_variable(name)}
    variables = {_DEVICES: "all" if run.has("gpus") else "void", **variables}
    inside = {name: value for name, value in variables.items() if _overrides_srun(name) and client.get(name) != value}
    outside = {name: value for name, value in variables.items() if name not in inside}
    node = environ.get("SLURMD_NODENAME")  # srun would take the first node of the job
    argv = [
        *("srun", *_STEP, *([f"--nodelist={node}"] if node else [])),
        *_container_options(run, mounts, scratch),
        *(["--container-env=" + ",".join(outside)] if outside else []),
        *(["env", *(f"{name}={value}" for name, value in inside.items())] if inside else []),
        *container_command(run, PYXIS),
    ]
    return rootless.RootlessCommand(argv, {**client, **outside}, deviations + _runtime_deviations(run))


def image_name(image: str) -> str:
    """The image as enroot names it: `REGISTRY#NAME:TAG`. A file is a path.

    A digest stands in the tag's place: enroot 3 reads `NAME@sha256:…` as a user's name, and both 3 and 4 hand what
    stands there to the registry as it is.
    """
    if rootless.is_file(image):
        return image
    registry, name, tag, digest = rootless.split_image_name(image)
    version = digest or tag
    return (f"{registry}#" if registry else "") + name + (f":{version}" if version else "")


def _is_client_variable(name: str) -> bool:
    return name in _CLIENT or name.startswith(_CLIENT_PREFIXES) or name.lower() in rootless.PROXIES


def _overrides_srun(name: str) -> bool:
    """Whether srun needs its own value, and `env` sets the container's. A possible secret never appears in an argv."""
    return _is_client_variable(name) and name.lower() not in rootless.PROXIES and not is_secret_name(name)


def _container_options(run: DockerRun, mounts: Sequence[rootless.RootlessMount], scratch: str | None) -> list[str]:
    options = [f"--container-image={image_name(run.image)}", "--no-container-mount-home"]
    options.append("--container-remap-root" if rootless.runs_as_root(run) else "--no-container-remap-root")
    options.append("--container-readonly" if run.is_on("read-only") else "--container-writable")
    # As docker: the image's entrypoint, unless the run names one. pyxis runs it once, before the command.
    options.append("--no-container-entrypoint" if run.has("entrypoint") else "--container-entrypoint")
    directory = run.last("workdir")
    options += [f"--container-workdir={directory}"] if directory else []
    binds = [f"{mount.source or 'tmpfs'}:{mount.destination}" + (":ro" if mount.readonly else "") for mount in mounts]
    binds += [f"{scratch}/ray:{RAY}"] if scratch else []
    return [*options, *(["--container-mounts=" + ",".join(binds)] if binds else [])]


def _runtime_deviations(run: DockerRun) -> list[Deviation]:
    deviations = [
        Deviation("environment", "the image's and -e", "and Slurm's, proxies, XDG_*", "srun and enroot need them"),
        Deviation(RAY, "in the container", "a directory of the run", "so that Ray's logs outlive the container"),
    ]
    if run.has("gpus"):
        deviations.append(Deviation("gpus", f"--gpus {run.last('gpus')}", "those of the job", "Slurm has chosen them"))
    if not run.has("entrypoint"):
        why = "pyxis runs it around a shell first; one that does not end in exec cannot start there"
        around, before = "the image's, around the command", "the image's, before the command"
        deviations.append(Deviation("entrypoint", around, before, why))
    return deviations
