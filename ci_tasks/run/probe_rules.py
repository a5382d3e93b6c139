"""What the probe looks for in the rows of a suite, with the source of the suite's own hook."""

from __future__ import annotations

import importlib

from ci_tasks.agent.records import ProbeHook, ProbeRules
from ci_tasks.workflow.suite import Suite


def probe_rules(suite: Suite) -> ProbeRules:
    """A suite's hook uses the standard library of Python 3.8 only, so it can be imported here for its `MODULES`."""
    if not suite.probe_hook:
        return ProbeRules(suite.packages)
    import inspect  # the suites of most labels have no hook

    module = importlib.import_module(suite.probe_hook)
    return ProbeRules(suite.packages, (ProbeHook(suite.name, tuple(module.MODULES), inspect.getsource(module)),))
