"""The files that an interpreter loads the probe from: the payload, a `.pth` that begins it, a suite's hooks, and
`start/sitecustomize.py`, which a job's PYTHONPATH names.

They are only where the run's own files are, or where they vanish with it: in a row's venv, which run.sh copies them
into, and beside the packages of interpreters of the run's containers and directories (`spread`).
"""

from __future__ import annotations

import os
import pkgutil
import re

from ..records import ProbeRules
from ..run_directory import RunDir
from .payload import MODULES

MODULE = "ci_tasks_probe"

# The interpreter prints the traceback of a `.pth` that fails: a much older Python cannot read the payload.
_BEGIN = """try:
 import ci_tasks_probe
 ci_tasks_probe.begin(*{words})
except Exception: pass
"""

# Its name is one that the image may use, too: it leaves the path, and the next one of its name runs behind it. A
# module that has not begun is of an earlier run, whose directory is gone.
_SITECUSTOMIZE = """import os, sys
own = os.path.dirname(os.path.abspath(__file__))
probe = os.path.dirname(own)
sys.path[:] = [probe, *(path for path in sys.path if path != own)]
try:
 if getattr(sys.modules.get("ci_tasks_probe"), "_file", 0) is None: del sys.modules["ci_tasks_probe"]
 with open(probe + "/ci_tasks_probe.pth", encoding="utf-8") as pth: exec(pth.read())
 sys.path.remove(probe)
 sys.modules["ci_tasks_probe"].spread(probe, {roots} if probe == {own} else ())
except Exception: pass
if probe in sys.path: sys.path.remove(probe)
del sys.modules["sitecustomize"]
import sitecustomize
"""


def write_files(run: RunDir, rules: ProbeRules = ProbeRules(), workspace: str = "") -> None:
    """Write them into the run directory, and make the directory for the evidence, which any user may write into: what
    runs in a container may be anybody."""
    os.makedirs(run.evidence, exist_ok=True)
    os.chmod(run.evidence, 0o1777)
    os.makedirs(os.path.join(run.probe, "start"), exist_ok=True)
    roots = tuple(os.path.join(os.path.realpath(path), "") for path in (run.path, workspace) if path)
    own = ascii(os.path.abspath(run.probe))
    files = {MODULE + ".py": payload(), MODULE + ".pth": pth(run.evidence, rules)}
    files["start/sitecustomize.py"] = _SITECUSTOMIZE.format(roots=ascii(roots), own=own)
    files.update({"%s_%s.py" % (MODULE, _hook_name(hook.name)): hook.source for hook in rules.hooks})
    for name, text in files.items():
        with open(os.path.join(run.probe, name), "w", encoding="utf-8") as out:
            out.write(text)


def payload() -> str:
    """The payload's modules as the text of one, without their imports of each other, each of which is a line."""
    sources = [pkgutil.get_data(__name__, "payload/%s.py" % name) or b"" for name in MODULES]
    return "".join(line for source in sources for line in source.decode().splitlines(True) if line[:6] != "from .")


def pth(directory: str, rules: ProbeRules = ProbeRules()) -> str:
    """The line that begins the probe in every process; ASCII, whatever the path is."""
    hooks = {module: _hook_name(hook.name) for hook in rules.hooks for module in hook.modules}
    overlays = {name: overlay.directory for overlay in rules.overlays for name in overlay.modules}
    words = ascii((directory, rules.packages, hooks, overlays))
    return "import sys; exec(%s)\n" % ascii(_BEGIN.format(words=words))


def _hook_name(name: str) -> str:
    return re.sub("[^a-z0-9]", "_", name.lower())
