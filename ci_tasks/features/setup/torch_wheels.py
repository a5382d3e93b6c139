"""Which package index has wheels of torch for CPUs: asked with pip itself, in the environment that jobs get.

For other packages the install steps' own error names the index or version that helps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import PIP_DEFAULT, Override
from ci_tasks.planning.pip_commands import install_commands, name_of, replacement
from ci_tasks.workflow.model import Job

TIMEOUT = 60.0  # seconds; each connection gets ten
_OPTIONS = ("--disable-pip-version-check", "--retries", "0", "--timeout", "10")
CPU, CUDA = "cpu", "cuda"

Ask = Callable[[Mapping[str, Sequence[str]], float], Mapping[str, QueryAnswer]]


def find_torch(job: Job, index: str | None, python: str, ask: Ask) -> tuple[str, list[Override]]:
    """The kind of torch's wheels that a job would install, "" for none or if no index answers, and the overrides for
    them. They are from the first of `index`, CI's own index and pip's that has wheels for CPUs, else from the first
    that has any."""
    best: tuple[str, list[Override]] = ("", [])
    for step, install in install_commands(job):
        requirement = next((each for each in install.requirements if name_of(each) == "torch"), "")
        candidates: list[tuple[str | None, Sequence[str]]] = [(index, ("--index-url", index))] if index else []
        candidates += [(None, install.indexes), *([(PIP_DEFAULT, ())] if install.indexes else [])]
        for chosen, options in candidates if requirement else ():
            query = [python, "-m", "pip", "index", "versions", *_OPTIONS, *options, "torch"]
            listed = re.search(r"^Available versions: (.*)$", ask({"torch": query}, TIMEOUT)["torch"].out, re.MULTILINE)
            versions = listed[1].split(", ") if listed else []
            for_cpus = [version for version in versions if version.endswith("+cpu")]
            other = replacement(requirement, for_cpus or versions)
            override = Override(job.id, step, pip_index=chosen, replace={requirement: other} if other else {})
            overrides = [override] if chosen or other else []
            if for_cpus and (other or for_cpus == versions):
                return CPU, overrides
            if versions and not best[0]:
                best = CUDA, overrides
    return best
