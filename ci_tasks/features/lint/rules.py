"""What lint reads of a checkout, and its rules, each a function from a checkout to its findings.

Whether a workflow is what its template gives is compared as data, job by job, so that a comment is no difference.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from posixpath import commonprefix
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import WorkflowError, counted, some
from ci_tasks.planning.checkout_files import only_defines_tests
from ci_tasks.workflow.changed_tests import ChangedJob, is_test
from ci_tasks.workflow.model import Row, Workflow
from ci_tasks.workflow.reader import render_template

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class CheckoutFiles:
    """`text` is the workflow file's own, `template` its template's (None without one), which is that path with .j2.
    `tests` and `docs` are texts by path; `files` all paths of the checkout. `changed` are the jobs for changed tests
    with the paths that git says they would select. `commands` are lines that CI may run: of the workflows' steps, of
    local actions and of shell scripts."""

    workflow: Workflow
    text: str | None
    template: str | None
    rows: Sequence[Row]
    tests: Mapping[str, str]
    docs: Mapping[str, str]
    files: frozenset[str]
    changed: Sequence[tuple[ChangedJob, frozenset[str]]] = ()
    commands: Sequence[str] = ()

    @property
    def path(self) -> str:
        return self.workflow.path.removesuffix(".j2")

    @property
    def edited(self) -> str:
        """The file in which a person changes jobs: the template, if there is one."""
        return self.path if self.template is None else f"{self.path}.j2"

    def line_of(self, pattern: str) -> int:
        """The first line of `edited` in which the pattern is found; 1 without one."""
        lines = (self.text if self.template is None else self.template or "") or ""
        return next((number for number, line in enumerate(lines.splitlines(), 1) if re.search(pattern, line)), 1)


@dataclass(frozen=True)
class LintFinding:
    """An entry of `lint --json`. `file` is named from the checkout's root, `line` counts from 1; `why` and `level` are
    the rule's."""

    file: str
    line: int
    rule: str
    message: str
    fix: str
    why: str
    level: str


@dataclass(frozen=True)
class LintRule:
    """`why` it matters is a whole sentence. `level` is `error` for what is surely a mistake."""

    name: str
    level: str
    why: str

    def finding(self, file: str, line: int, message: str, fix: str) -> LintFinding:
        return LintFinding(file, line, self.name, message, fix, self.why, self.level)


TEMPLATE_DRIFT = LintRule("template-drift", ERROR, "CI runs the .yml; the next edit of the .j2 undoes its changes")
_FIX = "change the .j2, then generate the .yml from it"
_LONGEST = 100  # characters of a value that are shown, a third of them before the first difference


