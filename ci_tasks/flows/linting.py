"""`lint`: what is wrong with a checkout's CI before anything runs, from the working tree or a revision of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ci_tasks import __version__
from ci_tasks.errors import UsageError
from ci_tasks.flows.listing import list_jobs
from ci_tasks.flows.source import Source, situation
from ci_tasks.judge.lint import RULES, Subject, baseline, lint
from ci_tasks.judge.lint.baseline import Compared
from ci_tasks.report import lint as report
from ci_tasks.runs import store
from ci_tasks.sync.snapshot import Snapshot, take

TEXT, JSON, SARIF, GITHUB = "text", "json", "sarif", "github"
FORMATS = (TEXT, JSON, SARIF, GITHUB)
_DOCS = (".md", ".rst")
_PYTHON = ".py"


@dataclass(frozen=True)
class Ask:
    """`baseline` is the file of known findings. `shrink` takes out of it what is found no more; `write` makes it."""

    form: str = TEXT
    baseline: Path | None = None
    shrink: bool = False
    write: bool = False


def run(source: Source, ask: Ask) -> int:
    """Print the findings. Returns 1 where there are any that no baseline knows, or the baseline knows too many."""
    if ask.form not in FORMATS:
        raise UsageError(f"no format {ask.form!r}", hint=f"valid: {', '.join(FORMATS)}")
    found = lint(subject(source))
    if ask.write:
        return _write(ask, [finding.key for finding in found])
    entries = _entries(ask)
    compared = baseline.compare(found, entries)
    if ask.shrink and compared.gone:
        assert ask.baseline is not None
        ask.baseline.write_text(baseline.write(sorted(entries - set(compared.gone))), encoding="utf-8")
    _print(source, ask, compared)
    return 1 if compared.new or (compared.gone and not ask.shrink) else 0


def subject(source: Source) -> Subject:
    """The checkout as lint looks at it: its tracked and untracked files, or those of the revision."""
    snapshot = take(source.path, store.home() / "sync" / "lint", rev=source.rev)
    names = snapshot.names()
    path = source.workflow.path.removesuffix(".j2")
    return Subject(
        workflow=source.workflow,
        text=_text(snapshot, path),
        template=_text(snapshot, f"{path}.j2"),
        rows=list_jobs(source),
        tests={name: _text(snapshot, name) or "" for name in names if _is_test(name)},
        docs={name: _text(snapshot, name) or "" for name in names if name.endswith(_DOCS)},
        files=frozenset(names),
        framework=situation(source, secrets=()).repository.rpartition("/")[2],
    )


def _is_test(name: str) -> bool:
    return name.startswith("tests/") and name.endswith(_PYTHON)


def _text(snapshot: Snapshot, name: str) -> str | None:
    found = snapshot.read(name)
    return None if found is None else found.decode(errors="replace")


def _entries(ask: Ask) -> frozenset[baseline.Key]:
    if ask.baseline is None:
        return frozenset()
    try:
        return baseline.read(ask.baseline.read_text(encoding="utf-8"), str(ask.baseline))
    except OSError as error:
        raise UsageError(
            f"{ask.baseline} cannot be read: {error.strerror}",
            hint=f"`ci-tasks lint --write-baseline {ask.baseline}` makes one of what is found now",
        ) from None


def _write(ask: Ask, keys: list[baseline.Key]) -> int:
    assert ask.baseline is not None
    if ask.baseline.exists():
        raise UsageError(
            f"{ask.baseline} is there already, and a baseline can only shrink",
            hint=f"`ci-tasks lint --baseline {ask.baseline} --shrink` takes out what is found no more",
        )
    ask.baseline.write_text(baseline.write(keys), encoding="utf-8")
    print(f"{ask.baseline}: {len(keys)} known findings")
    return 0


def _print(source: Source, ask: Ask, compared: Compared) -> None:
    shown = [finding.public() for finding in compared.new]
    if ask.form == JSON:
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    elif ask.form == SARIF:
        print(report.sarif(shown, [asdict(rule) for rule in RULES.values()], __version__))
    elif ask.form == GITHUB:
        print("\n".join(report.github(shown)), end="\n" if shown else "")
    else:
        print("\n".join([source.headline, *report.text(shown)]))
    if ask.form == TEXT:
        for rule, file, about in compared.gone:
            what = "taken out of" if ask.shrink else "found no more, and still in"
            print(f"\n{what} {ask.baseline}: {rule} {file} ({about})")
        if compared.gone and not ask.shrink:
            print("  fix: --shrink takes it out")
        print(f"\n{report.summary(shown, len(compared.known))}")
