"""Each rule of lint finds what it is for, at its line, and leaves the rest alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.features.lint.checkout_files import CheckoutFiles, LintFinding
from ci_tasks.features.lint.rules import RULES, lint
from ci_tasks.workflow import rows
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.reader import read
from tests.parts.entries import describe

PATH = ".github/workflows/pr-test.yml"
RUNS = 'if __name__ == "__main__":\n    main()\n'
WORKFLOW = """\
name: PR Test
on: {pull_request: {types: [labeled]}}
jobs:
  e2e-test-ckpt:
    if: contains(github.event.pull_request.labels.*.name, 'run-ci-ckpt')
    runs-on: [self-hosted, cpu]
    timeout-minutes: 60
    strategy:
      matrix:
        info:
          - {test_file: test_a.py, num_gpus: 4}
          - {test_file: test_a.py, num_gpus: 4, test_args: --async-save}
    steps:
      - run: |
          docker run --rm slimerl/slime:v0.2.2 bash -lc '
            pip install -e . --no-deps
            python tests/${{ matrix.info.test_file }} ${{ matrix.info.test_args }}
          '
  cpu-unittest:
    if: contains(github.event.pull_request.labels.*.name, 'run-ci-cpu')
    runs-on: ubuntu-latest
    timeout-minutes: 10
    strategy:
      matrix:
        info:
          - {test_file: utils/test_b.py, num_gpus: 0}
    steps:
      - run: pip install pytest
      - run: python tests/${{ matrix.info.test_file }}
"""
CLEAN = {"tests/test_a.py": f"NUM_GPUS = 4\n{RUNS}", "tests/utils/test_b.py": f"NUM_GPUS = 0\n{RUNS}"}


def subject(
    text: str = WORKFLOW,
    tests: dict[str, str] | None = None,
    docs: dict[str, str] | None = None,
    template: str | None = None,
) -> CheckoutFiles:
    workflow = read(text, PATH)
    context = EventContext(repository="THUDM/slime", secrets=())
    tests = CLEAN if tests is None else tests
    return CheckoutFiles(
        workflow=workflow,
        text=text,
        template=template,
        rows=[row for job in workflow.jobs.values() for row in rows.rows(workflow, job, context, describe)],
        tests=tests,
        docs=docs or {},
        files=frozenset(tests),
    )


def findings_of(of: CheckoutFiles, rule: str) -> list[tuple[str, int]]:
    return [(finding.file, finding.line) for finding in lint(of) if finding.rule == rule]


def test_a_checkout_in_order_has_no_finding() -> None:
    assert lint(subject(docs={"docs/ci.md": "Add run-ci-ckpt or run-ci-cpu."})) == []


def changed(old: str, new: str) -> CheckoutFiles:
    assert old in WORKFLOW
    return subject(WORKFLOW.replace(old, new))


def without(path: str) -> CheckoutFiles:
    return subject(tests={name: text for name, text in CLEAN.items() if name != path})


def having(path: str, text: str) -> CheckoutFiles:
    return subject(tests={**CLEAN, path: text})


# rule, subject, where
FINDS = {
    "a file that defines tests only": ("runs-nothing",
     having("tests/utils/test_b.py", "def test_x():\n    assert True\n"), ("tests/utils/test_b.py", 2)),
    "a label that starts no job": ("unknown-label",
     subject(docs={"docs/ci.md": "first\nAdd `run-ci-image`.\nrun-ci-image again"}), ("docs/ci.md", 2)),
    "a job without a timeout": ("no-timeout", changed("    timeout-minutes: 10\n", ""), (PATH, 19)),
    "a tag that moves": ("moving-image", changed("slimerl/slime:v0.2.2", "slimerl/slime:latest"), (PATH, 15)),
    "no tag at all": ("moving-image", changed("slimerl/slime:v0.2.2", "r.example:5000/slime"), (PATH, 15)),
    "a moving tag of a registry that only GitHub knows": ("moving-image",
     changed("slimerl/slime:v0.2.2", "${{ vars.REGISTRY }}/slime:latest"), (PATH, 1)),
}  # fmt: skip


def test_it_finds() -> None:
    found = {what: findings_of(of, rule) for what, (rule, of, _) in FINDS.items()}
    assert found == {what: [where] for what, (_, _, where) in FINDS.items()}


LEAVES = {
    "a file that pytest runs": (
        "runs-nothing",
        subject(
            WORKFLOW.replace("      - run: python tests/", "      - run: pytest tests/"),
            {**CLEAN, "tests/utils/test_b.py": "def test_x(): ...\n"},
        ),
    ),
    "a script that calls its own tests": ("runs-nothing",
     having("tests/utils/test_b.py", "NUM_GPUS = 0\ndef test_x(): ...\ntest_x()\n")),
    "a word that begins almost like a label": ("unknown-label", subject(docs={"a.md": "run-cd-x, run-code, run-ci"})),
    "a called workflow, which cannot have a timeout": (
        "no-timeout", changed("  cpu-unittest:\n", "  called: {uses: o/r/a.yml@1}\n  cpu-unittest:\n"),
    ),
    "a digest": ("moving-image", changed("slimerl/slime:v0.2.2", f"slimerl/slime:latest@sha256:{'a' * 64}")),
    "an image of the commit": ("moving-image", changed("slime:v0.2.2", "slime:${{ github.sha }}")),
    "an image whose tag only GitHub knows": ("moving-image", changed("slime:v0.2.2", "slime:${{ vars.TAG }}")),
}  # fmt: skip


def test_it_leaves_alone() -> None:
    assert {what: found for what, (rule, of) in LEAVES.items() if (found := findings_of(of, rule))} == {}


TEMPLATE = "name: PR Test\njobs:\n<% for job in ['a', 'b'] %>\n  << job >>:\n    timeout-minutes: 1\n    steps: [{run: 'x\n\n      << job >>'}]\n    strategy: {matrix: {info: << [{'test_file': 'test_a.py'}] | tojson >>}}\n<% endfor %>\n"  # noqa: E501
RENDERED = """\
name: PR Test
jobs:
  a:  # a comment is no difference
    timeout-minutes: 1
    steps: [{run: "x\\na"}]
    strategy: {matrix: {info: [{test_file: test_a.py}]}}
  b:
    timeout-minutes: 1
    steps: [{run: "x\\nb"}]
    strategy: {matrix: {info: [{test_file: test_a.py}]}}
