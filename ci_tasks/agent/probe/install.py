"""The two files that an interpreter loads the probe from: the payload, and a `.pth` with the run's own directory.

They go only where the run's own files are, or where they vanish with it: into a row's venv, which run.sh copies them
into, and over paths in a container's image. A `sitecustomize` would hide one that the image has.
"""

from __future__ import annotations

import os
import pkgutil
from typing import Sequence

from ..run_directory import RunDir

MODULE = "ci_tasks_probe"
FILES = (MODULE + ".py", MODULE + ".pth")

# The interpreter prints the traceback of a `.pth` that fails: a much older Python cannot read the payload.
_BEGIN = """try:
 import {module}
 {module}.begin({directory}, {names})
except Exception:
 pass
"""


def write_files(run: RunDir, names: Sequence[str] = ()) -> None:
    """Write both into the run directory, and make the directory for the evidence, which any user may write into: what
    runs in a container may be anybody. `names` are packages to watch."""
    os.makedirs(run.evidence, exist_ok=True)
    os.chmod(run.evidence, 0o1777)
    os.makedirs(run.probe, exist_ok=True)
    payload = pkgutil.get_data(__name__, "payload.py")
    assert payload is not None
    for name, content in {FILES[0]: payload, FILES[1]: pth(run.evidence, names).encode("ascii")}.items():
        with open(os.path.join(run.probe, name), "wb") as out:
            out.write(content)


def pth(directory: str, names: Sequence[str] = ()) -> str:
    """The line that begins the probe in every process; ASCII, whatever the path is."""
    begin = _BEGIN.format(module=MODULE, directory=ascii(directory), names=ascii(",".join(names)))
    return "import sys; exec(%s)\n" % ascii(begin)
