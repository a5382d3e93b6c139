"""Each rule of lint as a function from a checkout to its findings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator

from ci_tasks.errors import some
from ci_tasks.features.lint.checkout_files import CheckoutFiles
from ci_tasks.features.lint.lint_finding import LintFinding
from ci_tasks.features.lint.template_drift import template_drift
from ci_tasks.features.lint.trigger_rules import changed_only, no_num_gpus, without_row
from ci_tasks.planning.tested_files import only_defines_tests
from ci_tasks.workflow.model import Row, Step

_PYTEST = re.compile(r"\bpytest\b|\bpython3? -m (?:pytest|unittest)\b")


def lint(checkout: CheckoutFiles) -> list[LintFinding]:
    """All findings: errors before warnings, then by file and line."""
    findings = sorted({finding for rule in _RULES for finding in rule(checkout)})
    return sorted(findings, key=lambda finding: finding.level)


def _missing_file(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    for test, row in _tests(checkout).items():
        if test not in checkout.files:
            yield _at_row(
                checkout, row, "missing-file", f"{test} is registered in {row.job} and does not exist",
                "register the file by its new name, or take the row out", test,
            )  # fmt: skip


def _runs_nothing(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    runs = {test: (row.job, f"{row.job} runs `python {test}`") for test, row in _tests(checkout).items()}
    for test, job in changed_only(checkout):
        runs[test] = (job.job, f"{job.name} runs `python {test}` when it changes")
    for test, (job_id, what) in runs.items():
        source = checkout.tests.get(test, "")
        if _by_pytest(checkout, job_id) or not only_defines_tests(source):
            continue
        yield LintFinding(
            test, max(1, len(source.splitlines())), "runs-nothing",
            f"{what}, and the file has no __main__: none of its tests is run",
            'end it with: if __name__ == "__main__": raise SystemExit(pytest.main([__file__]))', test,
        )  # fmt: skip


def _gpus_differ(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    for test, row in _tests(checkout).items():
        constant = _num_gpus(checkout.tests.get(test, ""))
        matrix = {other.gpus for other in checkout.rows if other.test == test}
        if constant is None or None in matrix or constant[0] in matrix:
            continue
        file, line = checkout.place_of_row(row)
        counts = " or ".join(str(count) for count in sorted(filter(None, matrix)) or [0])
        yield LintFinding(
            test,
            constant[1],
            "gpus-differ",
            f"NUM_GPUS = {constant[0]}, and {row.job} in {file}:{line} gives it {counts}",
            f"make both the number of GPUs that the test uses: {constant[0]} or {counts}",
            f"{test} {row.job}",
        )


def _duplicate_row(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    same = Counter(_identity(row) for row in checkout.rows if row.test)
    for key, count in same.items():
        if count > 1:
            row = [row for row in checkout.rows if row.test and _identity(row) == key][-1]
            shown = f"{row.test} {row.args}".strip()
            yield _at_row(
                checkout, row, "duplicate-row", f"{row.job} runs `{shown}` {count} times, with one environment",
                "take all but one of them out", f"{row.job} {shown}",
            )  # fmt: skip


def _unknown_label(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    triggers = {row.trigger for row in checkout.rows if row.trigger}
    prefix = _common_prefix(triggers)
    if not prefix:
        return
    mention = re.compile(rf"(?<![\w-]){re.escape(prefix)}[a-z0-9]+(?:-[a-z0-9]+)*(?![\w*]|-[\w*<{{])")
    for path, text in checkout.docs.items():
        reported = set()
        for number, line in enumerate(text.splitlines(), 1):
            for label in mention.findall(line):
                if label not in triggers and label not in reported:
                    reported.add(label)
                    yield LintFinding(
                        path, number, "unknown-label", f"{label} starts no job of {checkout.path}",
                        f"name one that does ({', '.join(sorted(triggers))}), or add the job", label,
                    )  # fmt: skip


def _no_timeout(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    for job in checkout.workflow.jobs.values():
        if job.timeout_minutes is None and job.uses is None:
            yield LintFinding(
                checkout.edited, checkout.line_of_job(job.id), "no-timeout", f"job {job.id} has no timeout-minutes",
                "give it about twice what its longest row takes, such as timeout-minutes: 120", job.id,
            )  # fmt: skip


def _moving_image(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    jobs: dict[str, list[str]] = {}
    for row in checkout.rows:
        if row.image and _is_moving(row.image) and row.job not in jobs.setdefault(row.image, []):
            jobs[row.image].append(row.job)
    for image, names in jobs.items():
        yield LintFinding(
            checkout.edited,
            checkout.line_with(image),
            "moving-image",
            f"{image} may be another image at every run of {some(names, 5)}",
            f"pin it: {_repository(image)}@sha256:…, as `docker pull` prints it",
            image,
        )


def _is_moving(image: str) -> bool:
    """A digest never does; a tag with a number in it is a version or a date, which by custom stays."""
    if "@" in image:
        return False
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    return not any(letter.isdigit() for letter in tag)


def _repository(image: str) -> str:
    """The image's name without its tag; a colon before the last slash is a registry's port."""
    above, slash, last = image.rpartition("/")
    return f"{above}{slash}{last.partition(':')[0]}"


def _installs_branch(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    name = re.escape(checkout.framework)
    source = rf"(?:https?://|git@|ssh://)[^\s'\"]*/{name}(?:\.git)?(?:@[^\s'\"]+)?(?=[\s'\"]|$)"
    clone = re.compile(rf"git\s+clone\s[^\n;&|]*{source}|pip3?\s+install\s[^\n;&|]*git\+{source}")
    for job in checkout.workflow.jobs.values():
        for step in job.steps:
            match = clone.search(step.run or "")
            if match:
                line = _line_in(step, match.start())
                command = " ".join(match[0].split())
                yield LintFinding(
                    checkout.path if checkout.template is None else checkout.edited,
                    line if checkout.template is None else checkout.line_with(match[0].splitlines()[0]),
                    "installs-branch", f"job {job.id} gets {checkout.framework} with `{command}`",
                    "install the checkout: pip install -e . --no-deps", f"{job.id} {command}",
                )  # fmt: skip


_RULES: tuple[Callable[[CheckoutFiles], Iterator[LintFinding]], ...] = (
    template_drift,
    _missing_file,
    _runs_nothing,
    _gpus_differ,
    without_row,
    no_num_gpus,
    _duplicate_row,
    _unknown_label,
    _no_timeout,
    _moving_image,
    _installs_branch,
)


def _at_row(checkout: CheckoutFiles, row: Row, rule: str, message: str, fix: str, about: str) -> LintFinding:
    file, line = checkout.place_of_row(row)
    return LintFinding(file, line, rule, message, fix, about)


def _tests(checkout: CheckoutFiles) -> dict[str, Row]:
    """Every registered test file with the first row that names it."""
    tests: dict[str, Row] = {}
    for row in checkout.rows:
        if row.test:
            tests.setdefault(row.test, row)
    return tests


def _identity(row: Row) -> tuple[object, ...]:
    return row.job, row.test, row.args, row.gpus, row.image, tuple(sorted(row.env.items()))


def _by_pytest(checkout: CheckoutFiles, job: str) -> bool:
    """Whether the job hands its files to pytest, which finds tests by itself."""
    return any(_PYTEST.search(_commands(step)) for step in checkout.workflow.jobs[job].steps)


def _commands(step: Step) -> str:
    """What a step runs, without what it only installs."""
    return "\n".join(line for line in (step.run or "").splitlines() if "pip install" not in line)


def _num_gpus(source: str) -> tuple[int, int] | None:
    """The number that a test's top level gives NUM_GPUS, and its line."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    for node in body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        named = any(isinstance(target, ast.Name) and target.id == "NUM_GPUS" for target in targets)
        value = getattr(node, "value", None)
        if named and isinstance(value, ast.Constant) and isinstance(value.value, int):
            return value.value, node.lineno
    return None


def _common_prefix(triggers: set[str]) -> str:
    """What all labels begin with, up to a dash; "" for fewer than two."""
    if len(triggers) < 2:
        return ""
    first, last = min(triggers), max(triggers)
    same = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[: first.rfind("-", 0, same) + 1]


def _line_in(step: Step, offset: int) -> int:
    begins = getattr(step.run, "line", step.line)
    return int(begins) + (step.run or "")[:offset].count("\n")
