"""What a checkout's CI covers: the trainings that its tests start with their flags, its labels with their tests and
rows, how two checkouts differ, and all of that as markdown for an issue.

Flags with a value count if `_VALUED` has them, others unless they are plumbing; each is shown as its own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted, some
from ci_tasks.features.recorder.syntax import NONE, RECORDED, UNKNOWN, LaunchCall, Recording, Value, shell_split
from ci_tasks.features.suites.slime_helpers import commands_of
from ci_tasks.report.table import code
from ci_tasks.workflow.model import Row

# How a name shows a mixture of experts, if no flag does: 30B with 3B active, or the word itself.
_MOE_NAME = re.compile(r"(?i)(?<![a-z])moe(?![a-z])|\d+B[-_]A\d+B|\d+x\d+")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
_MOST_TESTS, _LONGEST = 3, 160
Record = Callable[[str, Sequence[str], Mapping[str, str]], Recording]
Read = Callable[[str], "str | None"]
_SCRIPT = re.compile(r"(?:^|/)train(?:_\w+)?\.py$")
_MODULE = re.compile(r"^[\w.]+\.train(?:_\w+)?$")
_MODEL = re.compile(r"scripts/models/([^/\s]+)\.sh$")
# Short name → Megatron's flag, in the order in which they are written.
_LAYOUT = {
    "TP": "--tensor-model-parallel-size",
    "PP": "--pipeline-model-parallel-size",
    "CP": "--context-parallel-size",
    "EP": "--expert-model-parallel-size",
    "ETP": "--expert-tensor-parallel-size",
}
_EXTERNAL = {"--rollout-external-engine-addrs": "external engines"}
_PLACEMENT = {**_EXTERNAL, "--colocate": "colocated", "--rollout-num-gpus": "disaggregated"}
# Flags with a value that say what is exercised: their own words, and the value if it is a word.
_VALUED = re.compile(
    r"--(sglang-(config|moe-a2a|speculative-algorithm|disaggregation)|megatron-config|prefill-num-servers|update-weight-(mode|transport)"
    r"|rollout-(data|function)|optimizer-placement|num-critic-only|opd-type|over-sampling|dynamic-sampling|(save|load)-debug"
    r"|save$|eval-interval|multimodal|custom-|ci-(load-grad-norm|metric-checker))"
)
# Flags without a value that every training has: shapes, numerics and housekeeping.
_PLUMBING = re.compile(
    r"--(ci-|no-|sequence-parallel|apply-chat-template|rollout-shuffle|balance-data|attention-softmax|colocate"
    r"|accumulate-allreduce|sglang-enable-metrics|use-kl-loss|overlap-|use-wandb|disable-|normalize-advantages"
    r"|update-weight-disk-keep|use-dynamic-batch-size|use-opd$|offload-)"
)
_NOT_SEEN = "not seen"
_COUNT = re.compile(r" \(\d+ tests?\)$")  # of functions, which is not what a row covers
_PREFIX = re.compile(r"^--(?:sglang-)?(?:use-|enable-)?")
_SWITCH = re.compile(r"^--(?:\w+-)?(?:use|enable|calculate)-")  # takes no value


# -- labels, tests and rows --------------------------------------------------------------------------------------------


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
    `commands` belong to jobs that run tests without naming one for each row."""
    recorded = cache(lambda test, args, *env: record(test, shell_split(args), dict(env)))
    covered: list[LabelCoverage] = []
    for name in _each(row.label for row in rows):
        own = [row for row in rows if row.label == name]
        covers: dict[str, list[RowCoverage]] = {}
        for row in own:
            if row.test:
                found = row_coverage(row, recorded(row.test, row.args, *row.env.items()), read)
                covers.setdefault(row.test, []).append(found)
        tests = tuple(CoveredTest(path, tuple(found)) for path, found in covers.items())
        first, run = own[0], () if tests else tuple(commands.get(own[0].job, ()))
        if tests or run or first.dynamic:  # a job that only finds out what another is to run has no tests
            about = (name, first.job, first.trigger, first.runner, _each(row.image or "" for row in own))
            covered.append(LabelCoverage(*about, tests, first.dynamic, run))
    return CheckoutCoverage(checkout, workflow, tuple(covered))


