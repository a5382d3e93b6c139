"""The files that an interpreter loads the probe from: the payload, a `.pth` with the run's own directory, and the hooks
of a suite.

They go only where the run's own files are, or where they vanish with it: into a row's venv, which run.sh copies them
into, and over paths in a container's image. A `sitecustomize` would hide one that the image has.
"""

from __future__ import annotations

import os
import pkgutil
import re
from typing import Dict, List, Tuple

from ..records import ProbeRules
from ..run_directory import RunDir
from .payload import MODULES

MODULE = "ci_tasks_probe"
_FILE = re.compile(MODULE + r"[a-z0-9_]*\.(py|pth)")

# The interpreter prints the traceback of a `.pth` that fails: a much older Python cannot read the payload.
_BEGIN = """try:
 import {module}
 {module}.begin({directory}, {names}, {hooks}{overlays})
except Exception:
 pass
"""


def write_files(run: RunDir, rules: ProbeRules = ProbeRules()) -> None:
    """Write them into the run directory, and make the directory for the evidence, which any user may write into: what
    runs in a container may be anybody."""
    os.makedirs(run.evidence, exist_ok=True)
    os.chmod(run.evidence, 0o1777)
    os.makedirs(run.probe, exist_ok=True)
    for name, text in _files(run, rules).items():
        with open(os.path.join(run.probe, name), "w", encoding="utf-8") as out:
            out.write(text)


def written_files(run: RunDir) -> Tuple[str, ...]:
    """Their names; none in a run without the probe."""
    try:
        return tuple(sorted(filter(_FILE.fullmatch, os.listdir(run.probe))))
    except OSError:
        return ()


def payload() -> str:
    """The payload's modules as the text of one."""
    return "\n".join(map(_module_text, MODULES))


def pth(directory: str, rules: ProbeRules = ProbeRules()) -> str:
    """The line that begins the probe in every process; ASCII, whatever the path is."""
    hooks = ["%s=%s" % (module, _hook_name(hook.name)) for hook in rules.hooks for module in hook.modules]
    words = {"directory": directory, "names": ",".join(rules.packages), "hooks": ",".join(hooks)}
    laid = "\0".join("%s=%s" % (name, overlay.directory) for overlay in rules.overlays for name in overlay.modules)
    overlays = ", " + ascii(laid) if laid else ""
    begin = _BEGIN.format(module=MODULE, overlays=overlays, **{name: ascii(word) for name, word in words.items()})
    return "import sys; exec(%s)\n" % ascii(begin)


def _files(run: RunDir, rules: ProbeRules) -> Dict[str, str]:
    files = {MODULE + ".py": payload(), MODULE + ".pth": pth(run.evidence, rules)}
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