"""


def drifts(text: str, template: str = TEMPLATE) -> list[LintFinding]:
    of = replace(subject(), text=text, template=template)
    return [finding for finding in lint(of) if finding.rule == "template-drift"]


def test_a_workflow_that_is_what_its_template_gives_has_not_drifted() -> None:
    assert drifts(RENDERED) == []


# the .yml's change, the line, words of the message
DRIFTS = {
    "a row only in the workflow": (
        ("{info: [{test_file: test_a.py}]}}\n  b", "{info: [{test_file: test_a.py}, {test_file: test_c.py}]}}\n  b"),
        3,
        'job a: only in the .yml: {"test_file": "test_c.py"}',
    ),
    "a row only in the template": (("[{test_file: test_a.py}]}}\n  b", "[]}}\n  b"), 3, "only in the .j2"),
    "a value": (('timeout-minutes: 1\n    steps: [{run: "x\\nb"}]', 'steps: [{run: "x\\nb"}]'), 7, "timeout-minutes"),
    "the last line end of a step": (('"x\\nb"', '"x\\nb\\n"'), 7, "steps[0].run, its line 2"),
    "a line of a step": (('"x\\nb"', '"x\\nc"'), 7, "steps[0].run, its line 2"),
}


@pytest.mark.parametrize(("change", "line", "message"), DRIFTS.values(), ids=DRIFTS)
def test_drift_names_the_job_and_what_differs(change: tuple[str, str], line: int, message: str) -> None:
    assert change[0] in RENDERED
    (finding,) = drifts(RENDERED.replace(*change))
    assert finding.line == line
    assert message in finding.message


def test_the_page_lists_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs/before-a-run.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == list(RULES)