def template_drift(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """A finding for each job that differs, and for each other part of the file."""
    if checkout.text is None or checkout.template is None:
        return
    path = checkout.path
    try:
        ours = _parts(checkout.text)
        path = checkout.edited
        theirs = _parts(render_template(checkout.template, path))
    except (WorkflowError, yaml_lines.YamlError) as problem:
        yield TEMPLATE_DRIFT.finding(path, getattr(problem, "line", None) or 1, f"no workflow: {problem.message}", _FIX)
        return
    for name in dict.fromkeys([*ours, *theirs]):
        line, here = ours.get(name, (1, None))
        template = theirs.get(name, (1, None))[1]
        if here != template:
            yield TEMPLATE_DRIFT.finding(checkout.path, line, f"{name}: {_difference(here, template)}", _FIX)


def _parts(text: str) -> dict[str, tuple[int, Any]]:
    """The jobs and the other keys of a workflow with their lines. Jinja drops the last line end, with which a block
    scalar there would differ."""
    tree = yaml_lines.load(text.rstrip("\n") + "\n")
    parts: dict[str, tuple[int, Any]] = {}
    for key, value in tree.items() if isinstance(tree, yaml_lines.Map) else ():
        if key == "jobs" and isinstance(value, yaml_lines.Map):
            parts |= {f"job {job}": (value.lines[job], value[job]) for job in value}
        else:
            parts[str(key)] = (tree.lines[key], value)
    return parts


def _difference(here: Any, template: Any) -> str:
    """A part that only one has, rows that only one has, or else the first value that differs."""
    if here is None or template is None:
        return f"only in the .{'j2' if here is None else 'yml'}"
    ours, theirs = _matrix_entries(here), _matrix_entries(template)
    only_in = {"yml": list((ours - theirs).elements()), "j2": list((theirs - ours).elements())}
    if rows := [f"only in the .{suffix}: {some(entries, 3)}" for suffix, entries in only_in.items() if entries]:
        return "; ".join(rows)
    values, others = dict(_leaves(here)), dict(_leaves(template))
    place = next(key for key in dict.fromkeys([*values, *others]) if values.get(key) != others.get(key))
    value, other = values.get(place, "nothing"), others.get(place, "nothing")
    skip = max(0, len(commonprefix([value, other])) - _LONGEST // 3) if max(len(value), len(other)) > _LONGEST else 0
    return f"{place} the .yml has {_excerpt(value, skip)}, the .j2 gives {_excerpt(other, skip)}".lstrip()


def _matrix_entries(job: Any) -> Counter[str]:
    matrix = (job.get("strategy") or {}).get("matrix") if isinstance(job, dict) else None
    lists = [value for value in matrix.values() if isinstance(value, list)] if isinstance(matrix, dict) else []
    return Counter(_as_json(entry) for entries in lists for entry in entries)


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Each value below `value` with its place, such as `steps[0].run, its line 2:`."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            name = key if isinstance(key, str) else f"({key})"
            yield from _leaves(each, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from _leaves(each, f"{place}[{number}]")
    elif isinstance(value, str) and "\n" in value:
        for number, each in enumerate(value.splitlines(keepends=True), 1):
            yield f"{place}, its line {number}:", _as_json(each)
    else:
        yield f"{place}:" if place else "", _as_json(value)


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _excerpt(text: str, skip: int) -> str:
    part = text[skip : skip + _LONGEST]
    return f"{'…' if skip else ''}{part}{'…' if skip + _LONGEST < len(text) else ''}"


MISSING_TEST = LintRule("missing-test", ERROR, "the row fails before its test begins, or passes without it")
RUNS_NOTHING = LintRule("runs-nothing", ERROR, "CI runs `python FILE`, which defines tests, calls none and ends green")
NO_NUM_GPUS = LintRule("no-num-gpus", ERROR, "that job reads from this line how many GPUs the file needs")
UNREGISTERED = LintRule("unregistered", WARNING, "no label runs it, except for pull requests that add or modify it")
UNREACHABLE = LintRule("unreachable", WARNING, "CI never runs it, not even for a pull request that changes it")
UNKNOWN_LABEL = LintRule("unknown-label", ERROR, "a contributor adds it to a pull request, and it starts no job")
NO_TIMEOUT = LintRule("no-timeout", WARNING, "a hang holds GPUs for 6 hours, on a self-hosted runner for up to 5 days")
MOVING_IMAGE = LintRule(
    "moving-image", WARNING, "the same commit runs other code tomorrow, and a failure cannot be reproduced"
)
_OF_TESTS = (MISSING_TEST, RUNS_NOTHING, NO_NUM_GPUS, UNREGISTERED, UNREACHABLE)
RULES = {rule.name: rule for rule in (TEMPLATE_DRIFT, *_OF_TESTS, UNKNOWN_LABEL, NO_TIMEOUT, MOVING_IMAGE)}
_PYTEST = re.compile(r"\bpytest\b|\bpython3? -m unittest\b")
_QUOTED_FILE = re.compile(r"""([\w.-]+\.py)["']""")
_TEST_PATH = re.compile(r"(?<![\w.-])tests/[\w./-]+\.py(?![\w-])")


def lint(checkout: CheckoutFiles) -> list[LintFinding]:
    """All findings, each once: errors before warnings, then by file and line."""
    findings = {finding for check in _CHECKS for finding in check(checkout)}
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
            yield RUNS_NOTHING.finding(test, len(source.splitlines()), message, fix)


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
                fix = f"if it is not a test, move it where {job.name} does not select it ({_pathspecs(job)})"
            yield NO_NUM_GPUS.finding(path, 1, f"{job.name} {effect}", fix)


def _without_row(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """`unregistered`: a test that only a job for changed tests runs. `unreachable`: one that nothing runs."""
    fix = f"add it to a job in {checkout.edited}, or move it out of tests/ if it is not a test"
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


def _missing_test(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """Of a file that was moved, or a name with a typing error."""
    for test, row in _registered(checkout).items():
        if is_test(test) and test not in checkout.files:
            message = f"{row.job} runs {test}, which is not in the checkout"
            line = checkout.line_of(re.escape(test.rpartition("/")[2]))
            yield MISSING_TEST.finding(checkout.edited, line, message, "correct the path, or remove the entry")


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
            own = checkout.edited, checkout.line_of(rf"""^\s*['"]?{re.escape(job.id)}['"]?\s*:""")
            file, line = (job.call.workflow.path, job.line) if job.call else own
            fix = "set about twice the time of its longest row, such as timeout-minutes: 120"
            yield NO_TIMEOUT.finding(file, line, f"job {job.id.rpartition(' / ')[2]} has no timeout-minutes", fix)


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
    name, _, tag = image.rpartition("/")[2].partition(":")
    return "@" not in image and "<" not in name + tag and not any(letter.isdigit() for letter in tag)


_CHECKS = (
    template_drift, _missing_test, _runs_nothing, _no_num_gpus, _without_row, _unknown_label, _no_timeout,
    _moving_image,
)  # fmt: skip


def _registered(checkout: CheckoutFiles) -> dict[str, Row]:
    """Each test file of a matrix with the first row that names it."""
    return {row.test: row for row in reversed(checkout.rows) if row.test}
