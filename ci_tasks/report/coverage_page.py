"""A coverage map as one HTML page: no script or style from elsewhere, light and dark, a filter over all rows."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator

from ci_tasks.report.coverage import backend_lines, gpus, modes
from ci_tasks.suites.coverage.coverage import Coverage, Entry, Gap, Label, summary
from ci_tasks.suites.coverage.describe import main_coverage

_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #f3f5f7; --dim: #59636e; --text: #1f2328; --page: #fff;
  --good: #1a7f37; --weak: #9a6700; --bad: #cf222e; --link: #0969da; }
@media (prefers-color-scheme: dark) { :root { --line: #3d444d; --soft: #1b2129; --dim: #9aa4af; --text: #e6edf3;
  --page: #0d1117; --good: #3fb950; --weak: #d29922; --bad: #f85149; --link: #4493f8; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem;
  color: var(--text); background: var(--page); }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
th { background: var(--soft); }
td.number { white-space: nowrap; }
tr.test td:first-child { min-width: 15rem; }
tr.test td:last-child { min-width: 11rem; }
code { font: .92em ui-monospace, monospace; overflow-wrap: anywhere; }
a { color: var(--link); }
.dim, .dim code { color: var(--dim); }
.good { color: var(--good); } .weak { color: var(--weak); } .bad { color: var(--bad); }
ul.modes { margin: .3rem 0 0; padding-left: 1.1rem; }
input { font: inherit; width: 100%; max-width: 30rem; padding: .4rem .6rem; color: inherit; background: var(--soft);
  border: 1px solid var(--line); border-radius: 6px; }
[hidden] { display: none; }
"""
_SCRIPT = """
const filter = document.querySelector('#filter');
const rows = [...document.querySelectorAll('tr.test')];
filter.addEventListener('input', () => {
  const words = filter.value.toLowerCase().split(/\\s+/).filter(Boolean);
  for (const row of rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
  for (const part of document.querySelectorAll('section.label'))
    part.hidden = words.length > 0 && !part.querySelector('tr.test:not([hidden])');
});
"""
_TONE = {"asserts": "good", "checks in the run": "good", "smoke": "weak", "runs nothing": "bad"}


def page(coverage: Coverage) -> str:
    """The whole map."""
    body = [
        f"<p>{text(coverage.checkout)}, generated from <code>{text(coverage.workflow)}</code> and the tests' sources. "
        "A row shows that a path is exercised, not that every combination is.</p>",
        '<p><label for="filter">Show tests with all of these words</label><br>'
        '<input id="filter" type="search" placeholder="moe deepep"></p>',
        *(line for label in coverage.labels for line in _label(label)),
        "<h2>Backends</h2>",
        *_backends(coverage),
        "<h2>Gaps</h2>",
        *(line for gap in coverage.gaps for line in _gap(gap)),
        *([] if coverage.gaps else ["<p>None found.</p>"]),
        f"<script>{_SCRIPT}</script>",
    ]
    return document("CI coverage", "\n".join(body))


def document(title: str, body: str) -> str:
    """A page around `body`, with the styles of this one."""
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head>\n<body>\n<h1>{text(title)}</h1>\n{body}\n"
        "</body>\n</html>"
    )


def text(value: str) -> str:
    """What others wrote, as text of a page; `code` in backticks stands as code."""
    parts = html.escape(value).split("`")
    if len(parts) % 2 == 0:
        return html.escape(value)
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def _label(label: Label) -> Iterator[str]:
    started = f"<code>{text(label.trigger)}</code>" if label.trigger else "always on"
    images = ", ".join(f"<code>{text(image)}</code>" for image in label.images) or text(label.runner)
    yield f'<section class="label"><h2>{text(label.label)}</h2>'
    yield f'<p class="dim">{started}, job <code>{text(label.job)}</code>, {images}, {label.rows} rows</p>'
    if label.dynamic:
        yield "<p>Its rows are the test files that a pull request changes.</p>"
    elif label.same_as:
        yield f"<p>The rows of {text(label.same_as)}.</p>"
    else:
        yield "<table><thead><tr><th>Test</th><th>GPUs</th><th>Main coverage</th><th>Checks</th></tr></thead><tbody>"
        yield from (_row(entry) for entry in label.entries)
        yield "</tbody></table>"
    yield "</section>"


def _row(entry: Entry) -> str:
    checks = entry.facts.checks
    return (
        f'<tr class="test"><td><code>{text(entry.test)}</code></td><td class="number">{text(gpus(entry))}</td>'
        f"<td>{text(main_coverage(entry))}{_list('modes', modes(entry))}</td>"
        f'<td><span class="{_TONE.get(checks.level, "")}">{text(checks.words)}</span>'
        f"{_list('modes dim', checks.assertions)}</td></tr>"
    )


def _list(kind: str, items: Iterable[str]) -> str:
    lines = "".join(f"<li>{text(item)}</li>" for item in items)
    return f'<ul class="{kind}">{lines}</ul>' if lines else ""


def _backends(coverage: Coverage) -> Iterator[str]:
    for name, found in summary(coverage).items():
        yield f"<h3>{text(name.capitalize())}</h3><table><tbody>"
        yield from (f"<tr><th>{title}</th><td>{text(words)}</td></tr>" for title, words in backend_lines(found))
        yield "</tbody></table>"


def _gap(gap: Gap) -> Iterator[str]:
    yield f"<details open><summary><strong>{text(gap.title)}</strong> ({len(gap.items)}): {text(gap.why)}</summary>"
    yield _list("modes", gap.items)
    yield "</details>"
