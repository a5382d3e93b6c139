"""Each rule of lint finds what it is for, at its line, and leaves the rest alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.features.lint.rules import RULES, CheckoutFiles, LintFinding, lint
from ci_tasks.workflow import rows
from ci_tasks.workflow.changed_tests import ChangedJob
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.reader import read_with_called
from ci_tasks.workflow.suite import ChangedRule
from tests.parts.cases import named
from tests.parts.entries import describe
from tests.parts.golden import Golden

whole = (kept := Golden(Path(__file__).parent / "findings.json")).fixture()
lint = kept.of(lint)

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
CALLED_FILE = ".github/workflows/a.yml"
CALLED = {CALLED_FILE: "on: workflow_call\njobs:\n  run: {runs-on: cpu, steps: [{run: x}]}\n"}
CALLS = "".join(f"  {id}: {{uses: ./{CALLED_FILE}}}\n" for id in ("one", "two")) + "  cpu-unittest:\n"
CLEAN = {"tests/test_a.py": f"NUM_GPUS = 4\n{RUNS}", "tests/utils/test_b.py": f"NUM_GPUS = 0\n{RUNS}"}


def subject(
    text: str = WORKFLOW, tests: dict[str, str] | None = None, docs: dict[str, str] | None = None,
    template: str | None = None,
) -> CheckoutFiles:  # fmt: skip
    workflow = read_with_called(text, PATH, CALLED.get)
    context = EventContext(repository="THUDM/slime", secrets=())
    tests = CLEAN if tests is None else tests
    return CheckoutFiles(
        workflow=workflow, text=text, template=template,
        rows=[row for job in workflow.jobs.values() for row in rows.rows(workflow, job, context, describe)],
        tests=tests,
        docs=docs or {},
        files=frozenset(tests),
    )  # fmt: skip


def findings_of(of: CheckoutFiles, rule: str) -> list[tuple[str, int]]:
    return [(finding.file, finding.line) for finding in lint(of) if finding.rule == rule]


def test_a_checkout_in_order_has_no_finding() -> None:
    assert lint(subject(docs={"docs/ci.md": "Add run-ci-ckpt or run-ci-cpu."})) == []


def changed(old: str, new: str) -> CheckoutFiles:
    assert old in WORKFLOW
    return subject(WORKFLOW.replace(old, new))


def having(path: str, text: str) -> CheckoutFiles:
    return subject(tests={**CLEAN, path: text})


# rule, subject, where
FINDS = {
    "a file that defines tests only": ("runs-nothing",
     having("tests/utils/test_b.py", "def test_x(): assert True\n"), ("tests/utils/test_b.py", 1)),
    "a label that starts no job": ("unknown-label",
     subject(docs={"docs/ci.md": "first\nAdd `run-ci-image`.\nrun-ci-image again"}), ("docs/ci.md", 2)),
    "a job without a timeout": ("no-timeout", changed("    timeout-minutes: 10\n", ""), (PATH, 19)),
    "one without, which several call": ("no-timeout", changed("  cpu-unittest:\n", CALLS), (CALLED_FILE, 3)),
    "a tag that moves": ("moving-image", changed("slimerl/slime:v0.2.2", "slimerl/slime:latest"), (PATH, 15)),
    "a test that was moved": ("missing-test", subject(tests={"tests/test_a.py": RUNS}), (PATH, 26)),
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


@named(("change", "line", "message"), DRIFTS)
def test_drift_names_the_job_and_what_differs(change: tuple[str, str], line: int, message: str) -> None:
    assert change[0] in RENDERED
    (finding,) = drifts(RENDERED.replace(*change))
    assert finding.line == line
    assert message in finding.message


def test_the_page_lists_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs/before-a-run.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == list(RULES)


FAILS = ChangedRule(("tests/test_*.py",), "AM", re.compile("^NUM_GPUS = [0-9]+"), fails_without=True)
EIGHT = replace(FAILS, default_gpus=8, fails_without=False)


def checkout(rule: ChangedRule | None, files: dict[str, str], *commands: str) -> CheckoutFiles:
    """The clean checkout and more files; the rule selects what lies in tests/, or in a folder of it named test_…"""
    whole = subject(tests={**CLEAN, **files})
    if rule is None:
        return replace(whole, commands=commands)
    selected = frozenset(path for path in whole.files if path.startswith("tests/test_"))
    return replace(whole, changed=[(ChangedJob("cpu-unittest", "run-ci-changed", rule), selected)], commands=commands)


NEW, DEEP = "tests/test_c.py", "tests/utils/test_c.py"
ONE_GPU = f"NUM_GPUS = 1\n{RUNS}"
STARTS = f"import subprocess\nNUM_GPUS = 4\nCOMMAND = ['torchrun', '{DEEP}']\n{RUNS}"
CHANGED = "in no job's matrix; run-ci-changed"
# The rule of the job for changed tests, files, a command of another step; the finding, or "" if it is reached.
REACHES: dict[str, tuple[ChangedRule | None, dict[str, str], str, str, str]] = {
    "nothing": (None, {NEW: RUNS}, "", "unreachable", "in no job's matrix"),
    "the job of changes": (FAILS, {NEW: ONE_GPU}, "", "unregistered", f"{CHANGED} runs it when it changes, with 1 GPU"),
    "no pathspec": (FAILS, {DEEP: RUNS}, "", "unreachable", f"{CHANGED} selects only 'tests/test_*.py'"),
    "a step": (FAILS, {DEEP: RUNS}, f"python {DEEP} --fast", "", ""),
    "pytest with its directory": (FAILS, {DEEP: RUNS}, "pytest tests/utils", "", ""),
    "pytest with all tests": (FAILS, {DEEP: RUNS}, "python -m pytest -q ./tests/", "", ""),
    "a registered test that starts it": (FAILS, {"tests/test_a.py": STARTS, DEEP: RUNS}, "", "", ""),
}


@named(("changed_by", "files", "command", "rule", "message"), REACHES)
def test_a_test_that_no_matrix_has_is_reached_by(
    changed_by: ChangedRule | None, files: dict[str, str], command: str, rule: str, message: str
) -> None:
    found = lint(checkout(changed_by, files, *([command] if command else [])))
    assert [(each.rule, each.file, each.message) for each in found] == ([(rule, *files, message)] if rule else [])


def test_a_changed_test_that_only_defines_things_runs_nothing() -> None:
    of = checkout(FAILS, {NEW: "NUM_GPUS = 0\ndef test_x(): ...\n"})
    (finding,) = (finding for finding in lint(of) if finding.rule == "runs-nothing")
    assert finding.file == NEW
    assert finding.message.startswith("run-ci-changed runs `python tests/test_c.py` when it changes")


# What the file is, and what the job for changed tests does with it where it has no line NUM_GPUS = n.
NO_LINE = [
    # A registered test, one that is not, and a helper: each of them ends slime's detection.
    ("tests/test_a.py", FAILS, "ends with an error"),
    ("tests/test_folder/helpers.py", FAILS, "ends with an error"),
    # With a default, only what is shown to be wrong: a row with another number, and what is no test.
    ("tests/test_a.py", EIGHT, "runs this file on 8 GPUs when a pull request changes it; its row has 4"),
    ("tests/test_a.py", replace(EIGHT, default_gpus=4), None),
    ("tests/test_folder/helpers.py", EIGHT, "runs this file as a test on 8 GPUs"),
    # Where nobody knows how the script finds the number, nothing is claimed.
    ("tests/test_a.py", replace(FAILS, gpus_line=None), None),
    # What is not selected needs no such line.
    ("tests/utils/test_b.py", FAILS, None),
]


@pytest.mark.parametrize(("path", "rule", "effect"), NO_LINE)
def test_a_file_without_num_gpus(path: str, rule: ChangedRule, effect: str | None) -> None:
    found = [finding for finding in lint(checkout(rule, {path: RUNS})) if finding.rule == "no-num-gpus"]
    assert [finding.file for finding in found] == ([path] if effect else [])
    assert all(effect is not None and effect in finding.message for finding in found)
