"""The probe in interpreters that appear while the run goes on.

`sitecustomize.py` of the run begins it in each process that has the job's PYTHONPATH, and the first process of an
interpreter copies it beside that interpreter's packages: it stays there when the job sets a PYTHONPATH of its own. Only
where the packages vanish with the run: in its container, or below its directories.
"""

import os
import sys

from .process import read_bytes

MODULE = "ci_tasks_probe"


def spread(source: str, roots: "tuple[str, ...]") -> None:
    """`source` has the files, `roots` are the run's own directories; none in a container, where all but mounts is."""
    for place in sys.modules["site"].getsitepackages():
        if place in sys.path and _vanishes(os.path.realpath(place), roots):
            names = sorted(name for name in os.listdir(source) if name.startswith(MODULE))
            names.sort(key=lambda name: name.endswith(".pth"))  # with it they are whole
            if not _is_same(os.path.join(source, names[-1]), os.path.join(place, names[-1])):
                for name in names:
                    _copy(os.path.join(source, name), os.path.join(place, name))
            return


def _vanishes(place: str, roots: "tuple[str, ...]") -> bool:
    if roots:
        return place.startswith(roots)
    with open("/proc/self/mountinfo", "rb") as mounts:
        targets = [os.fsdecode(line.split(b" ")[4]).replace("\\040", " ") for line in mounts]
    return not any((place + "/").startswith(target + "/") for target in targets if target != "/")


def _is_same(path: str, other: str) -> bool:
    try:
        return read_bytes(path, 1 << 16) == read_bytes(other, 1 << 16)
    except OSError:
        return False


def _copy(source: str, path: str) -> None:
    beside = "%s.%s" % (path, os.urandom(4).hex())
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, read_bytes(source, 1 << 20))
    finally:
        os.close(file)
    os.rename(beside, path)
