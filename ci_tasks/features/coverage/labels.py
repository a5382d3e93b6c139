"""What a checkout covers: its labels with their tests and rows, and how two checkouts differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted, some
from ci_tasks.features.coverage.training import TrainingLaunch, trainings
from ci_tasks.features.recorder.records import NONE, Recording, shell_split
from ci_tasks.workflow.model import Row

# What a name says of a mixture of experts, if no flag does: 30B of which 3B are active, or the word itself.
_MOE_NAME = re.compile(r"(?i)(?<![a-z])moe(?![a-z])|\d+B[-_]A\d+B|\d+x\d+")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
_MOST_TESTS, _LONGEST = 3, 160
Record = Callable[[str, Sequence[str], Mapping[str, str]], Recording]
Read = Callable[[str], "str | None"]


@dataclass(frozen=True)
class RowCoverage:
    """A row, and what it `covers`: its model, algorithm, layout, placement of the engines and features; of a test that
    trains nothing its own words. `origin` is whether the test was recorded or only read, `problem` why it is not known
    to its end."""

    row: str
    args: str
    gpus: int | None
    covers: tuple[str, ...]
    origin: str
    problem: str


@dataclass(frozen=True)
class CoveredTest:
    """A test of a label, with the rows that run it."""

    test: str
    rows: tuple[RowCoverage, ...]

    @property
    def gpus(self) -> list[int]:
        return sorted({row.gpus for row in self.rows if row.gpus is not None})

    @property
    def coverage(self) -> tuple[str, ...]:
        return _each(part for row in self.rows for part in row.covers)

    @property
    def modes(self) -> list[str]:
        """If several rows run it: what each is given, and what not every other row exercises."""
        lines = []
        for row in self.rows if len(self.rows) > 1 else ():
            own = [each for each in row.covers if any(each not in other.covers for other in self.rows)]
            args = f"`{row.args}`" if row.args else "no arguments"
            lines.append(f"{args}: {', '.join(own)}" if own else args)
        return lines


@dataclass(frozen=True)
class LabelCoverage:
    """A label and its tests; `commands` are what the steps run for tests, of a job whose rows name no test file.
    `dynamic` is the expression of a matrix that only a run of another job gives."""

    label: str
    job: str
    trigger: str | None
    runner: str
    images: tuple[str, ...]
    tests: tuple[CoveredTest, ...]
    dynamic: str | None = None
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckoutCoverage:
    """As `coverage --json` prints it. `checkout` names it for people, without a path of this machine."""

    checkout: str
    workflow: str
    labels: tuple[LabelCoverage, ...]

    def rows(self) -> dict[str, RowCoverage]:
        """By `label: row`."""
        return {f"{label.label}: {row.row}": row for label in self.labels for test in label.tests for row in test.rows}


def checkout_coverage(
    checkout: str, workflow: str, rows: Sequence[Row], read: Read, record: Record, commands: Mapping[str, Sequence[str]]
) -> CheckoutCoverage:
    """`record` gives what a test launches, once for each way to start it; `read` gives files of the checkout.
    `commands` are those of jobs that run tests without naming one for each row."""
    recordings: dict[object, Recording] = {}
    for row in rows:
        if row.test and (start := _start(row)) not in recordings:
            recordings[start] = record(row.test, shell_split(row.args), row.env)
    covered: list[LabelCoverage] = []
    for name in _each(row.label for row in rows):
        own = [row for row in rows if row.label == name]
        covers = {row.row: row_coverage(row, recordings[_start(row)], read) for row in own if row.test}
        tests = tuple(
            CoveredTest(path, tuple(covers[row.row] for row in own if row.test == path))
            for path in _each(row.test or "" for row in own)
        )
        first, run = own[0], () if tests else tuple(commands.get(own[0].job, ()))
        if tests or run or first.dynamic:  # a job that only finds out what another is to run has no tests
            about = (name, first.job, first.trigger, first.runner, _each(row.image or "" for row in own))
            covered.append(LabelCoverage(*about, tests, first.dynamic, run))
    return CheckoutCoverage(checkout, workflow, tuple(covered))


def row_coverage(row: Row, recording: Recording, read: Read) -> RowCoverage:
    started, problem = trainings(recording), "; ".join(recording.stops)
    if started:
        model = _model(started[0], recording.constants.get("MODEL_NAME"), read)
        covers = _each([model, *_trained(started), "not seen to its end" if problem else ""])
    else:
        covers = (f"not seen: {problem}" if problem else _untrained(row.test or "", recording),)
    return RowCoverage(row.row, row.args, row.gpus, covers, recording.origin, problem)


def _start(row: Row) -> object:
    return (row.test, row.args, *row.env.items())


def _each(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(value for value in dict.fromkeys(values) if value)


def _model(training: TrainingLaunch, name: object, read: Read) -> str:
    """The test's own name of its model, or its checkpoint's, and what kind it is: by flags before names."""
    checkpoint = training.value("--hf-checkpoint").rstrip("/").rpartition("/")[2]
    called = name if isinstance(name, str) else "" if "⟨" in checkpoint else checkpoint
    script = read(f"scripts/models/{training.model_script}.sh") if isinstance(training.model_script, str) else None
    given = {*training.flags, *_FLAG.findall(script or "")}
    moe = "--num-experts" in given or training.number("--expert-model-parallel-size") > 1
    moe = moe or (script is None and bool(_MOE_NAME.search(called)))
    kind = f"{'MLA ' if '--multi-latent-attention' in given else ''}{'MoE' if moe else 'dense'}"
    return called if not called or kind.lower() in called.lower() else f"{called} {kind}"


def _trained(started: Sequence[TrainingLaunch]) -> Iterator[str]:
    yield "/".join(_each(training.algorithm for training in started))
    layouts = _each(training.layout for training in started)
    yield "" if layouts == ("DP",) else f"{'layouts ' if len(layouts) > 1 else ''}{' / '.join(layouts)}"
    yield " then ".join(_each(training.placement for training in started))
    yield f"{len(started)} trainings" if len(started) > 1 else ""
    for training in started:
        yield from training.features()


def _untrained(path: str, recording: Recording) -> str:
    """What a test says of itself, or the names of its functions."""
    name = path.rpartition("/")[2].removesuffix(".py").removeprefix("test_").replace("_", " ")
    doc = " ".join(recording.doc.split("\n\n")[0].split())
    words = re.split(r"(?<=[a-z0-9)`])[.:](?:\s|$)", doc, maxsplit=1)[0][:_LONGEST].rstrip(".")
    if recording.entry == NONE:
        return f"{words or name} (runs nothing: no `__main__`)"
    tests = [test.rpartition(".")[2].removeprefix("test_").replace("_", " ") for test in recording.tests]
    content = words or (f"{name}: {some(tests, _MOST_TESTS)}" if tests else name)
    return f"{content} ({counted(len(tests), 'test')})" if tests else content


@dataclass(frozen=True)
class CoverageDiff:
    """From one coverage to another. Rows are `label: row`; `gained` and `lost` is what the rows together cover or no
    longer do."""

    before: str
    after: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    gained: tuple[str, ...]
    lost: tuple[str, ...]


def difference(before: CheckoutCoverage, after: CheckoutCoverage) -> CoverageDiff:
    old, new = before.rows(), after.rows()
    had, has = ({each: None for row in side.values() for each in row.covers} for side in (old, new))
    names = before.checkout, after.checkout
    return CoverageDiff(*names, _without(new, old), _without(old, new), _without(has, had), _without(had, has))


def _without(some: Iterable[str], others: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(item for item in some if item not in others)
