"""The files that an interpreter loads the probe from: the payload, a `.pth` with the run's directory, a suite's hooks,
and `start/sitecustomize.py`, which a job's PYTHONPATH names.

They go only where the run's own files are, or where they vanish with it: into a row's venv, which run.sh copies them
into, and into interpreters of the run's containers and directories (payload/spread.py).
"""

from __future__ import annotations

import os
import pkgutil
import re
from typing import Dict, List

from ..records import ProbeRules
from ..run_directory import RunDir
from .payload import MODULES

MODULE = "ci_tasks_probe"

# The interpreter prints the traceback of a `.pth` that fails: a much older Python cannot read the payload.
_BEGIN = """try:
 import {module}
 {module}.begin({directory}, {names}, {hooks}{overlays})
except Exception:
 pass
"""

# Its name is one that the image may use, too: it leaves the path, and the next one of its name runs behind it. A
# module that has not begun is of an earlier run, whose directory is gone.
_SITECUSTOMIZE = """import os, sys
own = os.path.dirname(os.path.abspath(__file__))
probe = os.path.dirname(own)
sys.path[:] = [path for path in sys.path if path != own]
try:
 if getattr(sys.modules.get("{module}"), "_probe", 0) is None:
  del sys.modules["{module}"]
 sys.path.insert(0, probe)
 import {module}
 sys.path.remove(probe)
 {module}.begin({directory}, {names}, {hooks}{overlays})
 {module}.spread(probe, {roots} if probe == {own} else ())
except Exception:
 if probe in sys.path: sys.path.remove(probe)
del sys.modules["sitecustomize"]
import sitecustomize
"""


def write_files(run: RunDir, rules: ProbeRules = ProbeRules(), workspace: str = "") -> None:
    """Write them into the run directory, and make the directory for the evidence, which any user may write into: what
    runs in a container may be anybody."""
    os.makedirs(run.evidence, exist_ok=True)
    os.chmod(run.evidence, 0o1777)
    for name, text in _files(run, rules, workspace).items():
        os.makedirs(os.path.dirname(os.path.join(run.probe, name)), exist_ok=True)
        with open(os.path.join(run.probe, name), "w", encoding="utf-8") as out:
            out.write(text)


def payload() -> str:
    """The payload's modules as the text of one."""
    return "\n".join(map(_module_text, MODULES))


def pth(directory: str, rules: ProbeRules = ProbeRules()) -> str:
    """The line that begins the probe in every process; ASCII, whatever the path is."""
    return "import sys; exec(%s)\n" % ascii(_BEGIN.format(**_words(directory, rules)))


def _words(directory: str, rules: ProbeRules) -> Dict[str, str]:
    hooks = ["%s=%s" % (module, _hook_name(hook.name)) for hook in rules.hooks for module in hook.modules]
    words = {"directory": directory, "names": ",".join(rules.packages), "hooks": ",".join(hooks)}
    laid = "\0".join("%s=%s" % (name, overlay.directory) for overlay in rules.overlays for name in overlay.modules)
    overlays = ", " + ascii(laid) if laid else ""
    return {"module": MODULE, "overlays": overlays, **{name: ascii(word) for name, word in words.items()}}


def _files(run: RunDir, rules: ProbeRules, workspace: str) -> Dict[str, str]:
    roots = tuple(os.path.join(os.path.realpath(path), "") for path in (run.path, workspace) if path)
    start = {"roots": ascii(roots), "own": ascii(os.path.abspath(run.probe))}
    files = {MODULE + ".py": payload(), MODULE + ".pth": pth(run.evidence, rules)}
    files["start/sitecustomize.py"] = _SITECUSTOMIZE.format(**start, **_words(run.evidence, rules))
    files.update({"%s_%s.py" % (MODULE, _hook_name(hook.name)): hook.source for hook in rules.hooks})
    return files


def _hook_name(name: str) -> str:
    return re.sub("[^a-z0-9]", "_", name.lower())


def _module_text(name: str) -> str:
    """Without its imports of the others, each of which is a line."""
    source = pkgutil.get_data(__name__, "payload/%s.py" % name)
    assert source is not None
    lines: List[str] = source.decode("ascii").split("\n")
    return "\n".join(line for line in lines if not line.startswith("from ."))