def row_coverage(row: Row, recording: Recording, read: Read) -> RowCoverage:
    started, problem = trainings(recording), "; ".join(recording.stops)
    if started:
        model = _model(started[0], recording.constants.get("MODEL_NAME"), read)
        covers = _each([model, *_trained(started), f"{_NOT_SEEN} to its end" if problem else ""])
    else:
        covers = (f"{_NOT_SEEN}: {problem}" if problem else _untrained(row.test or "", recording),)
    return RowCoverage(row.row, row.args, row.gpus, covers, recording.origin, problem)


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
    def without(some: Iterable[str], others: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(item for item in some if item not in others)

    old, new = before.rows(), after.rows()
    covers = ((one for row in side.values() for one in row.covers) for side in (old, new))
    had, has = ({_COUNT.sub("", one): None for one in side if not one.startswith(_NOT_SEEN)} for side in covers)
    changed = without(new, old), without(old, new), without(has, had), without(had, has)
    return CoverageDiff(before.checkout, after.checkout, *changed)


# -- trainings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingLaunch:
    """One start of a training. `flags` are those it is given, the last of several; a value that only a run would know
    stands as ⟨its expression⟩."""

    flags: Mapping[str, tuple[str, ...]]
    model_script: Value
    script: str

    def value(self, flag: str, default: str = "") -> str:
        values = self.flags.get(flag)
        return default if values is None else " ".join(values)

    def number(self, flag: str) -> int:
        """A flag's number; 1 too if it is not a number that is known."""
        text = self.value(flag)
        return int(text) if text.isdecimal() else 1

    @property
    def hidden(self) -> bool:
        """Whether arguments that are not known may be flags: they are not the value of one."""
        return any(map(UNKNOWN.fullmatch, self.flags.get("", ())))

    @property
    def algorithm(self) -> str:
        """The advantage estimator. GRPO is the framework's default, which is not known to hold if flags are hidden."""
        return self.value("--advantage-estimator", "" if self.hidden else "grpo").upper().replace("_", "-")

    @property
    def layout(self) -> str:
        """`TP2 + CP2`; "DP" for none but data parallel."""
        sizes = {name: self.number(flag) for name, flag in _LAYOUT.items()}
        return " + ".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or ("" if self.hidden else "DP")

    @property
    def placement(self) -> str:
        """Where the engines are; "" if no flag says it."""
        return next((words for flag, words in _PLACEMENT.items() if flag in self.flags), "")

    def features(self) -> Iterator[str]:
        """What it exercises besides its model, algorithm, layout and placement."""
        if "--colocate" in self.flags and not any(flag.startswith("--no-offload") for flag in self.flags):
            yield "offload/onload"  # engines that share GPUs with the trainer leave them to it
        # `--load` of what `--hf-checkpoint` names starts from the beginning.
        if "--load" in self.flags and self.value("--load") != self.value("--hf-checkpoint"):
            yield "checkpoint load"
        if "fp8" in self.value("--hf-checkpoint").lower():
            yield "FP8 rollout"
        if "async" in self.script:
            yield f"async training ({self.script})"
        spells_out_model = "--num-layers" in self.flags  # has too many switches to tell apart
        for flag, values in self.flags.items():
            if values and _VALUED.match(flag):
                value = self.value(flag)
                words = [flag[2:].removesuffix("-path"), value.rpartition(".")[2]]
                yield (" ".join(words) if value.replace(".", "").isidentifier() else words[0]).replace("-", " ")
            elif flag and not values and not spells_out_model and not _PLUMBING.match(flag):
                yield _PREFIX.sub("", flag).replace("-", " ")


def trainings(recording: Recording) -> list[TrainingLaunch]:
    """Every training, in the order in which they would start."""
    return [training for call in recording.calls for training in _started(call)]


def _started(call: LaunchCall) -> Iterator[TrainingLaunch]:
    if call.function == "execute_train":
        named, words = call.kwargs, _words(call.kwargs.get("train_args"))
        if not any(word.startswith("--") for word in words):  # a helper whose flags are words of their own
            words = [word for value in (*named.values(), *call.args) for word in _words(value)]
            named = {}
        script = str(named.get("train_script") or "train.py")
        yield TrainingLaunch(_flags(words), named.get("megatron_model_type"), script)
    for argv in commands_of(call):
        for place, word in enumerate(argv):
            if _SCRIPT.search(word) or (_MODULE.search(word) and argv[place - 1] == "-m"):
                model = next((match[1] for match in map(_MODEL.search, argv) if match), None)
                yield TrainingLaunch(_flags(argv[place + 1 :]), model, word)
                break


def _words(value: Value) -> list[str]:
    return shell_split(value) if isinstance(value, str) else [*map(str, value)] if isinstance(value, list) else []


def _flags(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`--flag value …` and `--flag=value` → values by flag; under "" what belongs to none."""
    flags: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            flags[name] = (value,) if equals else ()
        else:
            is_own = UNKNOWN.fullmatch(word) and (flags.get(name) or _SWITCH.match(name))
            owner = "" if is_own else name
            flags[owner] = (*flags.get(owner, ()), word)
    return flags


# -- markdown ----------------------------------------------------------------------------------------------------------


def coverage_report(coverage: CheckoutCoverage) -> str:
    is_recorded = any(row.origin == RECORDED for row in coverage.rows().values())
    how = "recorded under stubs" if is_recorded else "as far as their source shows (nothing was executed)"
    source = f"{_cell(coverage.checkout)}, generated by `ci-tasks` from `{coverage.workflow}` and what its tests launch"
    what = f"{source}, {how}. A row shows that a path is exercised, not that every combination is."
    what += " Labels whose steps name no test are left out."
    table = _table(("Label", "Started by", "Rows", "Tests", "GPUs", "Image"), map(_label_cells, coverage.labels))
    lines = ["# CI coverage", "", what, "", *table]
    for label in coverage.labels:
        if not label.dynamic:
            lines += _label_section(label)
    return "\n".join(lines)


def diff_report(changed: CoverageDiff) -> str:
    """What is lost comes first: a reviewer has to see that."""
    changes: dict[str, Sequence[str]] = {
        "No longer exercised by any row": changed.lost,
        "Exercised for the first time": changed.gained,
        "Rows removed": changed.removed,
        "Rows added": changed.added,
    }
    lines = ["# CI coverage: what changes", "", f"From {_cell(changed.before)} to {_cell(changed.after)}."]
    for title, items in changes.items():
        if items:
            lines += ["", f"## {title} ({len(items)})", "", *(f"- {_cell(item)}" for item in items)]
    return "\n".join(lines if any(changes.values()) else [*lines, "", "The same coverage."])


def _label_cells(label: LabelCoverage) -> list[str]:
    rows = sum(len(test.rows) for test in label.tests)
    instead = "by another job" if label.dynamic else "by its steps" if label.commands else ""
    counts = [instead or str(rows), instead or str(len(label.tests))]
    gpus = sorted({number for test in label.tests for number in test.gpus})
    images = ", ".join(f"`{image}`" for image in label.images)
    return [label.label, _trigger(label), *counts, ", ".join(map(str, gpus)) or "–", images or label.runner]


def _label_section(label: LabelCoverage) -> list[str]:
    lines = ["", f"## {_cell(label.label)}", "", f"{_trigger(label)}, job `{label.job}`.", ""]
    if label.commands:
        return [*lines, "Its steps run:", "", *(f"- {code(command)}" for command in label.commands)]
    rows = [(f"`{one.test}`", "/".join(map(str, one.gpus)) or "?", ", ".join(one.coverage)) for one in label.tests]
    lines += _table(("Test", "GPUs", "Main coverage"), rows)
    for test in label.tests:
        if len(test.rows) > 1:
            everywhere = set.intersection(*(set(row.covers) for row in test.rows))
            lines += ["", f"`{test.test}` is run {len(test.rows)} ways:", ""]
            for row in test.rows:
                own = ", ".join(each for each in row.covers if each not in everywhere)
                lines.append(f"- `{row.args or 'no arguments'}`{': ' if own else ''}{own}")
    return lines


def _trigger(label: LabelCoverage) -> str:
    return f"`{label.trigger}`" if label.trigger else "always on"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells keep their code, which `report.table` would escape."""
    lines = [f"| {' | '.join(map(_cell, cells))} |" for cells in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def _cell(text: str) -> str:
    """Text in a cell: a workflow's or a test's words must not end it, or begin markup."""
    shown = text if "`" in text else text.replace("*", "\\*")
    shown = re.sub("(`[^`]*`)|<", lambda part: part[1] or "&lt;", shown)  # code is shown as it is
    return " ".join(shown.replace("|", "\\|").split())
