"""The rules of lint, each a function from a checkout to its findings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import commonprefix

from ci_tasks.errors import counted, some
from ci_tasks.features.lint.checkout_files import ERROR, WARNING, CheckoutFiles, LintFinding, LintRule
from ci_tasks.features.lint.template_drift import RULE as TEMPLATE_DRIFT
from ci_tasks.features.lint.template_drift import template_drift
from ci_tasks.planning.tested_files import only_defines_tests
from ci_tasks.workflow.changed_tests import ChangedJob, is_test
from ci_tasks.workflow.model import Row

RUNS_NOTHING = LintRule("runs-nothing", ERROR, "CI runs `python FILE`, which defines tests, calls none and ends green")
NO_NUM_GPUS = LintRule("no-num-gpus", ERROR, "that job reads from this line how many GPUs the file needs")
UNREGISTERED = LintRule("unregistered", WARNING, "no label runs it, except for pull requests that add or modify it")
UNREACHABLE = LintRule("unreachable", WARNING, "CI never runs it, not even for a pull request that changes it")
UNKNOWN_LABEL = LintRule("unknown-label", ERROR, "a contributor adds it to a pull request, and it starts no job")
NO_TIMEOUT = LintRule("no-timeout", WARNING, "a hang holds GPUs for 6 hours, on a self-hosted runner for up to 5 days")
MOVING_IMAGE = LintRule(
    "moving-image", WARNING, "the same commit runs other code tomorrow, and a failure cannot be reproduced"
)
_OF_TESTS = (RUNS_NOTHING, NO_NUM_GPUS, UNREGISTERED, UNREACHABLE)
RULES = {rule.name: rule for rule in (TEMPLATE_DRIFT, *_OF_TESTS, UNKNOWN_LABEL, NO_TIMEOUT, MOVING_IMAGE)}
_PYTEST = re.compile(r"\bpytest\b|\bpython3? -m unittest\b")
_QUOTED_FILE = re.compile(r"""([\w.-]+\.py)["']""")
_TEST_PATH = re.compile(r"(?<![\w.-])tests/[\w./-]+\.py(?![\w-])")


def lint(checkout: CheckoutFiles) -> list[LintFinding]:
    """All findings: errors before warnings, then by file and line."""
    findings = [finding for check in _CHECKS for finding in check(checkout)]
    return sorted(findings, key=lambda each: (each.level, each.file, each.line, each.rule, each.message))


