"""Rules about what starts a test: a row of a job, or a pull request that adds or modifies the file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ci_tasks.features.lint.checkout_files import CheckoutFiles
from ci_tasks.features.lint.lint_finding import LintFinding
from ci_tasks.workflow.changed_tests import ChangedJob, is_test


def without_row(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """`unregistered`: a test that only a job for changed tests runs. `unreachable`: one that nothing runs."""
    registered = {row.test for row in checkout.rows}
    launched = _launched(checkout, registered)
    for path in sorted(checkout.files):
        if not is_test(path) or path in registered or path.rpartition("/")[2] in launched:
            continue
        if any(_runs(line, path) for line in checkout.other_commands):
            continue
        jobs = [job for job, paths in checkout.changed if path in paths]
        message = "in no job's matrix"
        fix = f"add it to a job in {checkout.edited}, or move what is no test out of tests/"
        if jobs:
            text = checkout.tests.get(path, "")
            message += "; " + "; ".join(f"{job.name} {_effect(job, text)}" for job in jobs)
            yield LintFinding(path, 1, "unregistered", message, fix, path)
            continue
        for job, _ in checkout.changed:
            message += f"; {job.name} selects only {_pathspecs(job)}"
        yield LintFinding(path, 1, "unreachable", message, fix, path)


def no_num_gpus(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """A file that a job for changed tests selects, and whose GPUs it cannot read: the job ends with an error, or takes
    a default. A default is a finding only where it is shown to be wrong: for a row with another number, or no test."""
    for job, paths in checkout.changed:
        for path in sorted(paths & checkout.tests.keys()):
            if job.rule.gpus_line is None or job.rule.number_in(checkout.tests[path]) is not None:
                continue
            default, named_test = job.rule.default_gpus, is_test(path)
            matrix = sorted({row.gpus for row in checkout.rows if row.test == path and row.gpus is not None})
            counts = " or ".join(map(str, matrix))
            if job.rule.fails_without:
                effect = "ends with an error when a pull request changes this file, and runs no changed test at all"
            elif default is not None and not named_test:
                effect = f"runs this file as a test on {default} GPUs when a pull request changes it"
            elif default is not None and matrix and default not in matrix:
                effect = f"runs this file on {default} GPUs when a pull request changes it; its row has {counts}"
            else:
                continue
            fix = f"add a line NUM_GPUS = {counts or 'n'}"
            if not named_test:
                fix = f"it is no test: move it to where {job.name} does not select it ({_pathspecs(job)})"
            yield LintFinding(path, 1, "no-num-gpus", f"{job.name} {effect}", fix, f"{path} {job.job}")


def changed_only(checkout: CheckoutFiles) -> Iterator[tuple[str, ChangedJob]]:
    """Tests without a row that a job for changed tests runs."""
    registered = {row.test for row in checkout.rows}
    for job, paths in checkout.changed:
        for path in sorted(paths - registered):
            text = checkout.tests.get(path)
            failing = job.rule.fails_without and job.rule.number_in(text or "") is None
            if text is not None and is_test(path) and not failing:
                yield path, job


def _effect(job: ChangedJob, text: str) -> str:
    """What the job does with a changed file."""
    if job.rule.fails_without and job.rule.number_in(text) is None:
        return "selects it when it changes, and ends with an error: it has no line NUM_GPUS = n"
    gpus = job.rule.gpus_of(text)
    return f"runs it when it changes{'' if gpus is None else f', with {gpus} GPU' + 's' * (gpus != 1)}"


def _pathspecs(job: ChangedJob) -> str:
    return " ".join(f"'{pathspec}'" for pathspec in job.rule.pathspecs)


def _runs(line: str, path: str) -> bool:
    """Whether a line of a script names the test, or starts pytest on a directory of it or on everything."""
    if "pip install" in line:
        return False
    if re.search(rf"(?<![\w.-]){re.escape(path)}(?![\w-])", line):
        return True
    _, pytest, arguments = line.partition("pytest")
    words = [word.strip("\"'").removeprefix("./").rstrip("/") for word in arguments.split()]
    paths = [word for word in words if word.startswith("tests")]
    return bool(pytest) and (not paths or any(path.startswith(f"{directory}/") for directory in paths))


def _launched(checkout: CheckoutFiles, registered: set[str | None]) -> set[str]:
    """Names of files that a registered test has as a text of its own, as one that it starts."""
    names: set[str] = set()
    for path, source in checkout.tests.items():
        try:
            nodes = list(ast.walk(ast.parse(source))) if path in registered else []
        except (SyntaxError, ValueError):
            continue
        texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        names |= {text.rpartition("/")[2] for text in texts if text.endswith(".py") and "\n" not in text}
    return names
