"""The files of the probe, and what it saw, as frozen dataclasses. All of it is the job's claim.

An interpreter loads the payload, a `.pth` that begins it, a suite's hooks, and `start/sitecustomize.py`, which a job's
PYTHONPATH names. They are only where the run's own files are, or where they vanish with it: in a row's venv, which
run.sh copies them into, and beside the packages of interpreters of the run's containers and directories (`spread`).

evidence/ has a file for each process while the job runs; at its end the agent puts them together into evidence.jsonl,
whose lines are parts of a `RunEvidence`: the counts, the packages, then a line for each process. A job can write into
`evidence/` whatever it likes: no link is followed, what is read is limited, and only typed values pass.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import field, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type, TypeVar

from . import codec
from .files import content_of, replace_file
from .quick_dataclass import dataclass
from .records import ProbeRules
from .run_directory import RunDir

T = TypeVar("T")


@dataclass(frozen=True)
class CodeFrame:
    """A place in a program."""

    file: str = ""
    line: int = 0
    function: str = ""


@dataclass(frozen=True)
class LinkedException:
    """One exception of a chain; `frames` begin with the outermost."""

    type: str = ""
    message: str = ""
    frames: Tuple[CodeFrame, ...] = ()


@dataclass(frozen=True)
class NotedException:
    """`where`: main, thread, or worker, which is a process of multiprocessing. `name` is the thread's name. `chain`
    begins with the one that was seen; causes, contexts and members of groups follow."""

    t: float = 0.0
    where: str = ""
    name: str = ""
    chain: Tuple[LinkedException, ...] = ()


@dataclass(frozen=True)
class HookEvent:
    """What a suite's `hook` noted: a `kind` with its `fields`, the text of a JSON object; or its `failure`."""

    t: float = 0.0
    hook: str = ""
    kind: str = ""
    fields: str = "{}"
    failure: str = ""

    def decode(self, record: Type[T]) -> T:
        """The fields as a frozen dataclass. Raises RecordError."""
        return codec.from_json(record, self.fields, where="%s of %s" % (self.kind, self.hook))


@dataclass(frozen=True)
class ImportedModule:
    """`origin` is its file, or the directory of a namespace package; `package_version` that of the metadata beside
    it, or its `__version__`; `commit` that of the work tree around it. Empty where that is not known. `local`: it was
    installed from a directory."""

    name: str = ""
    origin: str = ""
    package_version: str = ""
    commit: str = ""
    local: bool = False


@dataclass(frozen=True)
class ProcessEvidence:
    """A Python process. `pid` counts in `namespace` (each container has its own), `start` is in the kernel's ticks:
    together they are of one process alone. `forked`: it runs on in the interpreter of its parent.

    `env` are the variables of ranks and devices, by name, as they were last.
    `imports` are the watched packages as their import began, and again as they were at the end; then also parts of an
    overlay's packages from elsewhere. `packages` is the key of what is installed for its interpreter. `end` is `exit`,
    `worker`, or `exec` of what it was before it became another program; it is empty where the process was killed, left
    by `os._exit`, or lives.
    """

    pid: int = 0
    start: int = 0
    ppid: int = 0
    parent_start: int = 0
    namespace: str = ""
    argv: Tuple[str, ...] = ()
    executable: str = ""
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    forked: bool = False
    started_at: float = 0.0
    end: str = ""
    imports: Tuple[ImportedModule, ...] = ()
    packages: str = ""
    exceptions: Tuple[NotedException, ...] = ()
    hook_events: Tuple[HookEvent, ...] = ()

    @property
    def key(self) -> Tuple[str, int, int]:
        return self.namespace, self.pid, self.start

    @property
    def parent(self) -> Tuple[str, int, int]:
        """The key of its parent, if that is one of these processes."""
        return self.namespace, self.ppid, self.parent_start

    @property
    def rank(self) -> Optional[int]:
        """By its environment; None where that says none."""
        names = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
        texts = (self.env.get(name, "") for name in names)
        return next((int(text) for text in texts if text.isdecimal() and len(text) < 10), None)


@dataclass(frozen=True)
class RunEvidence:
    """What the probe saw of a run; what is not in it was not seen. `counted` are all processes that loaded the probe;
    what `unread` of them noted could not be read, or was too much. `packages` are what is installed for an interpreter,
    by key: distributions with their versions, named as their metadata directories. The processes are in the order of
    their start."""

    counted: int = 0
    unread: int = 0
    packages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    processes: Tuple[ProcessEvidence, ...] = ()


MAX_PROCESSES = 2000  # that are read; the others are only counted
MAX_TOTAL = 1 << 25  # bytes that are read
MAX_WRITTEN = 1 << 24  # bytes of evidence.jsonl
_MAX_PROCESS = 1 << 23  # bytes of a process, which writes half as much and stacks
_MAX_PACKAGES = 1 << 20  # bytes of a list of them
_MODULE = "ci_tasks_probe"  # as interpreters import `probe`, which is not imported here
_PROCESS = re.compile(r"\d{1,10}-\d{1,20}-[0-9a-f]{8}\.jsonl")
_PACKAGES = re.compile(r"packages-[0-9a-f]{16}")


