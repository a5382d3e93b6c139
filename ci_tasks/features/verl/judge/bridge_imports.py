"""Whether verl used the Bridge checkout under test, in the driver and in a Ray worker. If it did not, whatever the run
did is no evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.failure_stages import WRONG_PATH
from ci_tasks.features.verl.judge.log_records import DRIVER, WORKER, RunFacts
from ci_tasks.features.verl.judge.process_evidence import evidence_of, import_criteria
from ci_tasks.features.verl.levels.criterion import CONTRADICTED, with_outcome

_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_PATH = re.compile(r"/\S*/megatron/bridge/__init__\.py\S*|/\S*(?:site|dist)-packages/\S*")
_WHO = {DRIVER: "driver", WORKER: "Ray worker"}


@dataclass(frozen=True)
class BridgeImports:
    """`shown` where the driver and a worker import the checkout; `wrong` says which one imports something else, or
    nothing. Neither where nobody looked."""

    shown: bool
    wrong: str
    text: str


def check_imports(facts: RunFacts, root: str = "", evidence: RunEvidence | None = None) -> BridgeImports:
    """`root` is the Bridge checkout as the job sees it; "" for no more than telling it from an installed package.
    `evidence` is what the probe saw of the processes."""
    wrong = [*_wrong_marks(facts, root), *_wrong_lines(facts, root), *_wrong_processes(facts, root, evidence)]
    mistaken = {line.split(":")[0] for line in wrong}
    right = [
        f"{who}: {facts.preflight[key].text}"
        for key, who in _WHO.items()
        if _passed(facts, key) and who not in mistaken
    ]
    if wrong:
        return BridgeImports(False, "; ".join(dict.fromkeys(wrong)), "; ".join(dict.fromkeys([*right, *wrong])))
    missing = [f"{who} not checked{_why(facts, key)}" for key, who in _WHO.items() if not _passed(facts, key)]
    return BridgeImports(not missing, "", "; ".join([*right, *missing]))


def _wrong_marks(facts: RunFacts, root: str) -> Iterator[str]:
    for key, who in _WHO.items():
        mark = facts.preflight.get(key)
        if mark is None:
            continue
        path = _PATH.search(mark.text)
        if mark.status == "fail":
            yield f"{who}: {mark.text}"
        elif mark.status == "pass" and path and _elsewhere(path[0], root):
            yield f"{who}: {path[0]} is not under {_source(root)}"


def _wrong_lines(facts: RunFacts, root: str) -> Iterator[str]:
    """What the trainings themselves show: workers may have another environment than the one that was asked."""
    for training in facts.trainings.values():
        for path, log_line in training.bridge_paths.items():
            if _elsewhere(f"{path}/megatron/bridge/", root):
                yield f"line {log_line.line_no} of {training.name}: {path}/megatron/bridge is not under {_source(root)}"
        error = training.error
        if error is not None and WRONG_PATH.matches(error.text or error.line):
            yield f"line {error.line_no} of {training.name}: {error.text or error.line}"


def _wrong_processes(facts: RunFacts, root: str, evidence: RunEvidence | None) -> Iterator[str]:
    """The rest of a criterion is shown beside each training."""
    for training in facts.trainings.values():
        for criterion in with_outcome(import_criteria(evidence_of(evidence, training), root), CONTRADICTED):
            yield f"{criterion.place or criterion.name} of {training.name}: {criterion.evidence}"


def _elsewhere(path: str, root: str) -> bool:
    """A path that is read from a text begins after its last space."""
    source = f"{root.rstrip('/')}/src/"
    sources = (source, "/" + source.rpartition(" ")[2].partition("/")[2])
    return bool(_INSTALLED.search(path)) or bool(root and not path.startswith(sources))


def _source(root: str) -> str:
    return f"{root.rstrip('/')}/src" if root else "the Bridge checkout's src"


def _passed(facts: RunFacts, key: str) -> bool:
    return key in facts.preflight and facts.preflight[key].status == "pass"


def _why(facts: RunFacts, key: str) -> str:
    return f": {facts.preflight[key].text}" if key in facts.preflight else ""
