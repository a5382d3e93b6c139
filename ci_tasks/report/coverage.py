"""A coverage map as Markdown, fit to be pasted into an issue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ci_tasks.suites.coverage.coverage import Backend, Coverage, Entry, Gap, Label, summary
from ci_tasks.suites.coverage.describe import main_coverage
from ci_tasks.suites.coverage.facts import E2E

_FOLDED = 12  # items of a gap from which on they are folded away


def markdown(coverage: Coverage) -> str:
    """The whole map."""
    return "\n".join(
        [
            "# CI coverage",
            "",
            f"{escaped(coverage.checkout)}, generated from `{coverage.workflow}` and the tests' sources"
            " by `ci-tasks coverage`. A row shows that a path is exercised, not that every combination is.",
            "",
            *_entry_points(coverage),
            *(line for label in coverage.labels for line in _label(label)),
            *_backends(coverage),
            "## Gaps",
            "",
            *(line for gap in coverage.gaps for line in _gap(gap)),
            *([] if coverage.gaps else ["None found.", ""]),
        ]
    )


def trigger(label: Label) -> str:
    """What starts a label, in words."""
    return f"`{label.trigger}`" if label.trigger else "always on"


def modes(entry: Entry) -> list[str]:
    """For a test that several rows run: what each is given, and what only it exercises."""
    if len(entry.modes) < 2:
        return []
    found = []
    for mode in entry.modes:
        own = entry.own(mode)
        given = f"`{mode.args}`" if mode.args else "no arguments"
        found.append(f"{given}{': ' + ', '.join(own) if own else ''}")
    return found


def backend_lines(found: Backend) -> list[tuple[str, str]]:
    """The summary of a training backend, line by line."""
    lines = [
        ("Rows", str(found.rows)),
        ("Dense models", ", ".join(found.dense)),
        ("MoE models", ", ".join(found.moe)),
        ("Algorithms", ", ".join(found.algorithms)),
        ("Layouts", ", ".join(found.layouts)),
        ("Placement", ", ".join(found.placements)),
        ("PD", ", ".join(found.pd)),
        ("Also", ", ".join(found.features)),
    ]
    return [(name, words) for name, words in lines if words]


def gpus(entry: Entry) -> str:
    return "/".join(map(str, entry.gpus)) or "?"


def escaped(text: str) -> str:
    """Text in a cell: a workflow's or a test's words must not end it, or begin markup."""
    shown = text if "`" in text else text.replace("*", "\\*")
    return " ".join(shown.replace("|", "\\|").replace("<", "&lt;").split())


def _entry_points(coverage: Coverage) -> Iterator[str]:
    yield from ("| Label | Started by | Rows | Tests | GPUs | Image |", "|---|---|---|---|---|---|")
    for label in coverage.labels:
        widths = sorted({number for entry in label.entries for number in entry.gpus})
        counts = (label.rows, len(label.entries)) if not label.dynamic else ("by what changed",) * 2
        images = ", ".join(f"`{image}`" for image in label.images) or label.runner
        cells = (label.label, trigger(label), *counts, ", ".join(map(str, widths)) or "–", images)
        yield f"| {' | '.join(escaped(str(cell)) for cell in cells)} |"
    yield ""


def _label(label: Label) -> Iterator[str]:
    if label.dynamic:
        return
    yield from (f"## {escaped(label.label)}", "", f"{trigger(label)}, job `{label.job}`.", "")
    if label.same_as:
        image = f", in `{label.images[0]}`" if label.images else ""
        yield from (f"The rows of {escaped(label.same_as)}{image}.", "")
        return
    yield from ("| Test | GPUs | Main coverage | Checks |", "|---|---|---|---|")
    for entry in label.entries:
        cells = (f"`{entry.test}`", gpus(entry), escaped(main_coverage(entry)), escaped(entry.facts.checks.words))
        yield f"| {' | '.join(cells)} |"
    yield ""
    for entry in label.entries:
        if given := modes(entry):
            yield from (f"`{entry.test}` is run {len(given)} ways:", "", *_items(given), "")
    asserting = [entry for entry in label.entries if entry.facts.kind == E2E and entry.facts.checks.assertions]
    if asserting:
        yield from ("Asserted after the run:", "")
        for entry in asserting:
            yield f"- `{entry.test}`: {escaped('; '.join(entry.facts.checks.assertions))}"
        yield ""


def _backends(coverage: Coverage) -> Iterator[str]:
    yield from ("## Backends", "")
    for name, found in summary(coverage).items():
        yield from (f"### {escaped(name.capitalize())}", "")
        yield from _items(f"{title}: {escaped(words)}" for title, words in backend_lines(found))
        yield ""


def _gap(gap: Gap) -> Iterator[str]:
    yield from (f"### {gap.title} ({len(gap.items)})", "", f"{gap.why[0].upper()}{gap.why[1:]}.", "")
    items = list(_items(_code(item) for item in gap.items))
    yield from _fold(items) if len(items) > _FOLDED else items
    yield ""


def _fold(items: Sequence[str]) -> list[str]:
    return [f"<details><summary>{len(items)}</summary>", "", *items, "", "</details>"]


def _items(lines: Iterable[str]) -> Iterator[str]:
    return (f"- {line}" for line in lines)


def _code(item: str) -> str:
    return f"`{item}`" if item.startswith("tests/") else escaped(item)
