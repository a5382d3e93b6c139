"""The probe in a container: mounts of its files and of the directory for the evidence, and a PYTHONPATH with it first.

The image's own PYTHONPATH goes on behind it, so the image must be there before the container starts: where the run
would pull it, it is pulled here.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..records import Deviation, ProbeOverlay
from ..run_directory import RunDir
from .docker_argv import DockerRun, option

PLACE = "/ci-tasks-probe"
PYTHONPATH = "PYTHONPATH"
_INSPECT_SECONDS = 30.0
_WHY = "evidence from inside the job; --no-probe leaves it out"


def with_probe(
    run: DockerRun,
    run_dir: RunDir,
    program: str,
    environ: Mapping[str, str],
    variables: Mapping[str, str],
    overlays: Sequence[ProbeOverlay] = (),
) -> tuple[DockerRun, Deviation]:
    """The run with the probe, and the deviation that says so, or why not. `variables` are those that the run sets."""
    image = _image_variables(run.image, program, environ)
    if image is None or not os.path.isdir(run_dir.probe):
        why = "the image could not be inspected" if image is None else "the run directory does not have its files"
        return run, Deviation("probe", "none", "none in the container: " + why, _WHY)
    path = probe_path(PLACE, variables.get(PYTHONPATH, image.get(PYTHONPATH, "")))
    volumes = ["%s:%s" % (run_dir.evidence, run_dir.evidence), "%s:%s:ro" % (run_dir.probe, PLACE)]
    volumes += sorted({"%s:%s" % (overlay.mount, overlay.mount) for overlay in overlays})
    options = [option("env", "%s=%s" % (PYTHONPATH, path)), *(option("volume", volume) for volume in volumes)]
    here = "%s=%s" % (PYTHONPATH, path)
    return replace(run, options=(*run.options, *options)), Deviation("probe", "none", here, _WHY)


def probe_path(directory: str, path: str) -> str:
    """PYTHONPATH with the probe of `directory` first."""
    return directory + "/start" + (os.pathsep + path if path else "")


def pulls(run: DockerRun, program: str, environ: Mapping[str, str]) -> bool:
    """Whether the run would pull its image."""
    policy = run.last("pull") or "missing"
    return policy == "always" or (policy == "missing" and _image_variables(run.image, program, environ) is None)


def pull(run: DockerRun, program: str, environ: Mapping[str, str]) -> bool:
    """Pull the image. What is printed goes where the run would have printed it."""
    platform = ["--platform", run.last("platform") or ""] if run.last("platform") else []
    argv = [program, "pull", *platform, run.image]
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=2, env=environ).returncode == 0
    except OSError:
        return False


def without_pull(run: DockerRun) -> DockerRun:
    """The same run, whose image is there."""
    others = tuple(item for item in run.options if item.name != "pull")
    return replace(run, options=(*others, option("pull", "never")))


def _image_variables(image: str, program: str, environ: Mapping[str, str]) -> "dict[str, str] | None":
    """None where there is no such image, or no answer."""
    argv = [program, "image", "inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", image]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSPECT_SECONDS, env=environ
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines()) if done.returncode == 0 else None