def _runs_nothing(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    runs = {test: (row.job, f"{row.job} runs `python {test}`") for test, row in _registered(checkout).items()}
    for job, paths in checkout.changed:
        for test in sorted(paths & checkout.tests.keys() - runs.keys()):
            if is_test(test) and not _fails(job, checkout.tests[test]):
                runs[test] = (job.job, f"{job.name} runs `python {test}` when it changes")
    for test, (job_id, what) in runs.items():
        source = checkout.tests.get(test, "")
        if only_defines_tests(source) and not _uses_pytest(checkout, job_id):
            message = f"{what}, and the file has no __main__: none of its tests is run"
            fix = 'end it with: if __name__ == "__main__": raise SystemExit(pytest.main([__file__]))'
            yield RUNS_NOTHING.finding(test, max(1, len(source.splitlines())), message, fix)


def _uses_pytest(checkout: CheckoutFiles, job: str) -> bool:
    """Whether the job hands its files to pytest, which finds tests by itself."""
    text = "\n".join(step.run or "" for step in checkout.workflow.jobs[job].steps)
    return any(_PYTEST.search(line) for line in text.splitlines() if "pip install" not in line)


def _no_num_gpus(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """A file that a job for changed tests selects, and whose GPUs it cannot read: the job ends with an error, or takes
    a default. A default is a finding only if it is shown to be wrong: for a row with another number, or no test."""
    for job, paths in checkout.changed:
        for path in sorted(paths & checkout.tests.keys()):
            if job.rule.gpus_line is None or job.rule.number_in(checkout.tests[path]) is not None:
                continue
            matrix = sorted({row.gpus for row in checkout.rows if row.test == path and row.gpus is not None})
            counts = " or ".join(map(str, matrix))
            default = job.rule.default_gpus
            if job.rule.fails_without:
                effect = "ends with an error when a pull request changes this file, and runs no changed test at all"
            elif default is not None and not is_test(path):
                effect = f"runs this file as a test on {default} GPUs when a pull request changes it"
            elif default is not None and matrix and default not in matrix:
                effect = f"runs this file on {default} GPUs when a pull request changes it; its row has {counts}"
            else:
                continue
            fix = f"add a line NUM_GPUS = {counts or 'n'}"
            if not is_test(path):
                fix = f"it is no test: move it to where {job.name} does not select it ({_pathspecs(job)})"
            yield NO_NUM_GPUS.finding(path, 1, f"{job.name} {effect}", fix)


def _without_row(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """`unregistered`: a test that only a job for changed tests runs. `unreachable`: one that nothing runs."""
    fix = f"add it to a job in {checkout.edited}, or move what is no test out of tests/"
    registered = _registered(checkout)
    names, directories = _named_in_commands(checkout)
    sources = [checkout.tests.get(test, "") for test in registered]
    started = {name for source in sources for name in _QUOTED_FILE.findall(source)}  # by a test that CI runs
    for path in sorted(filter(is_test, checkout.files - registered.keys() - names)):
        if path.rpartition("/")[2] in started or path.startswith(directories):
            continue
        jobs = [job for job, paths in checkout.changed if path in paths]
        if jobs:
            effects = [f"{job.name} {_effect(job, checkout.tests.get(path, ''))}" for job in jobs]
            yield UNREGISTERED.finding(path, 1, "; ".join(["in no job's matrix", *effects]), fix)
        else:
            selected = [f"{job.name} selects only {_pathspecs(job)}" for job, _ in checkout.changed]
            yield UNREACHABLE.finding(path, 1, "; ".join(["in no job's matrix", *selected]), fix)


def _named_in_commands(checkout: CheckoutFiles) -> tuple[set[str], tuple[str, ...]]:
    """The test files that commands name, and the directories that they hand to pytest; `tests/` if they name none."""
    files: set[str] = set()
    directories: set[str] = set()
    for line in checkout.commands:
        if "pip install" in line or line.lstrip().startswith("#"):
            continue
        files |= set(_TEST_PATH.findall(line))
        _, pytest, arguments = line.partition("pytest")
        words = [word.strip("\"'").removeprefix("./").rstrip("/") for word in arguments.split()]
        paths = [word for word in words if word.startswith("tests")]
        directories |= {f"{path}/" for path in paths or ["tests"] if pytest}
    return files, tuple(directories)


def _effect(job: ChangedJob, text: str) -> str:
    if _fails(job, text):
        return "selects it when it changes, and ends with an error: it has no line NUM_GPUS = n"
    gpus = job.rule.gpus_of(text)
    return "runs it when it changes" + ("" if gpus is None else f", with {counted(gpus, 'GPU')}")


def _fails(job: ChangedJob, text: str) -> bool:
    """Whether the job for changed tests ends with an error at a file with this text."""
    return job.rule.fails_without and job.rule.number_in(text) is None


def _pathspecs(job: ChangedJob) -> str:
    return " ".join(f"'{pathspec}'" for pathspec in job.rule.pathspecs)


def _unknown_label(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """A label in the docs, recognised by how all labels of the workflow begin."""
    labels = {row.trigger for row in checkout.rows if row.trigger}
    common = commonprefix([*labels]) if len(labels) > 1 else ""
    prefix = common[: common.rfind("-") + 1]
    mention = re.compile(rf"(?<![\w-]){re.escape(prefix)}[a-z0-9]+(?:-[a-z0-9]+)*(?![\w*]|-[\w*<{{])")
    fix = f"name one that does ({', '.join(sorted(labels))}), or add the job"
    for path, text in checkout.docs.items() if prefix else ():
        lines: dict[str, int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            for label in mention.findall(line):
                lines.setdefault(label, number)
        for label in lines.keys() - labels:
            yield UNKNOWN_LABEL.finding(path, lines[label], f"{label} starts no job of {checkout.path}", fix)


def _no_timeout(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """A job that calls another workflow (`uses:`) cannot have a timeout of its own."""
    for job in checkout.workflow.jobs.values():
        if job.timeout_minutes is None and job.uses is None:
            line = checkout.line_of(rf"""^\s*['"]?{re.escape(job.id)}['"]?\s*:""")
            fix = "give it about twice what its longest row takes, such as timeout-minutes: 120"
            yield NO_TIMEOUT.finding(checkout.edited, line, f"job {job.id} has no timeout-minutes", fix)


def _moving_image(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    jobs: dict[str, dict[str, None]] = {}
    for row in checkout.rows:
        if row.image and _may_move(row.image):
            jobs.setdefault(row.image, {})[row.job] = None
    for image, names in jobs.items():
        above, slash, last = image.rpartition("/")  # a colon before the last slash is a registry's port
        message = f"{image} may be another image at every run of {some([*names], 5)}"
        fix = f"pin it: {above}{slash}{last.partition(':')[0]}@sha256:…, as `docker pull` prints it"
        yield MOVING_IMAGE.finding(checkout.edited, checkout.line_of(re.escape(image)), message, fix)


def _may_move(image: str) -> bool:
    """A digest never moves. A tag with a number is a version or a date, which by custom stays. Of a tag that only
    GitHub knows, such as <github.sha>, nothing can be said: it may be the commit."""
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    return "@" not in image and "<" not in tag and not any(letter.isdigit() for letter in tag)


_CHECKS = (template_drift, _runs_nothing, _no_num_gpus, _without_row, _unknown_label, _no_timeout, _moving_image)


def _registered(checkout: CheckoutFiles) -> dict[str, Row]:
    """Each test file of a matrix with the first row that names it."""
    return {row.test: row for row in reversed(checkout.rows) if row.test}
