"""Megatron-Bridge's conventions: an entry of a matrix names a launch script, and its image has the sources in it.

CI builds an image of each commit, and downloads Bridge's main branch in its verl rows. Here the working tree is what is
tested, so it is laid over both: overrides, which every row names as deviations. So are the steps for which only
NVIDIA's machines have the credentials.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ci_tasks.workflow.model import Workflow
from ci_tasks.workflow.suite import GENERIC, MatrixTest, Suite

WORKFLOW = ".github/workflows/cicd-main.yml"
WEEKLY = ".github/workflows/verl-e2e-weekly.yml"
_VERL = ".github/workflows/verl_ci"
_TEMPLATE = "./.github/actions/test-template"
_TESTS = (
    *("cicd-unit-tests-core", "cicd-unit-tests-diffusion"),
    *(f"cicd-functional-tests-{machine}{tier}" for machine in ("", "gb200-") for tier in ("l0", "l1", "l2", "flaky")),
)
_OTHERS = ("Coverage", "lint-check", "cicd-import-check", "generate-test-matrix", "generate-gb200-test-matrix")
_IN_IMAGE = "--workdir /opt/Megatron-Bridge"
_MAIN = "git+https://github.com/NVIDIA-NeMo/Megatron-Bridge.git@main"
_SCRIPT = 'bash "$SCRIPT_PATH"'


def matches(workflow: Workflow) -> bool:
    """Whether it is Bridge's CI, or the weekly run of verl."""
    steps = (step for job in workflow.jobs.values() for step in job.steps)
    return workflow.path == WEEKLY or (workflow.path == WORKFLOW and any(step.uses == _TEMPLATE for step in steps))


def describe(combination: Mapping[str, Any]) -> MatrixTest:
    """The script of a weekly row. Of a functional one the entry does not say the directory."""
    script = str(combination.get("script", ""))
    return MatrixTest(f"{_VERL}/{script}.sh", "", None) if script.startswith("run_") else GENERIC.describe(combination)


def _overrides() -> Iterator[Mapping[str, object]]:
    for job in _TESTS:
        yield {"job": job, "step": "Generate GitHub App token", "skip": True}
        yield {"job": job, "step": "main", "with": {"github-token": ""}}
        yield {"job": job, "step": "Checkout repository", "skip": True}
        yield {"job": job, "step": "Install uuidgen", "skip": True}
        over_image = f"--volume ${{{{ github.workspace }}}}:/opt/Megatron-Bridge {_IN_IMAGE}"
        yield {"job": job, "step": "Start container", "replace": {_IN_IMAGE: over_image}}
        # It collects coverage; the script's exit code is the previous step's.
        yield {"job": job, "step": "Check result", "skip": True}
    for job in (*_TESTS, *_OTHERS):
        # Its `ref` is an output of a job that asks GitHub; your working tree is tested.
        yield {"job": job, "step": "actions/checkout", "with": {"ref": ""}}
    own = f'sed "s#{_MAIN}#/opt/Megatron-Bridge#" "$SCRIPT_PATH" > /tmp/script.sh; bash /tmp/script.sh'
    yield {"job": "verl-e2e", "step": "Run ${{ matrix.script }}", "replace": {_SCRIPT: own}}


_PACKAGES = ("megatron.bridge", "megatron.core")
_OWN = json.dumps({"overrides": list(_overrides())})
SUITE = Suite(
    "bridge", WORKFLOW, "Megatron-Bridge", packages=_PACKAGES, overrides=_OWN, matches=matches, describe=describe
)