# -- what processes wrote ----------------------------------------------------------------------------------------------


def parse_lines(text: str) -> RunEvidence:
    """The content of evidence.jsonl."""
    return _merged(RunEvidence, text) or RunEvidence()


def _merged(record: Type[T], text: str) -> Optional[T]:
    """The record whose lines have some of its fields each: of a list the further items, of others the value since then.
    Lines that are no such JSON, as a stack or half a line, are left out."""
    values: Dict[str, Any] = {}
    for line in text.split("\n"):
        with suppress(codec.RecordError):
            part = codec.parse(line, where="evidence")
            codec.decode(record, part, where="evidence")  # one bad line does not hide the others
            for name, value in part.items():
                if isinstance(value, list) and isinstance(values.get(name), list):
                    values[name] += value
                else:
                    values[name] = value
    with suppress(codec.RecordError):
        return codec.decode(record, values, where="evidence")
    return None


def read_evidence(directory: str) -> RunEvidence:
    """What the processes have written so far; nothing if there is no such directory."""
    is_ours = os.path.isdir(directory) and not os.path.islink(directory)
    names = sorted(filter(_PROCESS.fullmatch, os.listdir(directory) if is_ours else ()))
    processes: List[ProcessEvidence] = []
    left = MAX_TOTAL
    for name in names[:MAX_PROCESSES]:
        content = content_of(os.path.join(directory, name), min(left, _MAX_PROCESS), follow_link=False)
        left -= len(content)
        process = _merged(ProcessEvidence, content.decode("utf-8", "replace"))
        processes += [process] if process is not None and process.pid else []  # else it is not by us
    packages: Dict[str, Mapping[str, str]] = {}
    for key in filter(_PACKAGES.fullmatch, sorted({process.packages for process in processes})):
        content = content_of(os.path.join(directory, key), min(left, _MAX_PACKAGES), follow_link=False)
        left -= len(content)
        with suppress(codec.RecordError):
            found = {"packages": {key: codec.parse(content, where=key)}}
            packages.update(codec.decode(RunEvidence, found, where=key).packages)
    return RunEvidence(len(names), len(names) - len(processes), packages, _in_order(processes))


def _in_order(processes: List[ProcessEvidence]) -> Tuple[ProcessEvidence, ...]:
    """By their start. A process that became another program (exec) has written twice: what it was before has the end
    `exec`, and is left out where it was but a fork on its way there."""
    ordered = sorted(processes, key=lambda process: (process.started_at, process.pid))
    last = {process.key: process for process in ordered}
    shown = [each for each in ordered if each is last[each.key] or not each.forked or each.imports or each.exceptions]
    return tuple(each if each is last[each.key] or each.end else replace(each, end="exec") for each in shown)


def collect_evidence(run: RunDir) -> None:
    """Write evidence.jsonl, for `mask_run` to mask, if there is evidence. Raises OSError."""
    if os.path.islink(run.evidence) or not os.path.isdir(run.evidence):
        return
    evidence = read_evidence(run.evidence)
    parts = [replace(evidence, processes=()), *(RunEvidence(processes=(process,)) for process in evidence.processes)]
    written = b""
    for part in parts:
        line = codec.to_json(part, versioned=False, compact=True).encode("utf-8", "backslashreplace") + b"\n"
        written += line if len(written) + len(line) <= MAX_WRITTEN else b""
    replace_file(run.evidence_file, written)


def collect_left_evidence(run: RunDir) -> None:
    """Of a run that is over, what its agent could not collect. A directory that cannot be read is not seen."""
    if not os.path.lexists(run.evidence_file):
        with suppress(OSError, ValueError):
            collect_evidence(run)


# -- what interpreters load --------------------------------------------------------------------------------------------

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
    files = {_MODULE + ".py": payload(), _MODULE + ".pth": pth(run.evidence, rules)}
    files["start/sitecustomize.py"] = _SITECUSTOMIZE.format(roots=ascii(roots), own=own)
    files.update({"%s_%s.py" % (_MODULE, _hook_name(hook.name)): hook.source for hook in rules.hooks})
    for name, text in files.items():
        with open(os.path.join(run.probe, name), "w", encoding="utf-8") as out:
            out.write(text)


def payload() -> str:
    """What interpreters load."""
    import pkgutil  # who reads evidence needs none

    return (pkgutil.get_data(__name__, "probe.py") or b"").decode()


def pth(directory: str, rules: ProbeRules = ProbeRules()) -> str:
    """The line that begins the probe in every process; ASCII, whatever the path is."""
    hooks = {module: _hook_name(hook.name) for hook in rules.hooks for module in hook.modules}
    overlays = {name: overlay.directory for overlay in rules.overlays for name in overlay.modules}
    words = ascii((directory, rules.packages, hooks, overlays))
    return "import sys; exec(%s)\n" % ascii(_BEGIN.format(words=words))


def _hook_name(name: str) -> str:
    return re.sub("[^a-z0-9]", "_", name.lower())
