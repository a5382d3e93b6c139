"""The probe in a container of CI's image: its files over each site-packages of the image's Pythons, and the run's
directory for the evidence. Nothing in the image or of the host changes.

Which Pythons an image has is asked once: a container of it without network runs each of them for a moment. The answer
is kept by the image's id.
"""

from __future__ import annotations

import os
import posixpath
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import List, Tuple

from ..codec import RecordError
from ..probe.install import written_files
from ..quick_dataclass import dataclass
from ..records import Deviation, ProbeOverlay
from ..run_directory import RunDir, read_record, write_record
from .docker_argv import DockerRun, option
from .mounts import bind_mount

MAX_IMAGES = 200  # that are remembered
MAX_DIRECTORIES = 20  # of one image
_WHAT, _CI, _WHY = "probe", "none", "evidence from inside the job; --no-probe leaves it out"
_INSPECT_SECONDS, _ASK_SECONDS = 30.0, 60.0
_MARK = "ci-tasks-site:"
# The first that exists of the directories that `site` reads; of a venv its own. -I: the image's variables have no say.
_PYTHON = """import os, site, sys
if sys.version_info >= (3, 8):
    print(%r + next((path for path in site.getsitepackages() if os.path.isdir(path)), ""))""" % ("\n" + _MARK)
_SHELL = """IFS=:; n=0
for d in $PATH /usr/local/bin /usr/bin \\
  /opt/*/bin /opt/*/*/bin /root/*/bin /*/venv/bin /*/.venv/bin /venv/bin /.venv/bin; do
  for p in "$d"/python3 "$d"/python "$d"/python3.[0-9] "$d"/python3.[0-9][0-9]; do
    if [ -x "$p" ] && [ "$n" -lt 40 ]; then n=$((n + 1)); "$p" -I -c "$0" < /dev/null 2> /dev/null; fi
  done
done
exit 0"""


@dataclass(frozen=True)
class ImageSites:
    """The directories for packages of an image's Pythons."""

    image: str
    directories: Tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownImages:
    """The newest last."""

    images: Tuple[ImageSites, ...] = field(default_factory=tuple)


def with_probe(
    run: DockerRun, run_dir: RunDir, program: str, environ: Mapping[str, str], overlays: Sequence[ProbeOverlay] = ()
) -> tuple[DockerRun, Deviation]:
    """The run with the probe, and the deviation that says where it is, or why it is not."""
    if not os.path.isdir(run_dir.evidence) or not os.path.isdir(run_dir.probe):
        return run, _not_installed("the run directory does not have its files")
    image = _image_id(run.image, program, environ)
    if not image:
        return run, _not_installed("the image could not be inspected")
    directories = _known(run_dir, image)
    if directories is None:
        directories = _ask(run, program, environ)
        if directories is None:
            return run, _not_installed("the image could not be asked for its Pythons")
        _remember(run_dir, ImageSites(image, directories))
    free = [path for path in directories if not _is_mounted_over(path, run)]
    if not free:
        why = "the run mounts its own files there" if directories else "the image has no Python from 3.8 on"
        return run, _not_installed(why)
    names = written_files(run_dir)
    here = "%d files in %s" % (len(names), " ".join(free))
    return _mounted(run, run_dir, names, free, overlays), Deviation(_WHAT, _CI, here, _WHY)


def parse_sites(output: str) -> Tuple[str, ...]:
    """What the Pythons of an image printed; their start-up code may print as well."""
    paths = [line[len(_MARK) :].strip() for line in output.splitlines() if line.startswith(_MARK)]
    usable = [
        posixpath.normpath(path) for path in paths if path.startswith("/") and not set(path) & set(":,\"'\\\n\r\0")
    ]
    return tuple(list(dict.fromkeys(usable))[:MAX_DIRECTORIES])


def _not_installed(why: str) -> Deviation:
    return Deviation(_WHAT, _CI, "none in the container: " + why, _WHY)


def _mounted(
    run: DockerRun,
    run_dir: RunDir,
    names: Sequence[str],
    directories: Sequence[str],
    overlays: Sequence[ProbeOverlay],
) -> DockerRun:
    volumes = ["%s:%s" % (run_dir.evidence, run_dir.evidence)]
    volumes += sorted({"%s:%s" % (overlay.mount, overlay.mount) for overlay in overlays})
    for directory in directories:
        volumes += ["%s:%s:ro" % (os.path.join(run_dir.probe, name), posixpath.join(directory, name)) for name in names]
    return replace(run, options=run.options + tuple(option("volume", volume) for volume in volumes))


def _is_mounted_over(path: str, run: DockerRun) -> bool:
    """Whether a file there would be one of the host's, or of a volume that others use."""
    targets = [bind_mount(item)[1] for item in run.options]
    targets += [(value.split(":") + [""])[1] or value for value in run.values("volume")]
    targets += [value.split(":")[0] for value in run.values("tmpfs")]
    for value in run.values("mount"):
        targets += [part.partition("=")[2] for part in value.split(",") if part.startswith(("dst=", "target=", "dest"))]
    normal = [posixpath.normpath(target) for target in targets if target.startswith("/")]
    return run.has("volumes-from") or any(path == target or path.startswith(target + "/") for target in normal)


# -- the image ---------------------------------------------------------------------------------------------------------


def pulls(run: DockerRun, program: str, environ: Mapping[str, str]) -> bool:
    """Whether the run would pull its image."""
    policy = run.last("pull") or "missing"
    return policy == "always" or (policy == "missing" and not _image_id(run.image, program, environ))


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


def _image_id(image: str, program: str, environ: Mapping[str, str]) -> str:
    words = ["image", "inspect", "--format", "{{.Id}}", image]
    answer = _output([program, *words], environ, _INSPECT_SECONDS)
    return answer.strip() if answer is not None else ""


def _ask(run: DockerRun, program: str, environ: Mapping[str, str]) -> "Tuple[str, ...] | None":
    """By a container without the run's labels: it ends within a moment, removes itself, and is none of the job's."""
    words = ["run", "--rm", "--pull=never", "--network", "none", "--workdir", "/", "--entrypoint", "sh"]
    if run.last("platform"):
        words += ["--platform", run.last("platform") or ""]
    answer = _output([program, *words, run.image, "-c", _SHELL, _PYTHON], environ, _ASK_SECONDS)
    return parse_sites(answer) if answer is not None else None


def _output(argv: List[str], environ: Mapping[str, str], seconds: float) -> "str | None":
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            env=environ,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


# -- what is known of images -------------------------------------------------------------------------------------------


def _file(run_dir: RunDir) -> str:
    """Beside the directory of all runs; empty where the run lies elsewhere."""
    runs = os.path.dirname(os.path.dirname(run_dir.path))
    return os.path.join(os.path.dirname(runs), "image-pythons.json") if os.path.basename(runs) == "runs" else ""


def _read_known(path: str) -> KnownImages:
    try:
        return read_record(KnownImages, path) or KnownImages()
    except (OSError, RecordError):
        return KnownImages()


def _known(run_dir: RunDir, image: str) -> "Tuple[str, ...] | None":
    path = _file(run_dir)
    found = [sites.directories for sites in _read_known(path).images if sites.image == image] if path else []
    return found[-1] if found else None


def _remember(run_dir: RunDir, sites: ImageSites) -> None:
    """Two that write at once lose one answer, which is asked for again."""
    path = _file(run_dir)
    if path:
        others = [other for other in _read_known(path).images if other.image != sites.image]
        try:
            write_record(path, KnownImages((*others[1 - MAX_IMAGES :], sites)))
        except OSError:
            pass
