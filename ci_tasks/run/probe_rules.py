"""What the probe looks for in the rows of a suite: its packages, those of the checkout, and the suite's own hook."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator

from ci_tasks.agent.records import ProbeHook, ProbeRules
from ci_tasks.workflow.suite import Suite

_PROJECT = re.compile(r"""^name *= *["']([\w.-]+)["']""", re.MULTILINE)
_ROOTS = ("", "src/", "python/")  # of a checkout, where projects have their packages


def probe_rules(suite: Suite, own: tuple[str, ...] = ()) -> ProbeRules:
    """A suite's hook uses the standard library of Python 3.8 only, so it can be imported here for its `MODULES`."""
    packages = tuple(dict.fromkeys([*suite.packages, *own]))
    if not suite.probe_hook:
        return ProbeRules(packages, own=own)
    import inspect  # the suites of most labels have no hook

    module = importlib.import_module(suite.probe_hook)
    hook = ProbeHook(suite.name, tuple(module.MODULES), inspect.getsource(module))
    return ProbeRules(packages, (hook,), own=own)


def own_packages(suite: Suite, repository: str, read_file: Callable[[str], str | None]) -> Iterator[str]:
    """The packages that the checkout has: the suite's, and one with the name of the project or the repository."""
    projects = [*_PROJECT.findall(read_file("pyproject.toml") or "")[:1], repository.rpartition("/")[2]]
    for name in dict.fromkeys([*suite.packages, *(re.sub("[-.]+", "_", project.lower()) for project in projects)]):
        path = name.replace(".", "/")
        if any(read_file(f"{root}{path}/__init__.py") is not None for root in _ROOTS):
            yield name
