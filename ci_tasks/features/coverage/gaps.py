"""What no row covers, or covers without noticing a fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from ci_tasks.features.coverage import checks, options
from ci_tasks.features.coverage.architecture import Read
from ci_tasks.features.coverage.coverage import CoverageGap, CoveredTest, LabelCoverage, trained_facts
from ci_tasks.features.coverage.facts import E2E, VACUOUS, RowFacts

# Training backends that slime has or had.
_BACKENDS = ("megatron", "fsdp")
_TEST = re.compile(r"^tests/(?:.*/)?test_[^/]*\.py$")
_OTHER_CHIPS = re.compile(r"(?i)rocm|amd|mi\d{3}|npu|ascend")
_VISION = re.compile(r"(?i)(?:^|[-_.])vl(?:[-_.]|$)|vision|multimodal")


# Key → what the gap is called, and what is counted.
_TITLES = {
    "backends": ("Backends and machines with no row", "no training of any row has it"),
    "options": ("Values of options that no row passes", f"choices that {options.ARGUMENTS} declares"),
    "unregistered": ("Tests in no matrix", "no label has a row for them; at most the one for changed tests runs them"),
    "vacuous": ("Registered, and runs nothing", "no `__main__` block: `python FILE` defines things and ends"),
    "missing": ("Registered, and not in the checkout", "the matrix names a file that does not exist"),
    "smoke": ("Smoke only", "nothing is asserted after the run, and nothing beyond `--ci-test` in it"),
    "no-ci-test": ("Trains without `--ci-test`", "the framework's own checks are off"),
    "unasserted": ("Exercised by smoke tests only", "no test that has it asserts anything of its own"),
    "unread": ("Not read to the end", "what these tests cover is not known in full"),
}


def gaps(labels: Sequence[LabelCoverage], files: Iterable[str], read: Read) -> tuple[CoverageGap, ...]:
    """`files` are the paths of the checkout's tests, `read` gives a file's text."""
    tests = [test for label in labels for test in label.tests]
    trained = trained_facts(labels)
    arguments = read(options.ARGUMENTS) or ""
    items = {
        "backends": _absent(labels, trained, arguments),
        "options": _values(trained, arguments),
        "unregistered": _unregistered(tests, files),
        "vacuous": _tests(test for test in tests if test.facts.kind == VACUOUS and not test.missing),
        "missing": _tests(test for test in tests if test.missing),
        "smoke": _tests(test for test in tests if _each(test, lambda facts: facts.checks.level == checks.SMOKE)),
        "no-ci-test": _tests(test for test in tests if _each(test, lambda facts: not facts.checks.ci_test)),
        "unasserted": _unasserted(trained),
        "unread": _tests(test for test in tests if not test.missing and any(row.facts.problem for row in test.rows)),
    }
    return tuple(CoverageGap(key, *_TITLES[key], entries) for key, entries in items.items() if entries)


def _absent(labels: Sequence[LabelCoverage], trained: Sequence[RowFacts], arguments: str) -> tuple[str, ...]:
    if not trained:
        return ()
    absent = []
    used = {name for facts in trained for name in facts.backends}
    offered = options.choices(arguments).get("--train-backend", ((), ""))[0]
    for name in dict.fromkeys((*_BACKENDS, *offered)):
        if name not in used:
            note = " (and `--train-backend` does not offer it)" if offered and name not in offered else ""
            absent.append(f"{'FSDP' if name == 'fsdp' else name} backend{note}")
    features = {feature for facts in trained for feature in facts.features}
    if not any(feature.endswith(" nodes") for feature in features):
        absent.append("multi-node training")
    if not any(_sees(facts) for facts in trained):
        absent.append("VLM / multimodal training")
    machines = [text for label in labels for text in (*label.images, label.runner)]
    if not any(_OTHER_CHIPS.search(text) for text in machines):
        absent.append("AMD / NPU machines")
    return tuple(absent)


def _sees(facts: RowFacts) -> bool:
    return "multimodal input" in facts.features or bool(facts.model and _VISION.search(facts.model.name))


def _values(trained: Sequence[RowFacts], arguments: str) -> tuple[str, ...]:
    passed: dict[str, set[str]] = {}
    for facts in trained:
        for flag, values in facts.flags:
            passed.setdefault(flag, set()).update(values)
    unused = options.unused(arguments, passed, len(trained))
    return tuple(f"`{option}`: {', '.join(values)}" for option, values in unused)


def _unregistered(tests: Sequence[CoveredTest], files: Iterable[str]) -> tuple[str, ...]:
    registered = {test.path for test in tests}
    return tuple(path for path in sorted(files) if _TEST.match(path) and path not in registered)


def _tests(tests: Iterable[CoveredTest]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(test.path for test in tests))


def _each(test: CoveredTest, holds: Callable[[RowFacts], bool]) -> bool:
    """Whether it holds of every row of a test that trains."""
    return all(row.facts.kind == E2E and holds(row.facts) for row in test.rows)


def _unasserted(trained: Sequence[RowFacts]) -> tuple[str, ...]:
    asserted = {word for facts in trained if facts.checks.level != checks.SMOKE for word in _exercised(facts)}
    return tuple(dict.fromkeys(word for facts in trained for word in _exercised(facts) if word not in asserted))


def _exercised(facts: RowFacts) -> list[str]:
    return [*(["PD"] if facts.pd else []), *(f"{name}" for name in facts.algorithms), *facts.features]
